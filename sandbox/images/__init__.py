"""What an image is made of: this machine's own Python and tools, or a Dockerfile."""
