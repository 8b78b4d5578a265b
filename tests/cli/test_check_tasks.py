"""`gymnast check --tasks`: which tasks of a folder are fit, and why others are not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gymnast.envs import harbor_tasks

from ..envs.test_harbor_tasks import FOLDER, UNFIT
from ..sandbox.boxes import own_containers
from .running import Run

FAULTS = UNFIT | {
    "easy": "doing nothing earns 1",
    "no_reward": "NoVerdictError: the tests of no_reward gave no verdict",
    "no_solution": "there is no solution/solve.sh",
    "reward_keys": "the solution earns 0.75, not 1",
    "wrong_image": "absent:latest",
}


def test_the_fit_tasks_of_a_folder(image: str, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "tasks"
    shutil.copytree(FOLDER, folder)
    for name in ("easy", "no_solution", "wrong_image"):
        shutil.copytree(folder / "plain", folder / name)
    (folder / "easy/tests/test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    shutil.rmtree(folder / "no_solution/solution")
    (folder / "wrong_image/environment/Dockerfile").write_text("FROM gymnast-absent:latest\n")
    outcome = run("check", "--tasks", folder, "--json")
    assert outcome.code == 1, outcome.err
    found = {task["task"]: task for task in outcome.json["tasks"]}
    assert {name for name, task in found.items() if task["fault"]} == FAULTS.keys(), found
    for name, fault in FAULTS.items():
        assert fault in found[name]["fault"], found[name]
    fit = {name: task for name, task in found.items() if not task["fault"]}
    assert {(task["null"], task["oracle"]) for task in fit.values()} == {(0.0, 1.0)}
    assert all(task["seconds"] > 0 and task["image_bytes"] > 10_000_000 for task in fit.values())
    (tmp_path / "fit.json").write_text(outcome.out)
    assert {row["task"] for row in harbor_tasks(folder, fit=tmp_path / "fit.json", unfit="raise")} == fit.keys()
    outcome = run("check", "--tasks", folder, "--sample", 1, "--seed", 3)
    assert (outcome.code, outcome.out.splitlines()[1].split()[0]) in [(0, "fit"), (1, "unfit")]
    assert own_containers() == set()


@pytest.mark.usefixtures("bubblewrap")
def test_tasks_of_the_default_image_are_checked_without_docker(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, image in (("plain", "gymnast-sandbox:latest"), ("other", "debian:12")):
        shutil.copytree(FOLDER / "plain", tmp_path / name)
        shutil.rmtree(tmp_path / name / "environment")
        (tmp_path / name / "task.toml").write_text(
            f'[environment]\ndocker_image = "{image}"\nworkdir = "/app"\nstorage_mb = 1'
        )
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    outcome = run("check", "--tasks", tmp_path, "--json")
    assert (outcome.code, outcome.json["fit"]) == (1, ["plain"]), outcome
    assert "needs Docker, and bubblewrap makes boxes of folders" in outcome.json["tasks"][0]["fault"]
    assert [task["without_effect"] for task in outcome.json["tasks"]] == [["environment.storage_mb"]] * 2
    table = " ".join(run("check", "--tasks", tmp_path / "plain").out.split())
    assert "without effect: environment.storage_mb" in table


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ([], "name an environment, or give --tasks FOLDER"),
        (["--tasks", "absent"], "absent has no task"),
        (["--tasks", "absent", "--model", "m"], "--model is for the check of an environment"),
        (["calculator", "--sample", "3"], "--sample is for the check of a folder of tasks"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], fault: str, run: Run) -> None:
    outcome = run("check", *arguments)
    assert outcome.code == 2
    assert fault in outcome.err
