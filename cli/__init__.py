"""The command `gymnast`; start reading at `main.py`, which lists the commands.

A command is a function in a file of its own. The files import at their top nothing that is slow to import, since
`gymnast --help` imports all of them: a command imports what it needs when it runs.
"""
