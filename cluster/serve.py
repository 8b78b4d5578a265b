"""Serve environments to trainers on other machines, without Ray: `python -m gymnast.cluster.serve ENVIRONMENT`.

    export GYMNAST_CLUSTER_TOKEN=...   # the same secret on all machines
    python -m gymnast.cluster.serve my_module:MyEnvironment --host 10.0.0.7 --port 8760

ENVIRONMENT is `module:name` (a class, a prototype, a factory, or a dict of these) or a Gymnasium id. The trainer says
`environment=WebSocketEnvironments(["ws://10.0.0.7:8760"])`. Only holders of the token may use the server. Tokens and
messages are not encrypted: use a network that you trust, or a proxy with TLS in front (`wss://`).
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from .websocket.server import TOKEN_VARIABLE, EnvironmentServer

SHORTEST_TOKEN = 16

logger = logging.getLogger("gymnast.cluster")


def environment_of(text: str) -> Any:
    """Return the environment that `module:name` names; a Gymnasium id as it is."""
    module, _, name = text.rpartition(":")
    if not module or not all(part.isidentifier() for part in name.split(".")):
        return text
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


async def _serve(environment: Any, token: str, host: str, port: int) -> None:
    server = EnvironmentServer(environment, token=token)
    port = await server.start(host, port)
    logger.info("serving on ws://%s:%d", host, port)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    await server.close()


def main(arguments: Sequence[str]) -> None:
    """Serve until Ctrl-C or SIGTERM, which close all environments.

    Raises:
        SystemExit: the token is missing or too short.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", help="module:name, or a Gymnasium id")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8760, help="(default: %(default)s; 0 takes any free one)")
    options = parser.parse_args(arguments)
    token = os.environ.get(TOKEN_VARIABLE, "")
    if len(token) < SHORTEST_TOKEN:
        parser.error(
            f"set {TOKEN_VARIABLE} to a secret of at least {SHORTEST_TOKEN} characters, the same for the trainer; "
            f"python -c 'import secrets; print(secrets.token_urlsafe())' makes one"
        )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(_serve(environment_of(options.environment), token, options.host, options.port))


if __name__ == "__main__":
    main(sys.argv[1:])
