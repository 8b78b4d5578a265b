"""What arguments of the commands stand for: environments and other objects, rows, models, run folders and run files."""
