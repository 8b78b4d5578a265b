"""Folders of tasks in Harbor's format become rows, and those that cannot be played are named."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from gymnast.envs import UnfitTaskError, harbor_tasks
from gymnast.envs.tasks.harbor import read_task

FOLDER = Path(__file__).with_name("harbor")
UNFIT = {"allow_list": "network_mode is 'allowlist'", "service": "docker-compose.yaml describes services"}


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER / "plain", tmp_path / "plain"))


def test_rows_are_json_and_a_task_that_needs_more_than_a_box_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gymnast.envs"):
        rows = harbor_tasks(FOLDER)
    assert json.loads(json.dumps(rows)) == rows
    names = {path.name for path in FOLDER.iterdir()}
    assert {row["task"] for row in rows} == names - UNFIT.keys()
    assert f"2 of {len(names)} tasks are left out" in caplog.text
    for name, reason in UNFIT.items():
        assert name in caplog.text
        with pytest.raises(UnfitTaskError, match=reason):
            harbor_tasks(FOLDER / name)
        with pytest.raises(UnfitTaskError, match=UNFIT["allow_list"]):
            harbor_tasks(FOLDER, unfit="raise")
    prompts = {row["task"]: row["prompt"] for row in rows}
    assert prompts["canary"] == prompts["plain"] == "Write 42 into the file answer.txt.\n"
    assert prompts["steps"] == "Write 1 into first.txt.\n"


def test_fit_chooses_tasks_by_their_names_or_by_the_file_of_a_check(tmp_path: Path) -> None:
    (file := tmp_path / "fit.json").write_text(json.dumps({"fit": ["user", "plain"]}))
    for fit in (["plain", "user"], file, str(file)):
        assert [row["task"] for row in harbor_tasks(FOLDER, fit=fit)] == ["plain", "user"]
    [row] = harbor_tasks([FOLDER / "plain", FOLDER / "user"], fit={"user"})
    assert row["task_dir"] == str(FOLDER / "user")
    with pytest.raises(ValueError, match="not there: absent"):
        harbor_tasks(FOLDER, fit=["absent", "plain"])
    file.write_text("[]")
    with pytest.raises(ValueError, match=r"fit\.json is not what `gymnast check --tasks"):
        harbor_tasks(FOLDER, fit=file)
    with pytest.raises(ValueError, match="has no task"):
        harbor_tasks(tmp_path)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ('schema_version = "2.0"', "schema_version must be a version from '1.0' to '1.4', got '2.0'"),
        ("[agent]\ntimeout_sec = 0", "agent.timeout_sec must be greater than 0, got 0"),
        ('[environment]\ncpus = "two"', "environment.cpus must be a valid number"),
        ('[environment]\nmemory = "much"', "environment must be a size such as '2G' or '512M'"),
        ('[environment]\nos = "windows"', "environment.os is 'windows'"),
        ("[environment]\ngpus = 1", "environment.gpus is 1, and a box has none"),
        ('[[environment.mcp_servers]]\nname = "search"', "environment.mcp_servers"),
        (
            '[environment.env]\nKEY = "${GYMNAST_TEST_UNSET}"',
            "environment.env.KEY takes the variable GYMNAST_TEST_UNSET",
        ),
        ('[[artifacts]]\nsource = "/data"\nservice = "db"', "artifacts names the service 'db'"),
        ('artifacts = ["/app/../etc"]', "artifacts.0.source must be a path without '..', got '/app/../etc'"),
        ('[[steps]]\nname = "a"\n[[steps]]\nname = "A"', "steps must be steps of different names"),
        ('[[steps]]\nname = "a/b"', "steps.0.name"),
        ('[[steps]]\nname = "absent"', "absent/instruction.md cannot be read"),
        ("[agent", "is no TOML"),
        (
            '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1',
            "verifier must be without an environment of its own",
        ),
    ],
)
def test_an_error_names_the_file_the_key_and_the_expected_value(task: Path, settings: str, fault: str) -> None:
    (task / "task.toml").write_text(settings)
    with pytest.raises(UnfitTaskError) as error:
        harbor_tasks(task)
    assert str(task) in str(error.value)
    assert fault in str(error.value)


def test_a_step_cannot_change_the_network_of_the_box(task: Path) -> None:
    (task / "task.toml").write_text('[[steps]]\nname = "a"\n[[steps]]\nname = "b"\nagent.network_mode = "no-network"')
    for name in "ab":
        shutil.copytree(FOLDER / "steps/steps/first", task / "steps" / name)
    with pytest.raises(UnfitTaskError, match="different networks, and a box keeps"):
        harbor_tasks(task)


def test_settings_that_change_nothing_are_named(task: Path) -> None:
    lines = [
        "version = '1.0'",
        "artifacts = [{source = '/logs/artifacts', destination = 'x', exclude = ['*.log']}]",
        "[metadata]\nlevel = 'easy'",
        "[environment]\nmemory = '1G'\nallow_internet = false\nstorage_mb = 9\nskills_dir = '/s'\ncpus = 5000",
        "build_timeout_sec = 9.0",
        "[agent]\ntimeout = 5",
    ]
    (task / "task.toml").write_text("\n".join(lines))
    (task / "tests/.harborignore").write_text("*.log")
    found = read_task(task)
    *keys, cpus = found.without_effect()
    places = ["agent.timeout", *(f"environment.{key}" for key in ("storage_mb", "skills_dir", "build_timeout_sec"))]
    assert sorted(keys) == sorted([*places, "artifacts.0.destination", "tests/.harborignore"])
    assert cpus.startswith("environment.cpus above the ")
    [stage] = found.stages()
    assert [artifact.exclude for artifact in stage.artifacts] == [["*.log"]]


@pytest.mark.parametrize("missing", ["instruction.md", "tests/test.sh", "environment/Dockerfile"])
def test_a_folder_that_lacks_a_file_is_refused_by_its_name(task: Path, missing: str) -> None:
    (task / missing).unlink()
    with pytest.raises(UnfitTaskError, match=missing):
        harbor_tasks(task)
