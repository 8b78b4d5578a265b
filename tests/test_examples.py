"""The examples do what their first lines promise, as programs of their own."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from gymnast.envs import Episode

from .boxes import containers_of
from .long_runs import LongRun

ROOT = Path(__file__).resolve().parents[1]
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


def command(example: str, *arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "examples" / example), *arguments]


def run(example: str, *arguments: str, cwd: Path, timeout: int = 240) -> str:
    """What an example prints."""
    done = subprocess.run(command(example, *arguments), cwd=cwd, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read_summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_folder(folder: Path, *, algorithm: str, seed: int, steps: int) -> dict[str, Any]:
    """Check that a run has left all that it promises, and return its summary."""
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

    episodes = [Episode.from_json(json.dumps(line["episode"])) for line in read_lines(folder / "episodes.jsonl")]
    assert len(episodes) % 128 == 0
    for episode in episodes[:128]:
        assert episode.trace is not None
        assert len(episode.trace.completion_ids) == len(episode.trace.mask) == len(episode.trace.logprobs)
        assert 0 < episode.trace.num_sampled < len(episode.trace.mask)
        assert episode.messages[0]["role"] == "user"
        assert episode.reward in (0.0, 1.0)

    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert model.num_parameters() < 1_000_000
    assert tokenizer.chat_template
    return summary


# What each leaves is checked on the way; RLOO has a shorter run, as `benchmarks/_learning.py` has whole ones of both.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("algorithm", "seed", "steps", "reaches"),
    [
        pytest.param("grpo", 1, 160, 0.9, marks=pytest.mark.long_run("calculator.py", "--seed", "1")),
        pytest.param(
            *("rloo", 2, 60, 0.6),
            marks=pytest.mark.long_run("calculator.py", "--algorithm", "rloo", "--seed", "2", "--steps", "60"),
        ),
    ],
)
def test_the_calculator_learns(algorithm: str, seed: int, steps: int, reaches: float, long_run: LongRun) -> None:
    assert long_run.exit_code == 0, long_run.printed
    folder = long_run.folder / "runs" / f"calculator-{algorithm}-seed{seed}"
    summary = check_folder(folder, algorithm=algorithm, seed=seed, steps=steps)
    assert summary["success_before"] < 0.5
    assert summary["success_after"] >= reaches
    assert summary["success_after_greedy"] >= reaches
    assert summary["interrupted"] is False


def test_an_interrupt_leaves_a_checkpoint_and_the_summary_so_far(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("calculator.py", "--seed", "4", "--steps", "500"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        assert process.stdout is not None
        printed: list[str] = []
        try:
            for line in process.stdout:  # the first step is reported as soon as it is over
                printed.append(line)
                if line.startswith("step 1/500"):
                    process.send_signal(signal.SIGINT)
        except BaseException:  # pytest's time-out, say
            process.kill()
            raise
    assert process.returncode == 0, "".join(printed)
    assert any("Ctrl-C again quits at once" in line for line in printed)

    folder = tmp_path / "runs" / "calculator-grpo-seed4"
    summary = check_folder(folder, algorithm="grpo", seed=4, steps=read_summary(folder)["steps"])
    assert summary["interrupted"] is True
    assert 1 <= summary["steps"] < 500
    [checkpoint] = folder.glob("checkpoint-*")
    assert checkpoint.name == f"checkpoint-{summary['steps']}"
    assert (checkpoint / "optimizer.pt").is_file()
    assert AutoModelForCausalLM.from_pretrained(checkpoint).num_parameters() < 1_000_000


def test_the_custom_environment_learns(tmp_path: Path) -> None:
    printed = run("custom_environment.py", cwd=tmp_path)
    found = re.search(r"right in (\d+)% of the games before, (\d+)% after", printed)
    assert found is not None, printed
    before, after = map(int, found.groups())
    assert before < 50
    assert after > 80


def check_code_folder(folder: Path) -> dict[str, Any]:
    """Check that a run of the code agent has left all that it promises, and return its summary."""
    summary = read_summary(folder)
    assert summary.keys() == CODE_SUMMARY
    assert summary["drift_tokens"] == 0
    assert summary["episodes"] == 128 * math.ceil(summary["steps"] / 2)  # each batch is learned from twice
    assert summary["leases"] >= summary["episodes"] + 2 * 256
    assert 1 <= summary["boxes"] <= summary["leases"]
    logged = [line for line in read_lines(folder / "metrics.jsonl") if "reward" in line]
    assert [line["step"] for line in logged] == list(range(1, summary["steps"] + 1, 2))  # those with new episodes
    assert (folder / "reward.png").read_bytes().startswith(b"\x89PNG\r\n")
    episodes = [Episode.from_json(json.dumps(line["episode"])) for line in read_lines(folder / "episodes.jsonl")]
    assert len(episodes) % 128 == 0
    calls = [call.name for episode in episodes for turn in episode.turns for call in turn.tool_calls]
    assert {"python", "final_answer"} <= set(calls)
    assert AutoModelForCausalLM.from_pretrained(folder / "model").num_parameters() < 1_000_000
    assert AutoTokenizer.from_pretrained(folder / "model").chat_template
    return summary


@pytest.mark.timeout(1800)
@pytest.mark.long_run("code_agent.py", "--seed", "1")
def test_the_code_agent_learns_and_leaves_no_container(image: str, long_run: LongRun) -> None:
    assert long_run.exit_code == 0, long_run.printed
    assert containers_of(long_run.process) == []
    summary = check_code_folder(long_run.folder / "runs" / "code-agent-grpo-seed1")
    # On a machine that stands still for seconds beside other tests a box may be given up; never more than a few.
    assert summary["failed_before"] + summary["failed_after"] <= 5, long_run.printed
    assert (summary["algorithm"], summary["seed"], summary["interrupted"]) == ("grpo", 1, False)
    assert summary["success_before"] < 0.5
    assert summary["success_after"] >= 0.8


def test_the_code_agent_needs_a_box(tmp_path: Path) -> None:
    done = subprocess.run(command("code_agent.py", "--boxes", "0"), cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--boxes must be at least 1, got 0" in done.stderr


def test_the_code_agent_needs_an_engine_and_says_so_at_once(tmp_path: Path) -> None:
    done = subprocess.run(
        command("code_agent.py"),
        cwd=tmp_path,
        env={**os.environ, "DOCKER_HOST": "unix:///nowhere"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    [said] = done.stderr.splitlines()
    assert said.startswith("error: no container engine answers at unix:///nowhere")
    assert "apt-get install docker.io" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_every_example_explains_itself(example: str, tmp_path: Path) -> None:
    first, *_ = (ROOT / "examples" / example).read_text().split('"""')[1:]
    assert f"python examples/{example}" in first
    assert "--model" in run(example, "--help", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
