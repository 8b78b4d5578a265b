"""Plays episodes, many at a time; start reading at `rollout_engine.py`."""
