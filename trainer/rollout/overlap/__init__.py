"""Rollouts that overlap with updates; start reading at `overlapped_rounds.py`."""
