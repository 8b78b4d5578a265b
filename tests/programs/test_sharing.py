"""An environment as a package: its wheel and gymnast's install into an empty environment, without PyTorch, and work."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from gymnast.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
BUILD = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]


def call(*command: str | Path, cwd: Path, code: int = 0) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def borrow_packages(folder: Path) -> None:
    """Fill a folder with the packages of this environment, in place of an index; gymnast and PyTorch are not there."""
    folder.mkdir()
    for source in (Path(path) for path in sys.path if path.endswith("site-packages")):
        for path in source.iterdir():
            absent = path.suffix == ".pth" or "gymnast" in path.name or path.name.startswith(("torch", "transformers"))
            if not absent and not (folder / path.name).exists():
                (folder / path.name).symlink_to(path)


@pytest.fixture(scope="module")
def colleague(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `gymnast` of a virtual environment that got both wheels from a folder."""
    folder = tmp_path_factory.mktemp("sharing")
    for package in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"].values():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / "gymnast" / package, ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, folder / "gymnast")
    assert main(["init", str(folder / "guess")]) == 0
    for project in ("gymnast", "guess"):
        call(*BUILD, "--wheel-dir", "wheels", f"./{project}", cwd=folder)
    venv.create(folder / "venv", symlinks=True)
    bin_folder = folder / "venv" / "bin"
    borrow_packages(folder / "borrowed")
    ask = [bin_folder / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    Path(call(*ask, cwd=folder).strip(), "borrowed.pth").write_text(str(folder / "borrowed"))
    install = [sys.executable, "-m", "pip", "--python", bin_folder / "python", "install", "--quiet", "--no-index"]
    call(*install, "--find-links", "wheels", "guess", cwd=folder)
    return bin_folder / "gymnast"


def test_an_environment_of_a_wheel_is_listed_checked_and_played(colleague: Path, tmp_path: Path) -> None:
    [listed] = json.loads(call(colleague, "envs", "--json", cwd=tmp_path))["environments"]
    assert (listed["name"], listed["package"], listed["version"]) == ("guess", "guess", "0.1.0")
    call(colleague, "check", "guess", "--oracle", "guess:oracle", cwd=tmp_path)
    episode = json.loads(call(colleague, "play", "guess", "--policy", "guess:oracle", "--json", cwd=tmp_path))
    assert episode["reward"] == 1.0
    policy = ("--tasks", "guess:rows", "--policy", "guess:oracle", "--json")
    assert json.loads(call(colleague, "eval", "guess", *policy, cwd=tmp_path))["reward"] == 1.0
