"""What is wrong with a run, and why; start reading at `alarms.py`."""
