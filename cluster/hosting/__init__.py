"""Environments on hosts, whatever lies between: the contract (`link.py`), the host, and the trainer's end."""
