"""Transformers models from within: their caches, their output heads, and the names of their weights."""
