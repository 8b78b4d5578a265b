"""`gymnast serve`: servers that training and evaluation use."""

from __future__ import annotations

import logging
import os
from typing import Annotated

import typer

from ..terminal.exits import CommandError
from ..terminal.options import EnvironmentReference

SHORTEST_TOKEN = 16

serve = typer.Typer(help="Start a server of models or of environments.", no_args_is_help=True)


@serve.command()
def environments(
    env: EnvironmentReference,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8760,
) -> None:
    """Serve environments to trainers on other machines, for environment=WebSocketEnvironments(["ws://HOST:PORT"]).

    ENV may also name a dict of environments. Only holders of the secret in GYMNAST_CLUSTER_TOKEN may use the server.
    The secret and the messages are not encrypted: use a network that you trust, or a proxy with TLS in front (wss://).
    """
    import asyncio

    from ...cluster.websocket.server import TOKEN_VARIABLE
    from ...cluster.websocket.server import serve as serve_environments
    from ..arguments.references import load_environment

    token = os.environ.get(TOKEN_VARIABLE, "")
    if len(token) < SHORTEST_TOKEN:
        raise CommandError(
            f"set {TOKEN_VARIABLE} to a secret of at least {SHORTEST_TOKEN} characters, the same for the trainer; "
            f"python -c 'import secrets; print(secrets.token_urlsafe())' makes one"
        )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(serve_environments(load_environment(env), token=token, host=host, port=port))


@serve.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
def vllm(context: typer.Context, model: str) -> None:
    """Start a vLLM server for generator="vllm-server", and for gymnast eval.

    Options after the model are those of `vllm serve`, such as --port 8001. Whoever reaches the port can change the
    model's weights: keep it inside a network that you trust.
    """
    from ...trainer.vllm.serve import serve_vllm

    serve_vllm([model, *context.args])
