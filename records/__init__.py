"""What a run leaves, and what is wrong with it; without PyTorch."""

from .alarms.alarms import Alarm, find_alarms
from .alarms.why import why_lines
from .evaluations.comparison import compare
from .evaluations.evaluation import Evaluation
from .evaluations.summary import summary_of
from .files.episode_log import read_episodes
from .files.run import Run

__all__ = ["Alarm", "Evaluation", "Run", "compare", "find_alarms", "read_episodes", "summary_of", "why_lines"]
