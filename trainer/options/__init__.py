"""The options of the configuration, and the errors and warnings about wrong ones."""
