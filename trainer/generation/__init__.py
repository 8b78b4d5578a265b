"""Token ids to token ids: the generators' contract, and the generator that samples with transformers."""
