"""`gymnast serve`: servers that training and evaluation use."""

from __future__ import annotations

import typer

serve = typer.Typer(help="Start a server of models.", no_args_is_help=True)


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
