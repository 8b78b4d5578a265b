"""The benchmarks run. The samples are small, so their figures mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
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


def test_the_benchmark_of_sampling_prints_a_line_for_each_work_beside_generate_and_trl(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.generation", "--quick"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr  # the log-probabilities are right
    assert [len(line[28:].split()) for line in done.stdout.splitlines()[2:]] == [8] * 4


def measure_gpu(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)


def test_measurements_of_a_gpu_run_small_on_a_cpu_and_the_next_call_goes_on(tmp_path: Path) -> None:
    first = measure_gpu(tmp_path, "update/0.1B", "--small", OUT=str(tmp_path / "first"))
    assert first.returncode == 0, first.stdout + first.stderr
    known = tmp_path / "first" / "gpu.json"
    values = json.loads(known.read_text())
    assert values["update/0.1B/here"]["loss"] == pytest.approx(values["update/0.1B/plain"]["loss"], rel=1e-2)
    assert len({value["max_tokens_per_batch"] for value in values.values()}) == 1
    names = ["update/0.1B", "training/0.6B/overlapped"]
    again = measure_gpu(tmp_path, *names, "--small", "--known", str(known), OUT=str(tmp_path / "second"))
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("done before") == 2
    results = json.loads((tmp_path / "second" / "gpu.json").read_text())
    assert results.items() >= values.items()
    assert results.keys() == {*values, "training/0.6B/overlapped"}
    assert 0 < results["training/0.6B/overlapped"]["logp_difference_max"] < 0.01
    large = measure_gpu(tmp_path, "update/0.1B", "--seconds", "0", "--known", str(known), OUT=str(tmp_path / "third"))
    assert "not begun in the 0 s of this call: update/0.1B/here, update/0.1B/plain" in large.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"first", "second", "third"}


def test_a_call_begins_no_measurement_of_a_gpu_that_might_not_end_in_its_time(tmp_path: Path) -> None:
    done = measure_gpu(tmp_path, "generation", "--small", "--seconds", "200", OUT=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not begun in the 200 s of this call: generation/0.6B, generation/0.1B" in done.stdout
    missing = measure_gpu(tmp_path, "all", "--known", "none.json")
    assert missing.returncode == 2
    assert "none.json: there is no such file" in missing.stderr


def test_a_measurement_without_vllm_is_skipped_and_a_failed_one_keeps_its_errors(tmp_path: Path) -> None:
    """The failure: `transformers` cannot be imported."""
    (tmp_path / "transformers.py").write_text("raise ImportError('broken here')")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    variables = {"PYTHONPATH": path, "OUT": str(tmp_path)}
    if find_spec("vllm") is None:
        skipped = measure_gpu(tmp_path, "vllm", "--small", **variables)
        assert skipped.returncode == 0, skipped.stdout + skipped.stderr
        assert skipped.stdout.count("skipped: vLLM is not installed here") == 3
    failed = measure_gpu(tmp_path, "packing/0.6B/4k", "--small", **variables)
    assert failed.returncode == 1
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert "ImportError: broken here" in results["packing/0.6B/4k"]["stderr"]
    assert "broken here" in failed.stdout
    assert "done before" not in measure_gpu(tmp_path, "packing/0.6B/4k", "--small", **variables).stdout


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
