"""The benchmarks run. The samples are small, so their figures mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_rollout_benchmark_prints_its_table_and_draws_its_picture(tmp_path: Path) -> None:
    picture = tmp_path / "timeline.png"
    command = [sys.executable, "-m", "benchmarks.rollout", "--quick", "--vllm", "none", "--timeline", str(picture)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "episodes a second" in done.stdout
    assert "targets met" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert list(tmp_path.iterdir()) == [picture]


def test_measurements_of_a_gpu_run_small_on_a_cpu_and_finished_ones_are_kept(tmp_path: Path) -> None:
    results = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "update/0.1B", "--small", "--output", str(results)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    first = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert first.returncode == 0, first.stdout + first.stderr
    values = json.loads(results.read_text())
    assert values["update/0.1B/here"]["loss"] == pytest.approx(values["update/0.1B/plain"]["loss"], rel=1e-2)
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert again.stdout.count("done before") == 2
    assert json.loads(results.read_text()) == values


def test_a_part_of_the_overlap_benchmark_leaves_the_committed_results_alone(tmp_path: Path) -> None:
    committed = ROOT / "benchmarks" / "results" / "overlap.json"
    before = committed.read_bytes()
    command = [sys.executable, "-m", "benchmarks.overlap", "--bounds", "--tasks", "--folder", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert committed.read_bytes() == before
    assert json.loads((tmp_path / "overlap.json").read_text())["times"] == []


def test_an_accident_trains_both_arms_and_draws_its_picture(tmp_path: Path) -> None:
    picture, figures = tmp_path / "accidents.png", tmp_path / "accidents.json"
    command = [sys.executable, "-m", "benchmarks.accidents", "--quick", "--accidents", "retokenised", "--seeds", "1"]
    command += ["--folder", str(tmp_path / "runs"), "--output", str(figures), "--picture", str(picture)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    arms = json.loads(figures.read_text())["accidents"]["retokenised"]["arms"]
    assert [len(arm["curves"][0]) for arm in arms.values()] == [2, 2]
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
