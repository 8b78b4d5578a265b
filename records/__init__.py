"""What a run leaves, and what is wrong with it; without PyTorch."""

from .alarms.alarms import Alarm, find_alarms
from .files.episode_log import read_episodes
from .files.run import Run

__all__ = ["Alarm", "Run", "find_alarms", "read_episodes"]
