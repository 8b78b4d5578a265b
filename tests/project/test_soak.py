"""A short soak: random faults against a pool of sandboxes, as `make bench-soak` runs them for minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_short_soak_finds_nothing_wrong(image: str) -> None:
    command = [sys.executable, "-m", "benchmarks.soak", "--seconds", "20", "--seed", "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the engine is left alone" in done.stdout
    assert "no call was late, and nothing is left" in done.stdout
