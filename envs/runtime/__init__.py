"""How a user's code is called: threads, time limits, sync and async, seeds, rows."""
