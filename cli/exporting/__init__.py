"""Recorded episodes in the formats of other viewers: ATIF trajectories and Inspect's log."""
