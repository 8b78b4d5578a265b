"""The benchmarks run: small samples of them, whose figures mean nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_rollout_benchmark_prints_its_table_and_draws_its_picture(tmp_path: Path) -> None:
    picture = tmp_path / "timeline.png"
    program = ROOT / "benchmarks" / "rollout.py"
    command = [sys.executable, str(program), "--quick", "--vllm", "none", "--timeline", str(picture)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "episodes a second" in done.stdout
    assert "targets met" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert list(tmp_path.iterdir()) == [picture]
