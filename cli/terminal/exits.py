"""Exit codes, and errors without a traceback."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

SUCCESS = 0
FAULTS = 1  # the command ran, and its result is bad: a check failed, an episode failed
ERROR = 2  # the command could not do its work: wrong arguments, a broken file, an unreachable server
INTERRUPTED = 130  # Ctrl-C


class CommandError(Exception):
    """A mistake of the user that the message explains in full, so no traceback is offered."""


@contextmanager
def explained() -> Iterator[None]:
    """Within this context the message of an error explains it in full: it becomes a `CommandError`."""
    try:
        yield
    except OSError as error:
        message = str(error) if error.strerror is None else f"{error.filename} cannot be read: {error.strerror}"
        raise CommandError(message) from error
    except ValueError as error:
        raise CommandError(str(error)) from error


def report(error: Exception) -> None:
    """Print an error on standard error: its message, and the line of the user's code that raised it."""
    if isinstance(error, CommandError):
        typer.echo(f"error: {error}", err=True)
        return
    named = isinstance(error, ValueError | TypeError | OSError) or type(error).__module__.startswith("gym")
    typer.echo(f"error: {error}" if named else f"error: {type(error).__name__}: {error}", err=True)
    place = _place(error)
    if place is not None:
        typer.echo(f"  raised at {place}", err=True)
    typer.echo("  for the traceback: gymnast --debug ...", err=True)


def _place(error: Exception) -> str | None:
    """The innermost call in a file of the user's, or None."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        code, module = frame.f_code, frame.f_globals.get("__name__", "")
        installed = "site-packages" in code.co_filename or code.co_filename.startswith((sys.base_prefix, "<"))
        if not installed and not module.startswith("gymnast."):
            found = f"{code.co_filename}:{line}, in {code.co_name}"
    return found
