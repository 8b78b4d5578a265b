"""`gymnast view`: look at the episodes of a training."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..arguments.run_folder import RunArgument, read_run
from ..terminal.exits import CommandError
from ..terminal.options import AsJSON, Output


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
    """Write the episodes of a training as one HTML file, RUN/view.html by default; it needs no server."""
    import asyncio

    from ..microscope.follow import serve_page
    from ..microscope.page import write_page
    from ..terminal.output import print_result

    if port is not None and not follow:
        raise CommandError(f"--port {port} is for a page that is served: add --follow")
    if output is not None and follow:
        raise CommandError(f"--output {output} is for a page that is written: leave out --follow, which serves it")
    found = read_run(run)
    if not follow:
        path = output or run / "view.html"
        write_page(found, path)
        figures = {"path": str(path), "episodes": len(found.episodes), "bytes": path.stat().st_size}
        text = f"{path}: {figures['episodes']} episodes, {figures['bytes'] / 1e6:.1f} MB"
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
        asyncio.run(serve_page(found, port or 0, started))
    except KeyboardInterrupt:
        typer.echo("")
