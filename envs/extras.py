"""The error of a part of gymnast whose packages an extra installs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .core import ConfigurationError


class MissingExtraError(ConfigurationError, ImportError):
    """A package is missing that an extra of gymnast-rl installs."""


@contextmanager
def needs_extra(extra: str, subject: str) -> Iterator[None]:
    """Name the extra of gymnast-rl that installs the packages imported within this context.

    Raises:
        MissingExtraError: an import failed.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(f"{subject} needs the extra `{extra}` of gymnast-rl ({error})") from error
