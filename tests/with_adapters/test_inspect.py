"""`gymnast export --to inspect` writes logs that Inspect itself reads, and that its viewer takes."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gymnast.cli.main import main
from gymnast.envs import StopReason

from ..cli.made_runs import episode, write_run
from ..envs.pictures import picture

SEEN = picture()
log: Any = importlib.import_module("inspect_ai.log")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    episodes = [
        (0, episode(member=0, reward=1.0, row={"answer": "up"})),
        (0, episode(member=1, reward=0.0, error="no lamp", row={"lamp": None})),
        (2, episode(member=0, reward=None, stop=StopReason.FAILED)),
    ]
    episodes[1][1].turns[0].message["reasoning_content"] = "hmm"
    episodes[0][1].turns[0].observation[0]["content"] = [
        {"type": "text", "text": "a result"},
        {"type": "image", "image": SEEN},
    ]
    folder = write_run(tmp_path / "made", episodes)
    (folder / "run.yaml").write_text("environment: e.py:E\nmodel: tiny\n")
    return folder


@pytest.mark.parametrize("name", ["run.eval", "run.json"])
def test_inspect_reads_the_episodes(name: str, made: Path, tmp_path: Path) -> None:
    assert main(["export", str(made), "--to", "inspect", "-o", str(tmp_path / name)]) == 0
    read = log.read_eval_log(str(tmp_path / name), resolve_attachments=True)
    assert (read.status, read.eval.task, read.eval.model) == ("success", "made", "tiny")
    assert (read.results.total_samples, read.results.completed_samples) == (3, 2)
    assert read.results.scores[0].metrics["mean"].value == 0.5
    seconds = [(sample.started_at, sample.completed_at) for sample in read.samples]
    assert (read.stats.started_at, read.stats.completed_at) == (min(seconds)[0], max(seconds, key=lambda s: s[1])[1])
    by_name = {(sample.id, sample.epoch): sample for sample in read.samples}
    right, wrong, failed = (by_name[name] for name in (("1: a@0", 1), ("1: a@0", 2), ("3: a@0", 1)))
    assert right.scores["reward"].value == 1.0
    assert (right.target, right.scores["reward"].answer) == ("up", "up")
    assert (wrong.target, wrong.scores["reward"].answer) == ("lamp=null", "an answer")
    assert [message.role for message in right.messages] == ["user", "assistant", "tool"]
    _, answer, result = right.messages
    assert (answer.text, answer.tool_calls[0].function, answer.tool_calls[0].arguments) == (
        "an answer",
        "look",
        {"where": "up"},
    )
    assert answer.metadata["completion_ids"] == [2, 3, 4, 5]
    assert answer.metadata["prompt_ids"] == [1]
    assert answer.metadata["logprobs"] == [-0.5] * 4
    assert (result.tool_call_id, result.text, result.error) == (answer.tool_calls[0].id, "a result", None)
    assert result.content[1].image == SEEN.data_uri
    assert (wrong.messages[2].error.message, wrong.messages[1].content[0].reasoning) == ("no lamp", "hmm")
    assert failed.error.message == "step: OSError: the disk is full"
    assert "reward" not in failed.scores
    assert failed.metadata["training_step"] == 3


def test_the_viewer_of_inspect_takes_the_log(made: Path, tmp_path: Path) -> None:
    assert main(["export", str(made), "--to", "inspect"]) == 0
    bundle = tmp_path / "bundle"
    command = [
        sys.executable,
        "-m",
        "inspect_ai",
        "view",
        "bundle",
        "--log-dir",
        str(made),
        "--output-dir",
        str(bundle),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert (bundle / "index.html").exists()
    assert [path.name for path in (bundle / "logs").glob("*.eval")] == ["run.eval"]
