"""`gymnast sandbox`: the image of the boxes, the containers that exist, and whether boxes work on this machine."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..terminal.exits import FAULTS
from ..terminal.options import AsJSON

if TYPE_CHECKING:
    from ...sandbox import Engine

sandbox = typer.Typer(help="Look after the containers in which untrusted code runs.", no_args_is_help=True)


def _with_engine(work: Callable[[Engine], Awaitable[Any]]) -> Any:
    import asyncio  # half of the time of `gymnast --help`

    from ...sandbox import Engine

    async def run() -> Any:
        async with Engine() as engine:
            return await work(engine)

    return asyncio.run(run())


@sandbox.command()
def build(
    name: Annotated[str | None, typer.Option(help="The image's name. [gymnast-sandbox:latest]")] = None,
    dockerfile: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Build the Dockerfile in this folder instead.")
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Make the image of the boxes from this machine's Python; needs no registry."""
    from ...sandbox.docker.images import build, build_dockerfile
    from ...sandbox.images.image import DEFAULT_IMAGE
    from ..terminal.output import print_json

    name = DEFAULT_IMAGE if name is None else name
    started = time.perf_counter()
    if not as_json:
        typer.echo(f"building {name} ...", err=True)

    async def work(engine: Engine) -> Any:
        return await (build_dockerfile(engine, dockerfile, name) if dockerfile else build(engine, name))

    image = _with_engine(work)
    seconds = time.perf_counter() - started
    if as_json:
        print_json({"image": name, "bytes": image.size, "seconds": seconds})
    else:
        typer.echo(f"built {name} ({image.size / 1e6:.1f} MB) in {seconds:.1f} s")


@sandbox.command("list")
def list_boxes(as_json: AsJSON = False) -> None:
    """List the containers of gymnast on this engine, and which of them are abandoned."""
    from ...sandbox.docker.reaper import boxes
    from ..terminal.output import print_json, print_table

    found = _with_engine(boxes)
    if as_json:
        print_json({"containers": [each._asdict() for each in found]})
        return
    rows = [(each.name, each.state, f"{each.age:.0f} s", "yes" if each.is_abandoned else "") for each in found]
    print_table(rows, headings=("container", "state", "age", "abandoned"))


@sandbox.command()
def reap(as_json: AsJSON = False) -> None:
    """Remove the containers whose owner, a process on this machine, is dead."""
    from ...sandbox import reap
    from ..terminal.output import print_json

    removed = _with_engine(reap)
    if as_json:
        print_json({"removed": removed})
    else:
        typer.echo("\n  ".join([f"removed {len(removed)} containers", *removed]))


@sandbox.command()
def doctor(as_json: AsJSON = False) -> None:
    """Try everything that a box needs, and say what to do about the first thing that is missing."""
    import asyncio

    from ..checks.boxes import diagnose
    from ..terminal.output import print_json
    from ..terminal.verdicts import print_verdicts

    verdicts = asyncio.run(diagnose())
    if as_json:
        print_json({"checks": [each._asdict() for each in verdicts]})
    else:
        print_verdicts(verdicts)
    if any(each.outcome == "fail" for each in verdicts):
        raise typer.Exit(FAULTS)
