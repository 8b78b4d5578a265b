"""CaughtError: an exception of user code on its way from a host to the trainer."""

from __future__ import annotations

import builtins
import os
import sys
from dataclasses import dataclass
from typing import Any

from ...envs.episode import traceback_of

_OUR_FOLDER = os.path.dirname(__file__) + os.sep


class HostTraceback(Exception):
    """The traceback on the host, as text; it is the cause of the exception that is raised here."""

    def __str__(self) -> str:
        return f"on the host:\n\n{self.args[0]}"


@dataclass(kw_only=True, slots=True, frozen=True)
class CaughtError:
    """An exception as text.

    Exceptions are not pickled: many cannot be read again, such as those whose constructor takes other arguments than
    their message, or whose class the trainer's machine does not have.
    """

    module: str
    name: str  # of the class
    message: str
    arguments: list[Any]  # those of the exception that are plain values, or the message
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> CaughtError:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER):
            trace = trace.tb_next  # calls in this package are no news
        error = error.with_traceback(trace or error.__traceback__)
        plain = all(isinstance(argument, str | int | float | None) for argument in error.args)
        return cls(
            module=type(error).__module__,
            name=type(error).__qualname__,
            message=str(error),
            arguments=list(error.args) if plain else [str(error)],
            traceback=traceback_of(error),
        )

    def rebuilt(self) -> BaseException:
        """Return an exception of the same class and message, caused by the host's traceback.

        If the original class is not imported here, or would show another message, the exception is of a RuntimeError
        subclass of the same name.
        """
        error = self._of_the_original_class()
        if error is None:
            made: Any = type(self.name.rpartition(".")[2], (RuntimeError,), {"__module__": self.module})
            error = made(self.message)
        error.__cause__ = HostTraceback(self.traceback)
        return error

    def _of_the_original_class(self) -> BaseException | None:
        found: Any = builtins if self.module == "builtins" else sys.modules.get(self.module)
        for name in self.name.split("."):
            found = getattr(found, name, None)
        if not (isinstance(found, type) and issubclass(found, BaseException)):
            return None
        try:
            # Not by its constructor, which may take other arguments, or do anything.
            error = found.__new__(found, *self.arguments)
            return error if str(error) == self.message else None
        except Exception:  # `__new__` takes other arguments, or `__str__` reads what the constructor would have set
            return None
