"""The internals of transformers' models: their caches, their output heads, and the names of their weights."""
