"""The index of a page: everything that a list, a filter or a curve shows."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...envs.runtime.verdict import EXPECTED
from ...records.alarms.why import explain
from ...records.evaluations.pass_at_k import pass_at_each_k
from ...records.files.episodes import EpisodeRow
from ...records.files.run import Run

CHUNK = 32
"""Episodes that are fetched together."""

CURVES = {
    "frac_reward_zero_std": "groups without spread",
    "completions/mean_length": "tokens per episode",
    "completions/clipped_ratio": "truncated",
    "tools/failure_frequency": "failing tool calls",
    "episodes/failed": "failed episodes",
    "entropy": "entropy",
    "sampling/sampling_logp_difference/mean": "generator–trainer gap",
    "clip_ratio/region_mean": "clipped tokens",
    "kl": "KL from the reference",
    "grad_norm": "gradient norm",
    "time/rollout": "seconds of a rollout",
}
"""Metrics of training steps that are drawn after those of the environment, and their titles."""

OF_ENVIRONMENT = re.compile(r"(environments/.+/)?environment/.+")
"""Metrics that an environment reports itself: of all episodes, and of one of several environments."""

FIGURE = re.compile(r"reward|pass@\d+")

EVALUATION_CURVES = ("reward", "pass@1")
"""Metrics of evaluations that are drawn."""


def index_of(run: Run) -> dict[str, Any]:
    """Return the index of a run."""
    kind = "evaluation" if run.is_evaluation else "training"
    titles = [row.evaluation or kind for row in run.episodes]
    first = [kind] if not titles or not run.is_evaluation else []  # a training's rounds, also while none is recorded
    parts = [*dict.fromkeys(first + titles)]
    explained = explain(run)
    return {
        "title": run.folder.resolve().name,
        "kind": kind,
        "asked": run.asked,
        "figures": figures_of(run) if run.is_evaluation else [],
        "changes": run.changes,
        "chunk": CHUNK,
        "episodes": [
            _brief(row) | {"part": parts.index(title)} for row, title in zip(run.episodes, titles, strict=True)
        ],
        "parts": parts,
        "steps": [line["step"] for line in run.metrics],
        "curves": _curves(run),
        "alarms": [asdict(alarm) for alarm in explained.alarms],
        "reason": explained.reason,
        "telling": explained.episode,
        "expected": EXPECTED,
        "settings": run.settings,
        "tokens": run.tokens,
    }


def _brief(row: EpisodeRow) -> dict[str, Any]:
    """Return the facts of an episode that the page shows without the episode itself."""
    return {
        "step": row.step,
        "trained": row.evaluation is None,
        "group": row.group,
        "task": row.task,
        "question": row.question,
        "member": row.member,
        "reward": short(row.reward),
        "success": short(row.success),
        "stop": row.stop,
        "tokens": row.tokens,
        "turns": row.turns,
        "seconds": short(row.seconds),
        "tools": [*dict.fromkeys(row.tools)],
        "errors": len(row.errors),
        "failed": row.failure is not None,
        "truncated": row.is_truncated,
        "vote": row.vote,
        "pull": short(row.pull),
        "cut": row.cut,
    }


def figures_of(run: Run) -> list[dict[str, Any]]:
    """Return reward and pass@k of the latest evaluation of each data set, with their 95 % intervals.

    Those of an evaluation that is not over yet are of the episodes that it has.
    """
    latest = {title: logs[-1][1].metrics for title, logs in run.evaluations.items()}
    if not latest and run.is_evaluation:
        titles = dict.fromkeys(row.evaluation or "" for row in run.episodes)
        latest = {title: _so_far([row for row in run.episodes if row.evaluation == title]) for title in titles}
    return [
        {
            "name": name + title.removeprefix("evaluation"),
            "value": short(value),
            "low": short(metrics.get(f"{name}/low")),
            "high": short(metrics.get(f"{name}/high")),
        }
        for title, metrics in latest.items()
        for name, value in metrics.items()
        if FIGURE.fullmatch(name)
    ]


def _so_far(rows: Sequence[EpisodeRow]) -> dict[str, float]:
    """Return reward and pass@k of these episodes as `summary_of` does, from what a row has."""
    rewards, outcomes = defaultdict[str, list[float]](list), defaultdict[str, list[bool]](list)
    for row in rows:
        if row.failure is None and row.reward is not None:
            rewards[row.group].append(row.reward)
        if row.failure is None and not row.is_overlong:
            outcomes[row.group].append((row.success or 0.0) >= 1)
    means = [sum(values) / len(values) for values in rewards.values()]
    metrics = {"reward": sum(means) / len(means)} if means else {}
    knows_success = any(row.success is not None for row in rows)
    return metrics | (dict(pass_at_each_k([*outcomes.values()])) if knows_success else {})


def _curves(run: Run) -> list[dict[str, Any]]:
    """Return the curves that have a value: the reward, metrics of environments, evaluations, and the other metrics.

    Evaluations have steps of their own.
    """
    known = {name for line in run.metrics for name in line}
    own = sorted(filter(OF_ENVIRONMENT.fullmatch, known), key=lambda name: ("success" not in name, name))
    titles = {"reward": "reward"} | {name: _title(name) for name in own} | CURVES
    training = [
        {"name": name, "title": title, "values": [short(line.get(name)) for line in run.metrics]}
        for name, title in titles.items()
        if name in known
    ]
    evaluations = [
        {
            "name": f"{title}/{name}",
            "title": f"{name}, {title}",
            "steps": [step for step, _ in logs],
            "values": [short(log.metrics.get(name)) for _, log in logs],
        }
        for title, logs in run.evaluations.items()
        for name in EVALUATION_CURVES
        if any(log.metrics.get(name) is not None for _, log in logs)
    ]
    first = sum(name in known for name in ("reward", *own))
    return training[:first] + evaluations + training[first:]


def _title(name: str) -> str:
    """Return e.g. `success` or, of one of several environments, `success, sums`."""
    place, _, metric = name.rpartition("environment/")
    environment = place.removeprefix("environments/").rstrip("/")
    return f"{metric}, {environment}" if environment else metric


def short(value: float | None) -> float | None:
    """Return the value with five digits; None if JSON has no such number."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.5g}")


def to_json(value: Any) -> str:
    """Return JSON that may stand in a `<script>` element: no `<` can end it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
