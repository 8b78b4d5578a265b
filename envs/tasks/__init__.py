"""A folder is a task: Harbor's format, an environment with a box, and its verifier; start reading at `harbor.py`."""
