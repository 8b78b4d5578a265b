"""Boxes that are processes of this machine, without isolation; start reading at `executor.py`."""
