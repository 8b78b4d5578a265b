"""Environments with tools: what a tool is, how its calls are checked and run, and the `ToolEnv` that holds them."""
