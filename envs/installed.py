"""The environments that installed packages offer by the entry-point group `gymnast.environments`."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

GROUP = "gymnast.environments"


def installed_environments() -> list[EntryPoint]:
    """Return what installed packages offer, by name; nothing is imported."""
    return sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, package_of(entry)))


def package_of(entry: EntryPoint) -> str:
    """Return the package that makes an offer, and its version: `guess 0.1.0`."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"


def load_installed(name: str) -> Any | None:
    """Return what a package offers by this name: an environment class or a factory; None if no package does.

    Raises:
        ValueError: several packages offer the name, or it cannot be imported.
    """
    entries = [entry for entry in installed_environments() if entry.name == name]
    if not entries:
        return None
    if len(entries) > 1:
        packages = " and ".join(map(package_of, entries))
        raise ValueError(f"{packages} offer an environment {name!r}; name the class itself, such as {entries[0].value}")
    [entry] = entries
    try:
        return entry.load()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{name!r} of {package_of(entry)}, {entry.value}, cannot be loaded: {reason}") from error
