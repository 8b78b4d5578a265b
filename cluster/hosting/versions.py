"""The versions that a trainer and its hosts must share."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from gymnast import __version__

from ...envs.core import ConfigurationError


def versions() -> dict[str, str]:
    """Return the versions of gymnast, Python (without its third number) and Ray (if installed) in this process."""
    found = {"gymnast": __version__, "Python": ".".join(platform.python_version_tuple()[:2])}
    with suppress(PackageNotFoundError):
        found["Ray"] = version("ray")
    return found


def check_versions(place: str, theirs: Mapping[str, str]) -> None:
    """Compare the versions that a host tells with those of this process.

    Raises:
        ConfigurationError: they differ.
    """
    ours = versions()
    different = [
        f"{name} {number} (here {ours.get(name, 'missing')})"
        for name, number in theirs.items()
        if number != ours.get(name)
    ]
    if different:
        raise ConfigurationError(f"{place} has {', '.join(different)}; install the same versions on all machines")
