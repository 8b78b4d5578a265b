"""Packs gymnast, its dependencies and the measurements of a GPU into gpu-kit/, for a machine without a network.

    python -m benchmarks.gpu.make_kit [--python 3.12] [--folder gpu-kit]

The other machine needs this Python with torch, transformers, accelerate and peft. There, `OUT=results gpu-kit/run all`
takes measurements for up to ten minutes and writes results/gpu.json. `gpu-kit/run all --known results/gpu.json` goes on
from there, also on a fresh machine.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

PARTS = Path(__file__).resolve().parent
ROOT = PARTS.parents[1]
THERE = {"torch", "transformers", "accelerate", "peft", "numpy"}
"""Packages that the other machine has. They are not packed, and neither are their own dependencies."""
MAX_MEGABYTES = 40
PLATFORMS = ["--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64"]
RUN = """\
#!/bin/sh
# Takes measurements: OUT=folder ./run all [--known FILE]. The first call unpacks the wheels beside this file.
set -e
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
if [ ! -d "$here/site" ]; then
  "$python" -m pip install --quiet --no-index --no-deps --target "$here/site.part" "$here"/wheels/*.whl
  mv "$here/site.part" "$here/site"
fi
# Not from the current folder, which may be a checkout of gymnast with benchmarks of its own.
PYTHONSAFEPATH=1 PYTHONPATH="$here/site:$here" exec "$python" -m benchmarks.gpu "$@"
"""


def dependencies(package: str) -> set[str]:
    """A package and all packages that it depends on, except those in `THERE`."""
    found: set[str] = set()
    waiting = [package]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found | THERE:
            continue
        found.add(name)
        needs = [Requirement(requirement) for requirement in requires(name) or []]
        waiting += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="the other machine's (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / "gpu-kit")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    shutil.rmtree(folder, ignore_errors=True)
    wheels = folder / "wheels"
    pip("wheel", "--no-deps", "--wheel-dir", str(wheels), str(ROOT))
    needed = sorted(dependencies("gymnast-rl") - {"gymnast-rl"})
    options = ["--no-deps", "--only-binary=:all:", "--python-version", arguments.python, *PLATFORMS]
    options += ["-c", str(ROOT / "constraints.txt"), "--dest", str(wheels)]
    pip("download", *options, *needed)
    shutil.copytree(PARTS, folder / "benchmarks" / PARTS.name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "calculator.py", folder / "examples")
    (folder / "run").write_text(RUN)
    (folder / "run").chmod(0o755)
    megabytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
    call = f"OUT=results {folder.name}/run all"
    print(f"{folder}: {len(list(wheels.iterdir()))} wheels, {megabytes:.1f} MB; there, call {call}")
    if megabytes > MAX_MEGABYTES:
        sys.exit(f"the kit has {megabytes:.1f} MB, more than {MAX_MEGABYTES}")


if __name__ == "__main__":
    main()
