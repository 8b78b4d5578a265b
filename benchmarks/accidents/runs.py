"""Trains the arms of the accidents, each once: a finished run leaves a file with its curve."""

from __future__ import annotations

import json
import logging
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import torch

from . import failures, retokenised, stale
from .accident import Accident, Setting

ACCIDENTS: dict[str, Accident] = {
    "failures": failures.ACCIDENT,
    "retokenised": retokenised.ACCIDENT,
    "stale": stale.ACCIDENT,
}


@dataclass(kw_only=True, frozen=True)
class Run:
    """One training."""

    accident: str
    arm: str
    seed: int
    warm_up_steps: int
    steps: int

    def path(self, folder: Path) -> Path:
        place = list(ACCIDENTS[self.accident].arms).index(self.arm)
        return folder / f"{self.accident}-{('wrong', 'right')[place]}-seed{self.seed}-steps{self.steps}.json"


def train(run: Run, path: Path) -> None:
    """Train, and write the curve; in a process of its own."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # of failed episodes, and of groups whose rewards are all equal
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(seed=run.seed, warm_up_steps=run.warm_up_steps, steps=run.steps, folder=Path(folder))
        curve = ACCIDENTS[run.accident].train(run.arm, setting)
    result = {**vars(run), "processor_seconds": round(time.process_time() - started, 1), "curve": curve}
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(result) + "\n")
    unfinished.rename(path)


def train_all(runs: Sequence[Run], folder: Path, workers: int) -> None:
    """Train those that are not finished."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [run for run in runs if not run.path(folder).exists()]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(train, run, run.path(folder)): run for run in missing}
        for future in as_completed(futures):
            future.result()
            run = futures[future]
            print(f"{run.accident}, {run.arm}, seed {run.seed}: done", flush=True)
