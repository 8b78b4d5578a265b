"""The commands of `gymnast`, one file each. A command imports what is slow to import when it runs."""
