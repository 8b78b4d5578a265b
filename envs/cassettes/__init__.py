"""Results of tools in a file, to play episodes without running the tools; start reading at `cassette.py`."""
