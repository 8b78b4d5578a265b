"""Boxes that are containers of a Docker engine; start reading at `executor.py`."""
