"""The calculator agent learns, as `make train` shows it, in fewer steps; its own file runs beside the others.

The example takes 160 steps; `make bench-learning` trains with both algorithms in full.
"""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from .example_runs import check_folder, command, read_summary, run


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_calculator_learns(tmp_path: Path) -> None:
    run("calculator.py", "--algorithm", "grpo", "--seed", "1", "--steps", "40", cwd=tmp_path, timeout=1700)
    summary = check_folder(tmp_path / "runs" / "calculator-grpo-seed1", algorithm="grpo", seed=1, steps=40)
    assert summary["success_before"] < 0.4
    assert summary["success_after"] >= 0.5
    assert summary["interrupted"] is False


def wait_for_step(step: int, metrics: Path, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None and (not metrics.is_file() or metrics.read_text().count("\n") < step):
        time.sleep(0.1)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_an_interrupted_run_leaves_a_checkpoint_and_what_it_has_learned(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "calculator-rloo-seed2"
    output = tmp_path / "output.txt"
    with output.open("w") as stream:
        arguments = ("--algorithm", "rloo", "--seed", "2", "--steps", "46")
        process = subprocess.Popen(
            command("calculator.py", *arguments), cwd=tmp_path, stdout=stream, stderr=subprocess.STDOUT
        )
        try:
            wait_for_step(28, folder / "metrics.jsonl", process)
            process.send_signal(signal.SIGINT)
            process.wait()
        finally:
            process.kill()  # for example after pytest's timeout; an ended process stays as it is
            process.wait()
    assert process.returncode == 0, output.read_text()
    assert "a second signal quits at once" in output.read_text()

    summary = check_folder(folder, algorithm="rloo", seed=2, steps=read_summary(folder)["steps"])
    assert summary["interrupted"] is True
    assert 28 <= summary["steps"] < 46
    assert summary["success_before"] < 0.4
    assert summary["success_after"] >= 0.5
    [checkpoint] = folder.glob("checkpoint-*")
    assert checkpoint.name == f"checkpoint-{summary['steps']}"
    assert (checkpoint / "optimizer.pt").is_file()
    assert AutoModelForCausalLM.from_pretrained(checkpoint).num_parameters() < 1_000_000
