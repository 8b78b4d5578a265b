"""The first quarter of an hour of a new user, who types the commands of the quickstart.

An environment of one's own that trains, the reason why it fails, and a colleague who has it and looks at the run. Then
what a project must bear: its script, two processes, Ctrl-C, and two bugs that `check` and `why` must name.
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
from .newcomer import TRAINING, Newcomer, blocks, build_wheel

pytestmark = pytest.mark.timeout(900)  # the fifteen minutes, which the last assertion of the walk counts

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


def answers(section: str, who: Newcomer, keys: str = "") -> list[str]:
    """What the commands under a heading of the quickstart print, block by block."""
    return [who.types(block, keys) for block in blocks("quickstart.md", section)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Newcomer:
    """A person who has typed the page up to the check."""
    person = Newcomer(tmp_path_factory.mktemp("walk") / "home")
    install = blocks("quickstart.md", "Install")[0].splitlines()[1]
    person.types(install.replace("CLONE", str(wheel)))
    made, played = answers("A project", person, "compare(guess=4)\nfinal_answer(number=1)\n")
    assert "next: cd guess, then pip install pytest && pytest" in made
    assert "2 passed" in made
    assert played.endswith("reward 1, stop reason final_answer, 2 turns success 1")
    [verdicts] = answers("Check before you train", person)
    assert "pass oracle the oracle earns 1 in every task" in verdicts
    assert "warn" not in verdicts
    [trained] = answers("Train", person)
    assert "tiny-model earns 0." in trained
    assert "gymnast why runs/laptop says why the reward is what it is" in trained
    return person


@pytest.fixture
def project(newcomer: Newcomer) -> Path:
    """The new project, with its tiny model."""
    return newcomer.home / "guess"


def with_bug(project: Path, folder: Path, right: str, wrong: str) -> Path:
    """A copy of the project with this mistake in its environment."""
    shutil.copytree(project, folder)
    source = (folder / "guess" / "environment.py").read_text()
    assert source.count(right) == 1
    (folder / "guess" / "environment.py").write_text(source.replace(right, wrong))
    return folder


def test_a_run_learns_and_says_why(newcomer: Newcomer, project: Path) -> None:
    lines = [json.loads(line) for line in (project / "runs" / "laptop" / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["reward"] for line in lines if "reward" in line]
    assert sum(rewards[:5]) / 5 == pytest.approx(0.2, abs=0.1)  # as the page says
    assert sum(rewards[-5:]) / 5 > 0.25
    [said] = answers("Look at it", newcomer)
    assert said.startswith("runs/laptop: step 15, the reward rises")
    assert said.endswith("runs/laptop/view.html")  # the browser gets the page
    assert (project / "runs" / "laptop" / "view.html").read_text().startswith("<!doctype html>")
    assert (project / "runs" / "laptop" / "reward.png").exists()


def test_a_colleague_without_pytorch_plays_it_and_looks_at_the_run(
    newcomer: Newcomer, project: Path, wheel: Path, tmp_path: Path
) -> None:
    send, receive = blocks("quickstart.md", "Share it")
    assert "168 episodes" in newcomer.types(send)
    assert (project / "run.html").read_text().startswith("<!doctype html>")
    colleague = Newcomer(tmp_path / "colleague", without=TRAINING)
    colleague.types(f"pip install {wheel}")
    shutil.copy(project / "guess-0.1.0-py3-none-any.whl", colleague.home)
    said = colleague.types(receive)
    assert "guess guess 0.1.0 Guess a number from 1 to 7; each guess is answered with" in said
    assert said.endswith("success 1")
    shutil.copytree(project / "runs" / "laptop", colleague.home / "laptop")
    assert colleague.types("gymnast why laptop").startswith("laptop: step 15, the reward rises")
    assert "168 episodes" in colleague.types("gymnast view laptop")
    evaluated = colleague.types("gymnast eval guess --tasks guess:rows --policy guess:oracle --json")
    assert json.loads(evaluated)["reward"] == 1.0
    steps = {**newcomer.seconds, **colleague.seconds}
    assert sum(steps.values()) < 15 * 60, steps


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
