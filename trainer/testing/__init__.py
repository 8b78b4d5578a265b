"""Tiny models, and the check that episodes that left have no influence."""
