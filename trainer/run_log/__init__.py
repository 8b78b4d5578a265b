"""The records of a run: metrics, episodes, progress."""
