"""The site: `make docs` builds it without a warning, and a browser needs nothing but its files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..cli.chromium import chromium

ROOT = Path(__file__).resolve().parents[2]
LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=\"(?:https?:)?//[^\"]*")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built as in a fresh clone: without folders that other commands have made."""
    clone, folder = tmp_path_factory.mktemp("clone") / "gymnast", tmp_path_factory.mktemp("site")
    made = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "runs", "site", "build", "dist", "gpu-kit")
    shutil.copytree(ROOT, clone, ignore=made)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=240)
    assert (built.returncode, built.stderr) == (0, ""), "broken links, pages that the navigation lacks, wrong names"
    return folder


def test_the_site_is_whole_and_names_no_file_of_the_network(site: Path) -> None:
    pages = {str(path.relative_to(site)): path.read_text() for path in site.rglob("*.html")}
    assert {name: found for name, text in pages.items() if (found := LOADED.findall(text))} == {}
    assert not any("fonts.googleapis" in path.read_text() for path in site.rglob("*.css"))
    assert "RolloutEngine" in pages["reference/envs.html"]
    assert "Maximum number of episodes in flight in a process" in pages["reference/options.html"]
    assert "--num-tasks" in pages["reference/commands.html"]
    assert (
        "Try an environment with scripted agents, and say what would spoil a training."
        in pages["reference/commands.html"]
    )
    assert "class Wordle" in re.sub(r"<[^>]*>", "", pages["examples/wordle.html"])
    assert 'href="examples/wordle.html"' in pages["gallery.html"]
    assert r"ENV\|" not in pages["command_line.html"]


FOUND = {
    "max_staleness": "overlap.html",
    "docker permission denied": "troubleshooting.html",
    "windows": "install.html",
    "save to hub": "how_to/save.html",
}


def test_a_browser_without_a_network_finds_the_page_that_answers(site: Path) -> None:
    faults: list[str] = []
    with chromium() as browser:
        page = browser.new_page(offline=True)
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(("file:", "data:")) else faults.append(asked.url))
        for words, answer in FOUND.items():
            page.goto((site / "tutorials" / "lora.html").as_uri())
            page.click(".md-search__input")
            page.keyboard.type(words)
            page.click(f".md-search-result__item:first-child > .md-search-result__link[href*='{answer}']")
            page.wait_for_url(f"**/{answer}*")
    assert faults == []
