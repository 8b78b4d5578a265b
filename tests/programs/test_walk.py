"""The first quarter of an hour of a new user, by the installed command in an empty folder.

A project, its test, its check and a training, and then two bugs that `gymnast check` and `gymnast why` must name.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..training.launching import free_port

GYMNAST = Path(sys.executable).with_name("gymnast")
ENVIRONMENT = ("guess:GuessNumber", "--tasks", "guess:rows", "--oracle", "guess:oracle")
CHECK = ("check", *ENVIRONMENT)


def call(folder: Path, *command: str | Path, code: int = 0) -> str:
    """Run a command as a user does; return what it prints, with single spaces."""
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == code, done.stdout + done.stderr
    return " ".join(done.stdout.split())


def gymnast(folder: Path, *arguments: str, code: int = 0) -> str:
    return call(folder, GYMNAST, *arguments, code=code)


def train(folder: Path, run: str, steps: int) -> str:
    options = [f"--set=output_dir={run}", f"--set=max_steps={steps}", "--set=log_episodes_steps=1"]
    return gymnast(folder, "train", "laptop.toml", *options)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new project and its tiny model."""
    folder = tmp_path_factory.mktemp("walk")
    assert "next: cd guess, then pip install pytest && pytest" in gymnast(folder, "init", "guess")
    assert "tiny-model earns 0." in gymnast(folder / "guess", "tiny", *ENVIRONMENT)
    return folder / "guess"


def with_bug(project: Path, folder: Path, right: str, wrong: str) -> Path:
    """A copy of the project with this mistake in its environment."""
    shutil.copytree(project, folder)
    source = (folder / "guess" / "environment.py").read_text()
    assert source.count(right) == 1
    (folder / "guess" / "environment.py").write_text(source.replace(right, wrong))
    return folder


def test_a_new_project_is_sound_and_trains(project: Path) -> None:
    assert "2 passed" in call(project, sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
    verdicts = gymnast(project, *CHECK)
    assert "pass oracle the oracle earns 1 in every task" in verdicts
    assert "warn" not in verdicts
    train(project, "runs/first", 3)
    said = gymnast(project, "why", "runs/first")
    assert said.startswith("runs/first: step 3, the reward ")
    assert "168 episodes" in gymnast(project, "view", "runs/first", "-o", "page.html")
    assert (project / "page.html").read_text().startswith("<!doctype html>")


def test_the_script_of_a_project_trains_as_the_command_does(project: Path) -> None:
    train(project, "runs/command", 1)
    options = (project / "laptop.toml").read_text()
    for before, after in {"runs/laptop": "runs/script", "max_steps = 15": "max_steps = 1"}.items():
        assert before in options
        options = options.replace(before, after)
    (project / "script.toml").write_text(options)
    call(project, sys.executable, "train.py", "script.toml")
    by_command, by_script = (
        json.loads((project / "runs" / name / "metrics.jsonl").read_text().splitlines()[0])
        for name in ("command", "script")
    )
    assert by_command["reward"] == by_script["reward"]
    assert by_command["grad_norm"] == by_script["grad_norm"]
    assert (project / "runs" / "script" / "model" / "config.json").exists()


def test_torchrun_trains_in_two_processes_on_a_cpu_and_one_prints_the_outcome(project: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()
    assert "\ntorchrun --nproc_per_node 2 train.py\n" in page
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    options = ["max_steps=1", "per_device_train_batch_size=8", "ddp_backend=gloo", "log_episodes_steps=1"]
    train = ["-m", "gymnast.cli", "train", "laptop.toml", "--json", "--set=output_dir=runs/two"]
    port = ["--master_port", str(free_port())]
    said = call(project, *torchrun, *port, *train, *(f"--set={option}" for option in options))
    assert json.loads(said)["metrics"]["train_loss"] is not None
    assert {"episodes-0.jsonl", "episodes-1.jsonl"} <= {path.name for path in (project / "runs" / "two").iterdir()}


def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_go_on(project: Path) -> None:
    folder = project / "runs" / "stopped"
    options = ["--set=output_dir=runs/stopped", "--set=max_steps=5000", "--set=per_device_train_batch_size=8"]
    command = [GYMNAST, "train", "laptop.toml", *options]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as training:
        while not (folder / "metrics.jsonl").exists() and training.poll() is None:
            time.sleep(0.1)
        training.send_signal(signal.SIGINT)
        _, errors = training.communicate(timeout=60)
    assert training.returncode == 130, errors
    assert "the same command with --resume goes on" in errors
    assert list(folder.glob("checkpoint-*"))


def test_a_tool_that_raises_is_named(project: Path, tmp_path: Path) -> None:
    folder = with_bug(project, tmp_path / "guess", "if guess == self.secret ", "if guess == self.secrets[0] ")
    verdicts = gymnast(folder, *CHECK, code=1)
    assert "raised AttributeError: 'GuessNumber' object has no attribute 'secrets'" in verdicts
    assert "environment.py:26, in compare" in verdicts
    train(folder, "runs/broken", 1)
    assert "calls of compare end with the same error: Error: AttributeError" in gymnast(folder, "why", "runs/broken")


def test_a_reward_that_is_always_zero_is_named(project: Path, tmp_path: Path) -> None:
    folder = with_bug(project, tmp_path / "guess", "float(number == self.secret)", "float(str(number) == self.secret)")
    verdicts = gymnast(folder, *CHECK, code=1)
    assert "fail oracle the oracle earns 0 in every task" in verdicts
    assert "warn rewards every scripted agent earns 0" in verdicts
    train(folder, "runs/zero", 1)
    said = gymnast(folder, "why", "runs/zero")
    assert "All rewards of the last recorded step are 0" in said
    assert "reach final_answer and are rewarded with 0: the answers are wrong, the check is too strict, or" in said
