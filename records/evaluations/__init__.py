"""What an evaluation leaves: its file, its summary, pass@k, and the comparison of two of them."""
