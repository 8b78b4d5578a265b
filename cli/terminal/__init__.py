"""Text on the terminal, JSON for programs, exit codes, and options that several commands share."""
