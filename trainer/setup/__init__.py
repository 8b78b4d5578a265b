"""From arguments to parts: model, tokenizer, generator, player, scorer; start reading at `assembly.py`."""
