"""The options of the configuration, and what is said of wrong ones."""
