"""The results of an evaluation: their file, their summary, and the comparison of two of them."""
