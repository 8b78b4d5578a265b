"""The kind of box that this machine can make; see `executor.py`."""
