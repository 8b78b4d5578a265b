"""The examples do what their first lines promise, as programs of their own."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_the_calculator_leaves_a_whole_run_folder(algorithm: str, tmp_path: Path) -> None:
    run("calculator.py", "--algorithm", algorithm, "--seed", "3", "--steps", "2", cwd=tmp_path)
    folder = tmp_path / "runs" / f"calculator-{algorithm}-seed3"
    summary = check_folder(folder, algorithm=algorithm, seed=3, steps=2)
    assert summary["success_before"] < 0.5
    assert summary["interrupted"] is False


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("algorithm", "seed"), [("grpo", 1), ("rloo", 2)])
def test_the_calculator_learns(algorithm: str, seed: int, tmp_path: Path) -> None:
    run("calculator.py", "--algorithm", algorithm, "--seed", str(seed), cwd=tmp_path, timeout=880)
    folder = tmp_path / "runs" / f"calculator-{algorithm}-seed{seed}"
    summary = check_folder(folder, algorithm=algorithm, seed=seed, steps=read_summary(folder)["steps"])
    assert summary["success_before"] < 0.5
    assert summary["success_after"] >= 0.9
    assert summary["success_after_greedy"] >= 0.9


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


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_every_example_explains_itself(example: str, tmp_path: Path) -> None:
    first, *_ = (ROOT / "examples" / example).read_text().split('"""')[1:]
    assert f"python examples/{example}" in first
    assert "--model" in run(example, "--help", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
