"""The command `gymnast`; start reading at `main.py`, which lists the commands.

`gymnast --help` imports every file of `commands/`, so these files import at their top nothing that is slow to import.
"""
