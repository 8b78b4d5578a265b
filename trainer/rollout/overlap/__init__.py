"""Rollouts that overlap with updates; start reading at `overlapped.py`."""
