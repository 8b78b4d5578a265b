"""Trajectories in the Agent Trajectory Interchange Format (ATIF) of Harbor, with exact tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gymnast import __version__

from ...envs.core import Message
from ...envs.episode import Episode, Turn
from ...envs.images import Image, images_of
from ...envs.runtime.message_text import named_text
from ...records.files.episodes import EpisodeRow
from .turns import Played, TurnTokens, calls_of, content_of, origin_of, others_of, results_of, turn_tokens

SCHEMA = "ATIF-v1.8"
IMAGES = "images"  # the folder of the pictures, beside the trajectories

SOURCES = {"system": "system", "developer": "system", "assistant": "agent"}  # any other role: user


def write_trajectories(folder: Path, played: Played, *, model: str) -> None:
    """Write a file for each of these episodes, and each of their pictures once."""
    folder.mkdir(parents=True, exist_ok=True)
    for row, episode in played:
        parts = [f"{row.step:05d}", row.evaluation, episode.spec.group, str(episode.spec.member)]
        name = re.sub(r"[^\w@.-]", "_", "-".join(filter(None, parts)))
        text = json.dumps(_trajectory(episode, row, model), default=str)
        (folder / f"{name}.json").write_text(text + "\n")
        for image in images_of(episode.messages):
            image.save(folder / IMAGES)


def _shown(image: Image) -> dict[str, Any]:
    return {"type": "image", "source": {"media_type": image.media_type, "path": f"{IMAGES}/{image.file_name}"}}


def _trajectory(episode: Episode, row: EpisodeRow, model: str) -> dict[str, Any]:
    steps = [{"step_id": number, **fields} for number, fields in enumerate(_steps(episode), 1)]
    turns = episode.turns
    return {
        "schema_version": SCHEMA,
        "session_id": f"{origin_of(row)}:{episode.spec.group}:{episode.spec.member}",
        "agent": {"name": "gymnast", "version": __version__, "model_name": model, "tool_definitions": episode.tools},
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": sum(turn.num_prompt_tokens for turn in turns),
            "total_completion_tokens": sum(turn.num_tokens for turn in turns),
            "total_cached_tokens": sum(turn.num_cached_tokens for turn in turns),
            "total_steps": len(steps),
        },
        "extra": _facts(episode, row),
    }


def _facts(episode: Episode, row: EpisodeRow) -> dict[str, Any]:
    """Return the facts that ATIF has no field for."""
    return {
        "training_step": row.step,
        "evaluation": row.evaluation,
        "task": episode.spec.task.id,
        "group": episode.spec.group,
        "member": episode.spec.member,
        "reward": episode.reward,
        "reward_parts": episode.reward_parts,
        "stop": episode.stop.value,
        "failure": None if episode.failure is None else str(episode.failure),
        "metrics": episode.metrics,
    }


def _steps(episode: Episode) -> Iterator[dict[str, Any]]:
    for message in episode.prompt:
        yield _message(message)
    for number, (turn, tokens) in enumerate(zip(episode.turns, turn_tokens(episode), strict=True)):
        yield {
            "timestamp": datetime.fromtimestamp(episode.began + turn.began, UTC).isoformat(),
            **_answer(turn, number),
            "metrics": _metrics(turn, tokens),
            "extra": {"reward": turn.reward},
        }
        for message in others_of(turn):
            yield _message(message)


def _message(message: Message) -> dict[str, Any]:
    return {"source": SOURCES.get(message["role"], "user"), "message": content_of(message, _shown)}


def _answer(turn: Turn, number: int) -> dict[str, Any]:
    step: dict[str, Any] = {"source": "agent", "message": named_text(turn.message)}
    if reasoning := turn.message.get("reasoning_content"):
        step["reasoning_content"] = reasoning
    if calls := calls_of(turn.message, number):
        step["tool_calls"] = [
            {"tool_call_id": call, "function_name": name, "arguments": arguments} for call, name, arguments in calls
        ]
    results = [_result(call, message) for call, message, _ in results_of(turn, number)]
    return step | ({"observation": {"results": results}} if results else {})


def _result(call: str | None, message: Message) -> dict[str, Any]:
    return ({} if call is None else {"source_call_id": call}) | {"content": content_of(message, _shown)}


def _metrics(turn: Turn, tokens: TurnTokens | None) -> Mapping[str, Any]:
    counts = {
        "prompt_tokens": turn.num_prompt_tokens,
        "completion_tokens": turn.num_tokens,
        "cached_tokens": turn.num_cached_tokens,
    }
    if tokens is None:
        return counts
    return counts | {
        "prompt_token_ids": tokens.prompt_ids,
        "completion_token_ids": tokens.completion_ids,
        "logprobs": tokens.logprobs,
    }
