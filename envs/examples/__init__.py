"""Environments to try gymnast with."""
