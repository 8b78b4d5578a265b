"""What a run leaves, and what is wrong with it; without PyTorch."""
