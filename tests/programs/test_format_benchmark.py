"""The benchmark of the tool formats runs, and its recorded figures are of the formats that there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from gymnast.trainer import FORMATS

ROOT = Path(__file__).resolve().parents[2]


def test_the_benchmark_prints_its_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.formats", "--quick", "--vllm", "none"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in FORMATS:
        assert f"reading an answer: {name}, us" in done.stdout
    assert "targets met" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_every_format_met_its_target_when_it_was_measured() -> None:
    recorded = json.loads((ROOT / "benchmarks" / "results" / "formats.json").read_text())["figures"]
    reading = {item["name"].removeprefix("reading an answer: "): item for item in recorded if item["target"]}
    assert reading.keys() <= FORMATS.keys()
    assert len(reading) > 20
    assert [name for name, item in reading.items() if not item["met"]] == []
    for peer in ("transformers", "vLLM"):
        assert len([name for name, item in reading.items() if isinstance(item["peers"][peer], float)]) >= 7
