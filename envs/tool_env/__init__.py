"""`ToolEnv`, an environment made of tools; start reading at `tool_env.py`."""
