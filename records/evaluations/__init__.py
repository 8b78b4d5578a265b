"""What an evaluation leaves: its folder, its summary, pass@k, and the comparison of two of them."""
