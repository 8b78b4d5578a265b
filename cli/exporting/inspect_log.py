"""The episodes of a run as a log of Inspect (inspect_ai), which `inspect view` opens."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...envs.core import Message
from ...envs.episode import Episode, ToolCallRecord
from ...envs.extras import needs_extra
from ...envs.images import Image
from ...envs.runtime.message_text import named_text, written_arguments
from ...records.files.episodes import EpisodeRow
from ..terminal.exits import CommandError
from .turns import Played, calls_of, content_of, origin_of, others_of, results_of, turn_tokens

ROLES = {"developer": "system"}  # of a message; Inspect has no such role
ERRORS = {"timeout": "timeout", "bad_arguments": "parsing", "not_run": "limit"}  # of a tool; others are "unknown"


def write_log(path: Path, played: Played, *, name: str, model: str) -> None:
    """Write the log; a path that ends with `.json` gives JSON, `.eval` Inspect's compressed form."""
    if path.suffix not in (".eval", ".json"):
        raise CommandError(f"a log of Inspect is a file that ends with .eval or .json, got {path}")
    with needs_extra("inspect", "--to inspect"):
        inspect_log = importlib.import_module("inspect_ai.log")
    log = inspect_log.EvalLog.model_validate(_log(played, name, model))
    path.parent.mkdir(parents=True, exist_ok=True)
    inspect_log.write_eval_log(log, str(path))


def _log(played: Played, name: str, model: str) -> dict[str, Any]:
    """Return the fields of an `EvalLog`; `inspect_ai.log` describes them."""
    rewards = [episode.reward for _, episode in played if episode.reward is not None]
    mean = {"mean": {"name": "mean", "value": sum(rewards) / len(rewards)}} if rewards else {}
    began = _time(min(episode.began for _, episode in played))
    ended = _time(max(episode.began + episode.seconds for _, episode in played))
    return {
        "status": "success",
        "eval": {
            "created": began,
            "task": name,
            "dataset": {"name": name, "samples": len(played)},
            "model": model,
            "config": {},
        },
        "results": {
            "total_samples": len(played),
            "completed_samples": len(rewards),
            "scores": [{"name": "reward", "scorer": "reward", "metrics": mean}],
        },
        "stats": {"started_at": began, "completed_at": ended},
        "samples": [_sample(row, episode, model) for row, episode in played],
    }


def _sample(row: EpisodeRow, episode: Episode, model: str) -> dict[str, Any]:
    failure = episode.failure
    error = failure and {"message": str(failure), "traceback": failure.traceback, "traceback_ansi": failure.traceback}
    values = {"reward": episode.reward, **{f"reward/{name}": part for name, part in episode.reward_parts.items()}}
    prompt = [_message(message) for message in episode.prompt]
    last = named_text(episode.turns[-1].message) if episode.turns else ""
    return {
        "id": f"{origin_of(row)}: {episode.spec.group}",
        "epoch": episode.spec.member + 1,
        "input": prompt,
        "target": written_arguments(episode.untold) if episode.expected is None else episode.expected,
        "messages": [*prompt, *_turns(episode)],
        "output": {"model": model, "choices": [{"message": {"role": "assistant", "content": last}}]},
        "scores": {
            name: {"value": value, "answer": episode.given} for name, value in values.items() if value is not None
        },
        "metadata": {
            "training_step": row.step,
            "evaluation": row.evaluation,
            "task": episode.spec.task.id,
            "stop": episode.stop.value,
            "metrics": episode.metrics,
            "report": episode.report,
        },
        "error": error,
        "started_at": _time(episode.began),
        "completed_at": _time(episode.began + episode.seconds),
        "total_time": episode.seconds,
        "turn_count": len(episode.turns),
    }


def _turns(episode: Episode) -> Iterator[dict[str, Any]]:
    """Yield the messages after the prompt; those of the model have their exact tokens as metadata."""
    for number, (turn, tokens) in enumerate(zip(episode.turns, turn_tokens(episode), strict=True)):
        text, reasoning = named_text(turn.message), turn.message.get("reasoning_content")
        thought = {"type": "reasoning", "reasoning": reasoning}
        calls = calls_of(turn.message, number)
        yield {
            "role": "assistant",
            "content": [thought, {"type": "text", "text": text}] if reasoning else text,
            "tool_calls": [{"id": call, "function": name, "arguments": given} for call, name, given in calls] or None,
            "metadata": {"reward": turn.reward, "tokens": turn.num_tokens, **(tokens._asdict() if tokens else {})},
        }
        for call, message, record in results_of(turn, number):
            name = None if record is None else record.name
            result = {"role": "tool", "content": content_of(message, _shown), "tool_call_id": call, "function": name}
            yield result | {"error": _error(record)}
        yield from map(_message, others_of(turn))


def _message(message: Message) -> dict[str, Any]:
    return {"role": ROLES.get(message["role"], message["role"]), "content": content_of(message, _shown)}


def _shown(image: Image) -> dict[str, Any]:
    return {"type": "image", "image": image.data_uri}


def _error(record: ToolCallRecord | None) -> dict[str, Any] | None:
    if record is None or record.outcome == "ok":
        return None
    return {"type": ERRORS.get(record.outcome, "unknown"), "message": record.error or record.outcome}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
