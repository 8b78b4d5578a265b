"""The calculator agent learns, as `make train` shows it, in fewer steps; its own file runs beside the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from .example_runs import check_folder, run


# Shorter runs than the example's 160 steps; `benchmarks/learning/calculator.py` runs both in full.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("algorithm", "seed", "steps", "reaches"), [("grpo", 1, 56, 0.6), ("rloo", 2, 46, 0.65)], ids=["grpo", "rloo"]
)
def test_the_calculator_learns(algorithm: str, seed: int, steps: int, reaches: float, tmp_path: Path) -> None:
    arguments = ["--algorithm", algorithm, "--seed", str(seed), "--steps", str(steps)]
    run("calculator.py", *arguments, cwd=tmp_path, timeout=1700)
    folder = tmp_path / "runs" / f"calculator-{algorithm}-seed{seed}"
    summary = check_folder(folder, algorithm=algorithm, seed=seed, steps=steps)
    assert summary["success_before"] < 0.5
    assert summary["success_after"] >= reaches
    assert summary["success_after_greedy"] >= reaches
    assert summary["interrupted"] is False
