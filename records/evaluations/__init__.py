"""The numbers of an evaluation."""
