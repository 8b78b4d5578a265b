"""The site: `make docs` builds it without a warning, and a browser needs nothing but its files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=\"(?:https?:)?//[^\"]*")


def test_the_site_is_whole_and_needs_no_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert (built.returncode, built.stderr) == (0, ""), "broken links, pages that the navigation lacks, wrong names"

    pages = {str(path.relative_to(tmp_path / "site")): path.read_text() for path in tmp_path.rglob("*.html")}
    assert {name: found for name, text in pages.items() if (found := LOADED.findall(text))} == {}
    assert not any("fonts.googleapis" in path.read_text() for path in tmp_path.rglob("*.css"))
    assert "RolloutEngine" in pages["reference/envs.html"]
    assert "Most episodes in flight in each process." in pages["reference/options.html"]
    assert "--num-tasks" in pages["reference/commands.html"]
    assert r"ENV\|" not in pages["command_line.html"]
