"""A scripted executor, and the contract as checks for executors."""
