"""What the other rooms stand on: calls of a user's code, threads, seeds, rows, files of lines, text for people."""
