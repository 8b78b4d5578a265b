"""The loop of transformers: its hooks, interruptions, checkpoints, stalls, updates that are not finite."""
