"""Boxes that are processes of this machine: `bwrap.py` with isolation, `executor.py` without."""
