"""Reads the folder of a run, without PyTorch: its episodes, its metrics, and what is wrong with them."""
