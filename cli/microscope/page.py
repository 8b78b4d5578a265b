"""The page of a run: one HTML file that needs no server and no network; and that of several runs, which leads to them.

The browser paints the index as soon as it has read the beginning of the file. Episodes follow in compressed chunks, and
each is inflated when one of its episodes is opened. Every script is known by its hash, so a script that a transcript
might smuggle in does not run, even if the page should forget to escape it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from gymnast import REPOSITORY, __version__

from ...records.files.run import Run
from .index import CHUNK, index_of, to_json
from .pictures import pictures_in
from .runs import Runs

SCRIPTS = (
    *("dom.js", "data.js", "charts.js", "overview.js", "list.js", "transcript.js", "tokens.js", "timeline.js"),
    *("why.js", "compare.js", "episode.js", "main.js"),
)
"""The scripts of a run's page, in the order in which they run."""

SCRIPTS_OF_RUNS = ("dom.js", "runs.js")

NAME = "view.html"
"""The file of a page in the folder that it shows."""


def write_page(run: Run, path: Path) -> None:
    """Write the page of a run that was read."""
    home = os.path.relpath(run.folder, path.parent)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(_page(run, index_of(run) | {"home": f"{quote(home)}/"}, _chunks(run)))


def write_pages(runs: Runs, path: Path) -> None:
    """Write the page of several runs, and that of each into its folder."""
    links = {}
    for name, run in runs.found.items():
        write_page(run, run.folder / NAME)
        links[name] = quote(os.path.relpath(run.folder / NAME, path.parent))
    path.write_text("".join(_page(runs, runs.index() | {"links": links})), encoding="utf-8")


def served_index(shown: Run | Runs) -> dict[str, Any]:
    """Return the index of a page that a server shows."""
    if isinstance(shown, Run):
        return index_of(shown)
    return shown.index() | {"links": {name: f"{quote(name)}/" for name in shown.found}}


def served_page(shown: Run | Runs) -> str:
    """Return a page that fetches episodes, and what is new, from the server that it came from."""
    return "".join(_page(shown, served_index(shown), follows=True))


def _page(
    shown: Run | Runs, index: Mapping[str, Any], chunks: Iterable[str] = (), *, follows: bool = False
) -> Iterator[str]:
    scripts = SCRIPTS if isinstance(shown, Run) else SCRIPTS_OF_RUNS
    script = "\n".join(_text(f"scripts/{name}") for name in scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    fetches = "'self'" if follows else "'none'"
    yield from _template().generate(
        title=shown.folder.resolve().name,
        script=script,
        style=_text("style.css"),
        index=to_json(index),
        policy=f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {fetches}; base-uri 'none'; form-action 'none'",
        repository=REPOSITORY,
        version=__version__,
        chunks=chunks,
        follows=follows,
    )


def chunk(run: Run, number: int) -> bytes:
    """Return a chunk of episodes and their pictures as JSON."""
    episodes = run.details(number * CHUNK, CHUNK)
    return b"[" + episodes + b"," + to_json(pictures_in(episodes, run.folder)).encode() + b"]"


def _chunks(run: Run) -> Iterator[str]:
    for number in range(-(-len(run.episodes) // CHUNK)):
        yield base64.b64encode(gzip.compress(chunk(run, number), compresslevel=2, mtime=0)).decode()


@cache
def _template() -> jinja2.Template:
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_text("page.html"))


@cache
def _text(name: str) -> str:
    """Return the text of a file of this package."""
    return (files(str(__package__)) / name).read_text(encoding="utf-8")
