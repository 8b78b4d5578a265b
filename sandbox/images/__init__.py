"""Images: their names and digests, and the root file system that is made of this machine's own Python and tools."""
