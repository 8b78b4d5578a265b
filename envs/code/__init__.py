"""Environments in which an agent writes code that runs in a sandbox; start reading at `code_env.py`."""
