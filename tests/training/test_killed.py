"""A training that SIGKILL ended at any moment, and that was resumed, equals one that was never killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gymnast.trainer import AgentTrainer, RunFolder

from .buttons import make_trainer, model, subprocess_environment

STEPS = 6
OPTIONS: dict[str, Any] = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 4,
    "steps_per_generation": 2,  # the third step uses the rest of a round
    "logging_steps": 2,  # the third step is not logged by itself
    "save_strategy": "steps",
    "save_steps": 1,
    "save_total_limit": 1,
    "log_episodes_steps": 2,
}
DROPOUT = 0.1  # so that torch's random state matters

POINTS = {
    "before the last file of the third checkpoint": "checkpoint-3/trainer_state.json",
    "between the update and the log of the fourth step": "metrics.jsonl",
    "while a round is played": "",
}
"""Moments, each with the file that the process is about to open for writing; the last one is in a tool."""

PROGRAM = """
import json, os, signal, sys
from pathlib import Path
import torch
from buttons import Buttons, make_trainer, tokenizer
from gymnast.envs import tool
from gymnast.trainer import RunFolder
from gymnast.trainer.testing.tiny import make_tiny_model

folder, options, points = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Dies(Buttons):
    @tool(final=True)
    async def left(self) -> str:
        \"\"\"Press the left button.\"\"\"
        if trainer.state.global_step == 4:
            die()
        return Buttons.left(self)


def watch(point):
    def hook(event, arguments):
        if event == "open" and str(arguments[0]).endswith(point) and arguments[1][0] in "wa":
            if point != "metrics.jsonl" or trainer.state.global_step == 4:
                die()

    sys.addaudithook(hook)


for place, point in enumerate(points):
    child = os.fork()  # before torch and gymnast have threads
    if child == 0:
        agent = make_tiny_model(tokenizer(), hidden_size=32, num_layers=1)
        agent.load_state_dict(torch.load(folder / "weights.pt"))
        out = folder / str(place)
        run = RunFolder(out)
        trainer = make_trainer(out, agent=agent, environment=Buttons() if point else Dies(), callbacks=[run], **options)
        agent.model.layers[0].self_attn.attention_dropout = DROPOUT
        if point:
            watch(point)
        trainer.train()
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, (place, status)
"""


def trainer_in(folder: Path, **options: Any) -> AgentTrainer:
    agent: Any = model()
    trainer = make_trainer(folder, agent=agent, callbacks=[RunFolder(folder)], **(OPTIONS | options))
    agent.model.layers[0].self_attn.attention_dropout = DROPOUT  # set now, because the trainer would warn about it
    return trainer


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AgentTrainer]:
    """The folder of a training that was not killed, and its trainer."""
    folder = tmp_path_factory.mktemp("whole")
    trainer = trainer_in(folder)
    trainer.train()
    return folder, trainer


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the folders of the trainings that were killed at `POINTS`, by their numbers."""
    folder = tmp_path_factory.mktemp("killed")
    torch.save(model().state_dict(), folder / "weights.pt")
    program = PROGRAM.replace("DROPOUT", str(DROPOUT))
    arguments = [str(folder), json.dumps(OPTIONS), json.dumps([*POINTS.values()])]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=subprocess_environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return folder


def timeless(path: Path) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl` without times, and without the sampler's rounding, which depends on times."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    own = ("time/", "sampling/", "mismatch/", "train_")  # a summary is that of the last `train()`
    return [
        {name: value for name, value in row.items() if not name.startswith(own) and "seconds" not in name}
        for row in rows
    ]


def names(path: Path) -> list[tuple[int, str, int, float]]:
    episodes = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        (
            episode["step"],
            episode["episode"]["spec"]["group"],
            episode["episode"]["spec"]["member"],
            episode["episode"]["reward"],
        )
        for episode in episodes
    ]


@pytest.mark.parametrize("place", range(len(POINTS)), ids=list(POINTS))
def test_resuming_a_killed_training_is_never_having_killed_it(place: int, whole: Any, killed: Path) -> None:
    expected_folder, expected = whole
    folder = killed / str(place)
    trainer = trainer_in(folder)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.model is not None
    weights = expected.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in trainer.model.state_dict().items())
    assert timeless(folder / "metrics.jsonl") == timeless(expected_folder / "metrics.jsonl")
    assert names(folder / "episodes.jsonl") == names(expected_folder / "episodes.jsonl")
    assert [path.name for path in folder.glob("checkpoint*")] == [f"checkpoint-{STEPS}"]
