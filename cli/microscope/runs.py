"""The index of several runs: a line for each, with the curve of its reward, its success and its alarms."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ...records.alarms.why import explain
from ...records.files.run import Run
from ...records.files.run_files import find_runs, line_files
from ...records.metrics.missing_metrics import SUCCESS
from .index import figures_of, short

POINTS = 120
"""Points of a curve at most."""


class Runs:
    """The runs below a folder; `read` adds what was written since, and new runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: dict[str, Run] = {}  # by the path below the folder, the latest first
        self.read()

    def read(self) -> None:
        """Read the new lines of all runs."""
        paths = sorted(find_runs(self.folder), key=_written, reverse=True)
        known, self.found = self.found, {}
        for path in paths:
            name = path.relative_to(self.folder).as_posix()
            run = self.found[name] = known.get(name) or Run(path)
            if name in known:
                run.read()

    @property
    def changes(self) -> str:
        """Another text whenever something was read."""
        return str(hash(tuple((name, run.changes) for name, run in self.found.items())))

    def index(self) -> dict[str, Any]:
        """Return what the page shows."""
        runs = [{"name": name, **_facts(run)} for name, run in self.found.items()]
        return {"title": self.folder.resolve().name, "changes": self.changes, "runs": runs}


def _written(folder: Path) -> float:
    return max(path.stat().st_mtime for _, path in line_files(folder))


def _facts(run: Run) -> dict[str, Any]:
    logs, explained = run.metrics, explain(run)
    if run.is_evaluation:
        logs = [log.metrics for evaluated in run.evaluations.values() for _, log in evaluated]
    successes = [log[SUCCESS] for log in run.metrics if SUCCESS in log][-1:]
    success = [{"name": "success", "value": short(value), "low": None, "high": None} for value in successes]
    rewards = [short(log["reward"]) for log in logs if math.isfinite(log.get("reward", math.nan))]
    return {
        "kind": "evaluation" if run.is_evaluation else "training",
        "steps": run.metrics[-1]["step"] if run.metrics else 0,
        "episodes": len(run.episodes),
        "curve": [rewards[round(at * (len(rewards) - 1) / (POINTS - 1))] for at in range(POINTS)]
        if len(rewards) > POINTS
        else rewards,
        "success": (success + [figure for figure in figures_of(run) if figure["name"].startswith("pass@1")])[:1],
        "alarms": len(explained.alarms),
        "reason": explained.reason,
        "written": _written(run.folder),
    }
