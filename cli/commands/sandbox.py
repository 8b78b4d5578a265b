"""`gymnast sandbox`: the image of the boxes, the containers that exist, and whether boxes work on this machine."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    as_json: AsJSON = False,
) -> None:
    """Make the image of the boxes from this machine's Python; needs no registry."""
    from ...sandbox.docker.images import build
    from ...sandbox.images.image import DEFAULT_IMAGE
    from ..terminal.output import print_result

    name = DEFAULT_IMAGE if name is None else name
    started = time.perf_counter()
    if not as_json:
        typer.echo(f"building {name} ...", err=True)
    image = _with_engine(lambda engine: build(engine, name))
    seconds = time.perf_counter() - started
    text = f"built {name} ({image.size / 1e6:.1f} MB) in {seconds:.1f} s"
    print_result({"image": name, "bytes": image.size, "seconds": seconds}, text, as_json=as_json)


@sandbox.command("list")
def list_boxes(as_json: AsJSON = False) -> None:
    """List the containers of gymnast on this engine, and which of them are abandoned."""
    from ...sandbox.docker.reaper import boxes
    from ..terminal.output import print_json, print_table

    found = _with_engine(boxes)
    if as_json:
        print_json({"containers": [box._asdict() for box in found]})
        return
    if not found:
        typer.echo("this engine has no containers of gymnast")
        return
    rows = [(box.name, box.state, f"{box.age:.0f} s", "yes" if box.is_abandoned else "") for box in found]
    print_table(rows, headings=("container", "state", "age", "abandoned"))


@sandbox.command()
def reap(as_json: AsJSON = False) -> None:
    """Remove the containers whose owner, a process on this machine, is dead."""
    from ...sandbox import reap
    from ..terminal.output import print_result

    removed = _with_engine(reap)
    text = "\n  ".join([f"removed {len(removed)} containers", *removed])
    print_result({"removed": removed}, text, as_json=as_json)


@sandbox.command()
def prune(as_json: AsJSON = False) -> None:
    """Remove the images that boxes have built of Dockerfiles and tar files; they are built again when needed."""
    from ...sandbox.docker.reaper import prune
    from ..terminal.output import print_result

    removed = _with_engine(prune)
    text = "\n  ".join([f"removed {len(removed)} images", *removed])
    print_result({"removed": removed}, text, as_json=as_json)


@sandbox.command()
def doctor(as_json: AsJSON = False) -> None:
    """Try everything that a box needs, and say what to do about the first thing that is missing."""
    import asyncio

    from ..checks.boxes import diagnose
    from ..terminal.verdicts import conclude

    conclude(asyncio.run(diagnose()), as_json=as_json)
