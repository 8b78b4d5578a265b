"""Whole trainings with old samples, with and without a correction: each finished run leaves a file with its result.

- `calculator`: examples/calculator.py; the result is its success on held-out tasks.
- `questions`: the task of benchmarks/accidents/stale.py, chosen so that old samples mislead; the result is the mean
  reward of the last steps.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from rich.console import Console

from gymnast.trainer import CORRECTIONS

from ..accidents.accident import Setting
from ..accidents.stale import ACCIDENT, questions_trainer

ROOT = Path(__file__).resolve().parents[2]
STEPS_AT_END = 10  # the result of `questions` is a mean over these


@dataclass(kw_only=True, frozen=True)
class Run:
    """One training."""

    task: str
    max_staleness: int
    corrected: bool
    seed: int
    steps: int

    def path(self, folder: Path) -> Path:
        correction = "corrected" if self.corrected else "uncorrected"
        return folder / f"{self.task}-{self.max_staleness}-{correction}-seed{self.seed}-steps{self.steps}.json"


def calculator(run: Run, folder: Path) -> float:
    spec = importlib.util.spec_from_file_location("calculator", ROOT / "examples" / "calculator.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    arguments = argparse.Namespace(
        algorithm="grpo",
        seed=run.seed,
        steps=run.steps,
        max_staleness=run.max_staleness,
        resume=None,
        hosts=[],
        model=None,
        output_dir=folder,
        record_run=False,
    )
    example.run(arguments, Console(quiet=True))
    return json.loads((folder / f"calculator-grpo-seed{run.seed}" / "summary.json").read_text())["success_after"]


def questions(run: Run, folder: Path) -> float:
    setting = Setting(seed=run.seed, warm_up_steps=ACCIDENT.warm_up_steps, steps=run.steps, folder=folder)
    trainer = questions_trainer(setting, max_staleness=run.max_staleness)
    trainer.train()
    return fmean(trainer.curve[-STEPS_AT_END:])


TASKS: dict[str, tuple[Callable[[Run, Path], float], int]] = {
    "calculator": (calculator, 160),
    "questions": (questions, 50),
}
"""Each task with its number of steps."""


def train(run: Run, path: Path) -> None:
    """Train, and write the result; in a process of its own."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    if not run.corrected:
        CORRECTIONS["tis"] = CORRECTIONS["none"]  # gymnast itself refuses old samples without a correction
    with tempfile.TemporaryDirectory() as folder:
        result = TASKS[run.task][0](run, Path(folder))
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps({**vars(run), "result": round(result, 4)}) + "\n")
    unfinished.rename(path)


def train_all(runs: Sequence[Run], folder: Path, workers: int) -> None:
    """Train those that are not finished."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [run for run in runs if not run.path(folder).exists()]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {pool.submit(train, run, run.path(folder)): run for run in missing}
        for future in as_completed(futures):
            future.result()
            print(f"{futures[future]}: done", flush=True)
