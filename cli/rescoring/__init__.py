"""Stored episodes with other rewards, and what their advantages would have been; start reading at `changes.py`."""
