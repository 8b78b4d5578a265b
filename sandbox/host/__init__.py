"""The host's end of a guest, over any byte stream to a Python; start at `supervised_executor.py`."""
