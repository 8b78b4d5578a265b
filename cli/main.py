"""The command `gymnast`: the list of its commands, exit codes, and errors without tracebacks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from gymnast import __version__

from .commands.check import check
from .commands.compare import compare
from .commands.envs import envs
from .commands.evaluate import evaluate
from .commands.export import export
from .commands.init import init
from .commands.play import play
from .commands.replay import replay
from .commands.sandbox import sandbox
from .commands.serve import serve
from .commands.tiny import tiny
from .commands.train import train
from .commands.view import view
from .commands.why import why
from .terminal.exits import ERROR, report

COMMANDS = (init, envs, play, check, tiny, train, evaluate, compare, view, why, replay, export)
GROUPS = {"serve": serve, "sandbox": sandbox}

app = typer.Typer(
    name="gymnast",
    help="Train language-model agents with reinforcement learning.",
    no_args_is_help=True,
    rich_markup_mode=None,  # rich takes longer to import than all the rest of `gymnast --help`
    pretty_exceptions_enable=False,  # `main` reports errors
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gymnast {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options that stand before the command: `gymnast --debug play ...`."""


for command in COMMANDS:
    app.command("eval" if command is evaluate else None)(command)
for name, group in GROUPS.items():
    app.add_typer(group, name=name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default `sys.argv`; returns the exit code. With `--debug` an error is raised."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        app(args=arguments, prog_name="gymnast")
    except SystemExit as end:  # typer's, with a number, also after Ctrl-C; a program of ours may give a text
        if isinstance(end.code, str):
            typer.echo(end.code, err=True)
            return ERROR
        return int(end.code or 0)
    except Exception as error:
        if arguments[0] == "--debug":
            raise
        report(error)
        return ERROR
    raise AssertionError("typer always exits")
