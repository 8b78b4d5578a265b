"""`gymnast train` and its run files, `gymnast init`, and `gymnast sandbox`."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gymnast.trainer.tiny import make_tiny_model, make_tiny_tokenizer

from ..training.launching import run_command_twice
from .running import Run


def test_a_new_project_passes_its_own_test(run: Run, tmp_path: Path) -> None:
    assert run("init", "mine").code == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "mine"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout
    assert "mine has files that would be overwritten: environment.py" in run("init", "mine").err


def test_a_new_project_trains_and_writes_its_run_down(run: Run, tmp_path: Path) -> None:
    tokenizer = make_tiny_tokenizer([])
    make_tiny_model(tokenizer).save_pretrained("tiny")
    tokenizer.save_pretrained("tiny")
    run("init", ".")
    small = {"num_generations": 2, "gradient_accumulation_steps": 1, "max_completion_length": 8, "max_steps": 1}
    options = [f"--set={name}={value}" for name, value in small.items()]
    options += ["--set=use_cpu=true", "--set=save_strategy=no", "--set=report_to=none", "--set=disable_tqdm=true"]
    outcome = run("train", "run.toml", "--model", "tiny", *options, "--json")
    assert outcome.code == 0, outcome.err
    folder = Path(outcome.json["folder"])
    written = tomllib.loads((folder / "run.toml").read_text())
    assert (written["model"], written["options"]["max_steps"], written["options"]["use_cpu"]) == ("tiny", 1, True)
    assert (folder / "model" / "config.json").exists()
    assert (folder / "metrics.jsonl").exists()


def test_two_processes_print_one_outcome(run: Run, tmp_path: Path) -> None:
    tokenizer = make_tiny_tokenizer([])
    make_tiny_model(tokenizer).save_pretrained("tiny")
    tokenizer.save_pretrained("tiny")
    run("init", ".")
    small = {"num_generations": 2, "gradient_accumulation_steps": 1, "max_completion_length": 8, "max_steps": 1}
    options = [f"--set={name}={value}" for name, value in small.items()]
    options += ["--set=use_cpu=true", "--set=save_strategy=no", "--set=report_to=none", "--set=disable_tqdm=true"]
    command = ["-m", "gymnast.cli", "train", "run.toml", "--model", "tiny", *options, "--json"]
    ended = run_command_twice(command)
    assert [each.returncode for each in ended] == [0, 0], ended[0].stderr
    first, second = (each.stdout for each in ended)
    assert json.loads(first)["metrics"]["train_loss"] is not None
    assert second == ""


@pytest.mark.parametrize(
    ("file", "arguments", "message"),
    [
        ("model = 'm'", [], "the run has no environment: set it in the file or with --model"),
        ("environment = 'e.py:E'", [], "the run has no model: set it in the file or with --model"),
        ("learning_rate = 1", [], "a run has no learning_rate, it has environment, model, tasks"),
        ("environment = ", [], "run.toml is not TOML: "),
        (
            "environment = 'e.py:E'\nmodel = 'm'\nalgorithm = 'ppo'",
            [],
            "algorithm must be one of grpo, rloo, got 'ppo'",
        ),
        ("environment = 'e.py:E'\nmodel = 'm'", ["--set", "max_steps"], "--set takes name=value"),
        ("environment = 'e.py:E'\nmodel = 'm'", ["--set", "bf16=False"], "values are those of TOML: write bf16=false"),
    ],
)
def test_runs_that_cannot_be_read(run: Run, tmp_path: Path, file: str, arguments: list[str], message: str) -> None:
    (tmp_path / "run.toml").write_text(file)
    outcome = run("train", "run.toml", *arguments)
    assert outcome.code == 2
    assert message in outcome.err


def test_the_doctor_finds_an_engine_that_does_not_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such.sock")
    outcome = run("sandbox", "doctor", "--json")
    [check] = outcome.json["checks"]
    assert (outcome.code, check["name"], check["outcome"]) == (1, "engine", "fail")
    assert "no container engine answers at unix:///no/such.sock" in check["advice"]
    assert run("sandbox", "list").code == 2


def test_the_doctor_tries_a_box(run: Run, image: str) -> None:
    outcome = run("sandbox", "doctor", "--json")
    outcomes = {each["name"]: each["outcome"] for each in outcome.json["checks"]}
    assert outcome.code == 0
    assert [*outcomes] == ["engine", "image", "box", "code", "network", "reset", "containers"]
    assert outcomes["code"] == outcomes["network"] == "pass"
