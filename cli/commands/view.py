"""`gymnast view`: look at the episodes of a run, or at several runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..arguments.run_folder import RunArgument, read_run
from ..terminal.exits import CommandError, explained
from ..terminal.options import AsJSON, Output

if TYPE_CHECKING:
    from ...records.files.run import Run
    from ..microscope.runs import Runs


def view(
    run: RunArgument,
    output: Output = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Serve the page on this machine while the run grows.")
    ] = False,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="With --follow. [any free port]")] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Write the episodes of a training or an evaluation as one HTML file, RUN/view.html; it needs no server.

    If RUN is a folder with several runs below it, its page is an index of them.
    """
    import asyncio

    from ..microscope.follow import serve_page
    from ..terminal.output import print_result

    if port is not None and not follow:
        raise CommandError(f"--port {port} is for a page that is served: add --follow")
    if output is not None and follow:
        raise CommandError(f"--output {output} is for a page that is written: leave out --follow, which serves it")
    shown = _shown(run)
    if not follow:
        path, figures, text = _write(shown, output)
        print_result(figures, text, as_json=as_json)
        if browser:
            typer.launch(path.resolve().as_uri())
        return

    def started(url: str) -> None:
        print_result({"url": url}, f"{url} follows {run}; Ctrl-C ends it", as_json=as_json)
        sys.stdout.flush()  # a program waits for it
        if browser:
            typer.launch(url)

    try:
        asyncio.run(serve_page(shown, port or 0, started))
    except KeyboardInterrupt:
        typer.echo("")


def _shown(folder: Path) -> Run | Runs:
    """Return the run in a folder, or else the runs below it."""
    from ...records.files.run_files import line_files
    from ..microscope.runs import Runs

    if folder.is_dir() and not line_files(folder):
        with explained():
            runs = Runs(folder)
        if runs.found:
            return runs
    return read_run(folder)


def _write(shown: Run | Runs, output: Path | None) -> tuple[Path, dict[str, Any], str]:
    """Write the page; return its path, and what is said of it to programs and to people."""
    from ..microscope.page import NAME, write_page, write_pages
    from ..microscope.runs import Runs

    path = output or shown.folder / NAME
    runs = [*shown.found.values()] if isinstance(shown, Runs) else [shown]
    figures: dict[str, Any] = {"path": str(path), "episodes": sum(len(run.episodes) for run in runs)}
    if isinstance(shown, Runs):
        write_pages(shown, path)
        figures |= {"runs": len(runs)}
        return path, figures, f"{path}: {len(runs)} runs; the page of each, {NAME} in its folder, was written, too"
    write_page(shown, path)
    figures |= {"bytes": path.stat().st_size}
    return path, figures, f"{path}: {figures['episodes']} episodes, {figures['bytes'] / 1e6:.1f} MB"
