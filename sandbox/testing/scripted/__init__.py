"""An executor that replays a script, and the recorder that makes one; start reading at `executor.py`."""
