"""Policies that others serve."""
