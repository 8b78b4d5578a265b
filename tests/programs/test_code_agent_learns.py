"""The code agent learns, as `make train-code` shows it, in fewer steps; its own file runs beside the others."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from gymnast.records import read_episodes

from ..sandbox.boxes import containers_of
from .example_runs import command, read_lines, read_summary

CODE_SUMMARY = {
    "algorithm",
    "boxes",
    "drift_tokens",
    "episodes",
    "failed_after",
    "failed_before",
    "interrupted",
    "leases",
    "seconds",
    "seed",
    "steps",
    "success_after",
    "success_before",
}


def check_code_folder(folder: Path) -> dict[str, Any]:
    """Check that a run of the code agent has left all promised files, and return its summary."""
    summary = read_summary(folder)
    assert summary.keys() == CODE_SUMMARY
    assert summary["drift_tokens"] == 0
    assert summary["episodes"] == 128 * math.ceil(summary["steps"] / 2)  # each batch is learned from twice
    assert summary["leases"] >= summary["episodes"] + 2 * 256
    assert 1 <= summary["boxes"] <= summary["leases"]
    logged = [line for line in read_lines(folder / "metrics.jsonl") if "reward" in line]
    assert [line["step"] for line in logged] == list(range(1, summary["steps"] + 1, 2))  # only steps with new episodes
    assert (folder / "reward.png").read_bytes().startswith(b"\x89PNG\r\n")
    episodes = [episode for _, episode in read_episodes(folder / "episodes.jsonl")]
    assert len(episodes) % 128 == 0
    calls = [call.name for episode in episodes for call in episode.tool_calls]
    assert {"python", "read", "final_answer"} <= set(calls)
    assert AutoModelForCausalLM.from_pretrained(folder / "model").num_parameters() < 1_000_000
    assert AutoTokenizer.from_pretrained(folder / "model").chat_template
    return summary


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_code_agent_learns_and_leaves_no_container(image: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        command("code_agent.py", "--seed", "1", "--steps", "24"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=1700)
        finally:
            process.kill()
    assert process.returncode == 0, printed
    assert containers_of(process.pid) == []
    summary = check_code_folder(tmp_path / "runs" / "code-agent-grpo-seed1")
    # On a machine that stalls for seconds beside other tests, a few boxes may be lost.
    assert summary["failed_before"] + summary["failed_after"] <= 5, printed
    assert (summary["algorithm"], summary["seed"], summary["interrupted"]) == ("grpo", 1, False)
    assert summary["success_before"] < 0.45
    assert summary["success_after"] >= 0.52
