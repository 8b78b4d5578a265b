"""Run folders written by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gymnast.envs import Episode, EpisodeSpec, Failure, StopReason, Task, TokenTrace, ToolCallRecord, Turn, tool_call
from gymnast.records.files.episode_log import append_episodes
from gymnast.records.files.evaluated_episodes import TITLE, evaluated_head


def episode(
    *,
    group: str = "a@0",
    member: int = 0,
    reward: float | None = 0.0,
    stop: StopReason = StopReason.FINAL_ANSWER,
    text: str = "an answer",
    error: str | None = None,
    question: str = "a question",
    tokens: int = 4,
    html: str | None = None,
    row: Mapping[str, Any] | None = None,
) -> Episode:
    """An episode of one turn; with `error`, its tool call failed, else the call was its final answer."""
    outcome: Any = "ok" if error is None else "exception"
    record = ToolCallRecord(name="look", call_id=None, outcome=outcome, error=error, traceback=error and f"at {error}")
    record.ends_episode = error is None and stop is StopReason.FINAL_ANSWER
    turn = Turn(
        message={**tool_call("look", where="up"), "content": text},
        observation=[{"role": "tool", "name": "look", "content": error or "a result"}],
        num_tokens=tokens,
        tool_calls=[record],
        html=html,
    )
    trace = TokenTrace(prompt_ids=[1])
    trace.append_sampled([*range(2, 2 + tokens)], [-0.5] * tokens)
    failure = Failure(stage="step", type="OSError", message="the disk is full", traceback="Traceback ...")
    return Episode(
        spec=EpisodeSpec(task=Task(id=group.partition("@")[0], row=row or {}), group=group, member=member),
        prompt=[{"role": "user", "content": question}],
        turns=[turn],
        stop=stop,
        reward=reward,
        reward_parts={"environment": reward},
        failure=failure if stop is StopReason.FAILED else None,
        traces=[trace],
        seconds=1.0,
    )


def write_run(
    folder: Path,
    episodes: Iterable[tuple[int, Episode]] = (),
    metrics: Iterable[Mapping[str, Any]] = (),
    learning: Iterable[Mapping[str, Any]] = (),
    evaluations: Iterable[tuple[int, Episode]] = (),
    title: str = TITLE,
) -> Path:
    """Append these to the files of a run folder; steps of episodes count from 0, as a training writes them."""
    folder.mkdir(exist_ok=True, parents=True)
    for name, pairs in (("episodes", episodes), ("evaluations", evaluations)):
        for step, pair in pairs:
            head = {"step": step} if name == "episodes" else evaluated_head(step=step, title=title)
            append_episodes(folder / f"{name}.jsonl", [head], [pair])
    lines = {
        "metrics.jsonl": [json.dumps(line) for line in metrics],
        "learning.jsonl": [json.dumps(line) for line in learning],
    }
    for name, texts in lines.items():
        with (folder / name).open("a") as file:
            file.writelines(f"{text}\n" for text in texts)
    return folder
