"""The checks of `gymnast check`: each plays some episodes, and gives a verdict with one line of advice.

- `subject.py`: the environment in question, and the playing of episodes for all checks.
- `agents.py`: the scripted agents.
- `episodes.py`, `tools.py`, `rewards.py`, `leaks.py`: the checks of an environment.
- `model.py`: the checks of a model with it.
- `catalogue.py`: all of them, in order.
- `boxes.py`: the checks of `gymnast sandbox doctor`.
"""
