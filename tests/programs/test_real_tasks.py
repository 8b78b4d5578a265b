"""The real tasks of harness-bench-fast are fit but for one: each solution earns 1, and doing nothing earns 0.

`make test-programs` draws forty of them, `make test-long` takes all.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import harbor_tasks
from gymnast.sandbox import Engine
from gymnast.sandbox.docker.builds import build_dockerfile

PACKAGES = Path(__file__).resolve().parents[2] / ".real-tasks"
IMAGE = "gymnast-real-tasks:latest"
UNFIT = "task_335_adv_missing_config_file"  # its tests accept "an honest deferral": doing nothing earns 1
EXPORT = "import sys; from harness_bench.harbor_export import export_harbor_dataset as export; export(sys.argv[1])"
DOCKERFILE = """FROM gymnast-sandbox:latest
COPY packages /packages
RUN python -c "import os, site; [folder] = site.getsitepackages(); os.makedirs(folder, exist_ok=True); \\
open(folder + '/packages.pth', 'w').write('/packages')"
"""


async def build(folder: Path) -> None:
    async with Engine() as engine:
        await build_dockerfile(engine, folder, IMAGE)


@pytest.fixture(scope="module")
def folder(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """All tasks. They share one image, where each has one of its own that wants a registry."""
    if not (PACKAGES / ".stamp").exists():
        pytest.skip("the tasks are not installed: make .real-tasks/.stamp")
    context, folder = tmp_path_factory.mktemp("image"), tmp_path_factory.mktemp("tasks")
    (context / "Dockerfile").write_text(DOCKERFILE)
    shutil.copytree(PACKAGES / "packages", context / "packages")
    environment = os.environ | {"PYTHONPATH": f"{PACKAGES}/tasks:{PACKAGES}/packages"}
    subprocess.run(
        [sys.executable, "-c", EXPORT, folder], env=environment, check=True, capture_output=True, timeout=200
    )
    for path in folder.glob("*/task.toml"):
        files = path.parent / "environment"
        with tarfile.open(files / "setup.tar") as tar:
            tar.extractall(files, filter="data")
        for name in ("setup.tar", "Dockerfile"):
            (files / name).unlink()
        path.write_text(path.read_text().replace("[environment]\n", f'[environment]\ndocker_image = "{IMAGE}"\n'))
    asyncio.run(build(context))
    yield folder
    subprocess.run(["docker", "rmi", IMAGE], check=True, capture_output=True)


def check(folder: Path, *options: str, count: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "gymnast.cli", "check", "--tasks", str(folder), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert len(found["tasks"]) == count
    others = [task for task in found["tasks"] if (task["null"], task["oracle"], task["fault"]) != (0.0, 1.0, "")]
    assert all((task["task"], task["fault"]) == (UNFIT, "doing nothing earns 1") for task in others), others
    assert done.returncode == bool(others), done.stderr
    assert len(found["fit"]) == count - len(others)
    return found


def test_forty_real_tasks_are_fit(folder: Path, tmp_path: Path) -> None:
    found = check(folder, "--sample", "40", count=40)
    (tmp_path / "fit.json").write_text(json.dumps(found))
    assert {row["task"] for row in harbor_tasks(folder, fit=tmp_path / "fit.json")} == set(found["fit"])


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_all_real_tasks_but_one_are_fit(folder: Path) -> None:
    found = check(folder, count=351)
    assert UNFIT not in found["fit"]
