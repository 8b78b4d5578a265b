"""A person with a virtual environment of their own, who types what a page of the documentation says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRAINING = ("torch", "transformers")  # how the names of packages begin that only the extra `train` needs


def blocks(page: str, heading: str) -> list[str]:
    """The commands under a heading of a page, one text for each block."""
    section = (ROOT / "docs" / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```bash\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


def build_wheel(folder: Path) -> Path:
    """Build the wheel of gymnast from a copy of the clone, since setuptools leaves files there."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"].values()
    for package in packages:
        shutil.copytree(ROOT / package, folder / "clone" / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, folder / "clone")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "--wheel-dir", folder, folder / "clone"], check=True, timeout=240)
    return next(folder.glob("*.whl"))


class Newcomer:
    """Someone at a shell whose pip has no index. The packages that it would bring are borrowed from this environment.

    Args:
        folder: Where the shell begins; gets the virtual environment `.venv`, as the page says.
        without: How the names of packages begin that are not borrowed.
    """

    def __init__(self, folder: Path, *, without: tuple[str, ...] = ()) -> None:
        folder.mkdir()
        self.home = self.place = folder
        self.bin = folder / ".venv" / "bin"
        self.seconds: dict[str, float] = {}
        self.types(blocks("quickstart.md", "Install")[0].splitlines()[0])
        [packages] = folder.glob(".venv/lib/python*/site-packages")
        for old in packages.glob("setuptools*"):  # of this Python's venv; pip would get a newer one
            shutil.rmtree(old)
        borrowed = folder / "borrowed"
        borrowed.mkdir()
        for source in (Path(path) for path in sys.path if path.endswith("site-packages")):
            for path in source.iterdir():
                absent = path.suffix == ".pth" or "gymnast" in path.name or path.name.startswith(("pip", *without))
                if not absent and not (borrowed / path.name).exists():
                    (borrowed / path.name).symlink_to(path)
        (packages / "borrowed.pth").write_text(str(borrowed))
        (self.bin / "pytest").write_text(f'#!/bin/sh\nexec {self.bin}/python -m pytest -p no:cacheprovider "$@"\n')
        (self.bin / "pytest").chmod(0o755)

    def types(self, lines: str, keys: str = "") -> str:
        """Run the lines one by one in the shell's folder; return what they print, in single spaces.

        Args:
            lines: Commands of a page.
            keys: What is typed while they run.
        """
        return " ".join(text for line in lines.splitlines() for text in self._run(line, keys).split())

    def _run(self, line: str, keys: str) -> str:
        began, place = time.monotonic(), self.home / ".place"
        environment = {
            "PATH": f"{self.bin}:{sys.base_prefix}/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "COLUMNS": "200",
            "BROWSER": "echo",
            "OMP_NUM_THREADS": "1",  # as docs/troubleshooting.md says: other tests run beside it
            "PIP_NO_INDEX": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # pip takes it for the value of "build isolation"
        }
        script = ["bash", "-c", f"{line}\nstatus=$?; pwd > {place}; exit $status"]
        done = subprocess.run(
            script, cwd=self.place, env=environment, input=keys, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        self.place, self.seconds[line] = Path(place.read_text().strip()), time.monotonic() - began
        return done.stdout
