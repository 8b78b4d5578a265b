"""The files of a run folder: their names, their lines, and the way of a new or a resumed training with earlier ones.

- `metrics.jsonl`: a line for each log, `{"step": ..., "reward": ..., ...}`, with null for NaN and infinity.
- `episodes.jsonl`: a line for each recorded episode, `{"step": ..., "episode": ...}`, with the number of finished
  optimiser steps; `EpisodeLog` writes it.
- `learning.jsonl`: what the training made of these episodes; `trainer/run_log/learning_log.py` names its fields.
- `evaluations.jsonl`: a line for each recorded episode of an evaluation, `{"step": ..., "title": ..., "episode": ...}`;
  `evaluated_episodes.py` writes it. It may have `tokens`, texts of token ids.
- `images/DIGEST.png`: the pictures that episodes name, each once; the ending is that of its format.
- `evaluation.json`: the settings of an evaluation by `gymnast eval`; an evaluation is a run without training steps.
- `groups.jsonl`: the groups of each round, with `max_staleness`; `trainer/rollout/overlap/overlapped.py` writes it.
- `run.yaml`: the run that `gymnast train` was told to do, as a run file.
- `reward.png` and `summary.json`: for people. `README.md`: the model card, if the model was saved here.

Processes other than the first add their number, as in `episodes-1.jsonl`. A new training gives the files of an earlier
one other names, as in `episodes.1.jsonl`; a resumed one continues them. A killed process, or a full disk, leaves broken
lines: a reader skips them and names the first one (see `envs/runtime/line_files.py`).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...envs.runtime.line_files import parsed

RUN_FILE = "run.yaml"

EVALUATION_FILE = "evaluation.json"

IMAGES = "images"

LINE_FILES = re.compile(r"(metrics|episodes|evaluations|learning)(-\d+)?\.jsonl")
"""The files that a reader reads; not `metrics.1.jsonl`, which an earlier run left."""

logger = logging.getLogger(__name__)


def how_to_look(folder: str | Path) -> str:
    """Return the line that names the commands which show a run."""
    return f"gymnast why {folder} says why the reward is what it is, gymnast view {folder} shows the episodes"


def line_files(folder: str | Path) -> list[tuple[str, Path]]:
    """Return the kinds and paths of the files that a reader reads: episodes, evaluations, learning, metrics."""
    found = [(LINE_FILES.fullmatch(path.name), path) for path in sorted(Path(folder).iterdir())]
    return [(match[1], path) for match, path in found if match]


def find_runs(folder: Path, depth: int = 3) -> Iterator[Path]:
    """Yield the folders below a folder that hold a run, at most this deep; not hidden ones, nor checkpoints."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith((".", "checkpoint-")):
            if line_files(path):
                yield path
            if depth > 1:
                yield from find_runs(path, depth - 1)


def line_file(folder: str | Path, kind: str, suffix: str = "") -> Path:
    """Return the path of a file of lines; the suffix, such as `-1`, distinguishes the files of several processes."""
    return Path(folder, f"{kind}{suffix}.jsonl")


def move_aside(*paths: Path) -> Path:
    """Give the files of an earlier run the next free names, such as `metrics.1.jsonl`; return the first of these."""
    number = 1
    while any(_numbered(path, number).exists() for path in paths):
        number += 1
    for path in paths:
        if path.exists():
            path.rename(_numbered(path, number))
    return _numbered(paths[0], number)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def replace_lines(path: Path, lines: Sequence[str]) -> None:
    """Write these lines in place of a file. A process that is killed meanwhile leaves the old file or the new one."""
    new = path.with_name(f"{path.name}.new")
    new.write_text("".join(lines))
    new.replace(path)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file; `str.splitlines` would split at more characters, such as U+2028 in an answer."""
    if not path.exists():
        return []
    with path.open(errors="replace") as file:  # half a line may end in half a character
        return list(file)


def lines_until(step: float, path: Path) -> list[str]:
    """Return the lines of a file without those of later steps, half a last line, and broken lines.

    A warning names the first broken line.
    """
    found = parsed(path, read_lines(path), lambda line: (line, json.loads(line)["step"] <= step), logger.warning)
    return [line for line, is_kept in found if is_kept]


def keep_lines_until(step: float, path: Path) -> list[str]:
    """Apply `lines_until` to a file, and return the lines that stay."""
    kept = lines_until(step, path)
    replace_lines(path, kept)
    return kept
