"""The page: one HTML file that needs no server and no network.

The browser paints the index as soon as it has read the beginning of the file. Episodes follow in compressed chunks, and
each is inflated when one of its episodes is opened. Every script is known by its hash, so a script that a transcript
might smuggle in does not run, even if the page should forget to escape it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

import jinja2

from gymnast import REPOSITORY, __version__

from ...records.files.run import Run
from .index import CHUNK, index_of, to_json

SCRIPTS = (
    *("dom.js", "data.js", "charts.js", "overview.js", "list.js", "transcript.js", "tokens.js", "timeline.js"),
    *("why.js", "compare.js", "episode.js", "main.js"),
)
"""The scripts, in the order in which they run."""


def write_page(run: Run, path: Path) -> None:
    """Write the page of a run that was read."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(page(run))


def page(run: Run, *, follows: bool = False) -> Iterator[str]:
    """Yield the parts of the page; one that follows fetches its episodes from the server that it came from."""
    script = "\n".join(_text(f"scripts/{name}") for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    fetches = "'self'" if follows else "'none'"
    yield from _template().generate(
        title=run.folder.resolve().name,
        script=script,
        style=_text("style.css"),
        index=to_json(index_of(run)),
        policy=f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {fetches}; base-uri 'none'; form-action 'none'",
        repository=REPOSITORY,
        version=__version__,
        chunks=() if follows else _chunks(run),
        follows=follows,
    )


def chunk(run: Run, number: int) -> bytes:
    """Return a chunk of episodes as JSON."""
    return run.details(number * CHUNK, CHUNK)


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
