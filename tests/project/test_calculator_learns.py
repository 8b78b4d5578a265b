"""The calculator agent learns, as `make train` shows it, in fewer steps; its own file runs beside the others.

The example takes 160 steps; `benchmarks/learning/calculator.py` trains with both algorithms in full.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from .example_runs import check_folder, command, read_summary, run


@pytest.mark.timeout(1800)
def test_the_calculator_learns(tmp_path: Path) -> None:
    run("calculator.py", "--algorithm", "grpo", "--seed", "1", "--steps", "40", cwd=tmp_path, timeout=1700)
    summary = check_folder(tmp_path / "runs" / "calculator-grpo-seed1", algorithm="grpo", seed=1, steps=40)
    assert summary["success_before"] < 0.4
    assert summary["success_after"] >= 0.5
    assert summary["interrupted"] is False


@pytest.mark.timeout(1800)
def test_an_interrupted_run_leaves_a_checkpoint_and_what_it_has_learned(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("calculator.py", "--algorithm", "rloo", "--seed", "2", "--steps", "46"),
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
            for line in process.stdout:  # a step is reported as soon as it is over
                printed.append(line)
                if line.startswith("step 28/46"):
                    process.send_signal(signal.SIGINT)
        except BaseException:  # for example pytest's timeout
            process.kill()
            raise
    assert process.returncode == 0, "".join(printed)
    assert any("a second signal quits at once" in line for line in printed)

    folder = tmp_path / "runs" / "calculator-rloo-seed2"
    summary = check_folder(folder, algorithm="rloo", seed=2, steps=read_summary(folder)["steps"])
    assert summary["interrupted"] is True
    assert 28 <= summary["steps"] < 46
    assert summary["success_before"] < 0.4
    assert summary["success_after"] >= 0.5
    [checkpoint] = folder.glob("checkpoint-*")
    assert checkpoint.name == f"checkpoint-{summary['steps']}"
    assert (checkpoint / "optimizer.pt").is_file()
    assert AutoModelForCausalLM.from_pretrained(checkpoint).num_parameters() < 1_000_000
