"""Runs examples as programs and checks the folders they leave."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

from gymnast.envs import Episode, Image
from gymnast.records import read_episodes

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = {
    "algorithm",
    "drift_tokens",
    "episodes",
    "interrupted",
    "seconds",
    "seed",
    "steps",
    "success_after",
    "success_after_greedy",
    "success_before",
    "success_before_greedy",
    "tool_calls",
    "versions",
}


def command(example: str, *arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "examples" / example), *arguments]


def run(example: str, *arguments: str, cwd: Path, timeout: int = 240) -> str:
    """Run an example; return its output."""
    done = subprocess.run(command(example, *arguments), cwd=cwd, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def names_of(example: str) -> dict[str, Any]:
    """Return what the module of an example defines."""
    return runpy.run_path(str(ROOT / "examples" / example))


def pictures(episode: Episode) -> list[Image]:
    """Return the pictures in results of tools."""
    contents: list[Any] = [message.get("content") for message in episode.messages if message["role"] == "tool"]
    return [part["image"] for content in contents if isinstance(content, list) for part in content]


def read_summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_folder(folder: Path, *, algorithm: str, seed: int, steps: int) -> dict[str, Any]:
    """Check that a run has left all promised files, and return its summary."""
    summary = read_summary(folder)
    assert summary.keys() == SUMMARY
    assert (summary["algorithm"], summary["seed"], summary["steps"]) == (algorithm, seed, steps)
    assert summary["drift_tokens"] == 0
    assert summary["episodes"] == 128 * steps
    assert summary["tool_calls"] > 0
    assert summary["seconds"] > 0
    assert summary["versions"].keys() >= {"python", "torch", "transformers"}
    for name in ("success_before", "success_after", "success_before_greedy", "success_after_greedy"):
        assert 0 <= summary[name] <= 1

    logged = [line for line in read_lines(folder / "metrics.jsonl") if "reward" in line]
    assert [line["step"] for line in logged] == list(range(1, steps + 1))
    assert all(line["tokens/drift"] == 0 for line in logged)
    assert (folder / "reward.png").read_bytes().startswith(b"\x89PNG\r\n")

    episodes = [episode for _, episode in read_episodes(folder / "episodes.jsonl")]
    assert len(episodes) % 128 == 0
    for episode in episodes[:128]:
        [trace] = episode.traces
        assert len(trace.completion_ids) == len(trace.mask) == len(trace.logprobs)
        assert 0 < trace.num_sampled < len(trace.mask)
        assert episode.messages[0]["role"] == "user"
        assert episode.reward in (0.0, 1.0)

    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert model.num_parameters() < 1_000_000
    assert tokenizer.chat_template
    return summary
