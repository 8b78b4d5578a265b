"""Messages to exact tokens and back, by the tokenizer's chat template; start reading at `chat_format.py`."""
