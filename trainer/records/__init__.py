"""What a run leaves behind: metrics, episodes, progress."""
