"""Reads the folder of a run: its episodes, its metrics; start reading at `run.py`."""
