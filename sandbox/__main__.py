"""Make the sandbox image (`build`), or remove the containers that dead processes left behind (`reap`)."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from .docker.engine import Engine
from .docker.images import DEFAULT_IMAGE, build, build_dockerfile
from .docker.reaper import reap
from .errors import SandboxError


def main() -> None:
    """Run the command line; a failure of the engine or of an image ends the process with its reason."""
    parser = argparse.ArgumentParser(prog="python -m gymnast.sandbox", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="make a sandbox image from this machine's Python; needs no registry")
    building.add_argument("--name", default=DEFAULT_IMAGE, help="the image's name (default: %(default)s)")
    building.add_argument("--dockerfile", metavar="FOLDER", help="build the Dockerfile in this folder instead")
    commands.add_parser("reap", help="remove containers whose owner, a process on this machine, is dead")
    try:
        asyncio.run(_run(parser.parse_args()))
    except SandboxError as error:
        sys.exit(f"error: {error}")


async def _run(arguments: argparse.Namespace) -> None:
    async with Engine() as engine:
        if arguments.command == "reap":
            removed = await reap(engine)
            _say(f"removed {len(removed)} containers" + "".join(f"\n  {name}" for name in removed))
            return
        started = time.perf_counter()
        if arguments.dockerfile:
            image = await build_dockerfile(engine, arguments.dockerfile, arguments.name)
        else:
            image = await build(engine, arguments.name)
        _say(f"built {arguments.name} ({image.size / 1e6:.1f} MB) in {time.perf_counter() - started:.1f} s")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
