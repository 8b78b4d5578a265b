"""Exit codes, and errors without a traceback."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

FAULTS = 1  # the command ran, and its result is bad: a check failed, an episode failed
ERROR = 2  # the command could not do its work: wrong arguments, a broken file, an unreachable server
INTERRUPTED = 130  # Ctrl-C


class CommandError(Exception):
    """A mistake of the user that the message explains in full, so no traceback is offered.

    Every function that reads an argument may raise it, and does not say so again.
    """


@contextmanager
def explained() -> Iterator[None]:
    """Turn an error within this context, whose message explains it in full, into a `CommandError`."""
    try:
        yield
    except OSError as error:
        message = str(error) if error.strerror is None else f"{error.filename} cannot be read: {error.strerror}"
        raise CommandError(message) from error
    except ValueError as error:
        raise CommandError(str(error)) from error


def report(error: Exception) -> None:
    """Print an error on standard error: its message, and the line of the user's code that raised it."""
    from ...envs.extras import MissingExtraError  # late: the list of commands needs no environments
    from ...envs.runtime.places import user_place

    if isinstance(error, CommandError | MissingExtraError):
        typer.echo(f"error: {error}", err=True)
        return
    named = isinstance(error, ValueError | TypeError | OSError) or type(error).__module__.startswith("gym")
    typer.echo(f"error: {error}" if named else f"error: {type(error).__name__}: {error}", err=True)
    place = user_place("".join(traceback.format_tb(error.__traceback__)), or_installed=False)
    if place is not None:
        typer.echo(f"  raised at {place}", err=True)
    typer.echo("  for the traceback: gymnast --debug ...", err=True)
