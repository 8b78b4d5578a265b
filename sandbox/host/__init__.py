"""The host's end of a guest, over any byte stream to a Python that runs the boot code; start at `executor.py`."""
