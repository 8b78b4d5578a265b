"""Tasks to episodes to training batches; start reading at `schedule.py`."""
