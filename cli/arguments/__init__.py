"""The objects that arguments name: environments, rows, models, run folders and run files."""
