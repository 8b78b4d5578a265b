"""Messages between a `WebSocketLink` and a server, as JSON.

JSON and not pickle: a pickle may run any code where it is read.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from inspect import signature
from numbers import Integral, Real
from typing import Any

from ...envs.core import StepResult
from ...envs.engine.environment_caller import Grade
from ...envs.episode import ToolCallRecord
from ...envs.images import Image
from ...envs.runtime.rows import Row
from ..hosting.caught_errors import CaughtError
from ..hosting.link import Opened, ResetReply, StepReply

MAX_BYTES = 64 * 2**20  # of one message

_CLASSES: dict[str, Any] = {
    f"${kind.__name__}": kind
    for kind in (Opened, ResetReply, StepReply, StepResult, Grade, CaughtError, ToolCallRecord, Image)
}
_ARGUMENTS = {tag: [*signature(kind).parameters] for tag, kind in _CLASSES.items()}


def to_text(message: Mapping[str, Any]) -> str:
    """Write a message of plain values, bytes, images, and the classes of this contract.

    Raises:
        TypeError: it holds another kind of value.
        ValueError: it is longer than `MAX_BYTES`.
    """
    try:
        text = json.dumps(_plain(message), separators=(",", ":"))
    except RecursionError:
        raise ValueError("a message is nested too deeply to be sent") from None
    if len(text) > MAX_BYTES:  # one byte for each character: others are escaped
        raise ValueError(f"a message of {len(text) / 2**20:.0f} MiB is too long; the most are {MAX_BYTES // 2**20} MiB")
    return text


def from_text(text: str) -> Any:
    """Read a message that `to_text` wrote; a ValueError or TypeError if it is no such message."""
    return json.loads(text, object_hook=_read)


def _plain(value: Any) -> Any:
    """Return the value as JSON has it. Other types are an object with one key that begins with "$"."""
    tag = f"${type(value).__name__}"
    if _CLASSES.get(tag) is type(value):
        return {tag: {name: _plain(getattr(value, name)) for name in _ARGUMENTS[tag]}}
    match value:
        case None | bool():
            return value
        case str():
            return str(value)  # members of a StrEnum, too
        case Integral():
            return int(value)
        case Real():
            return float(value)
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
        case tuple():
            return {"$tuple": [_plain(part) for part in value]}
        case list():
            return [_plain(part) for part in value]
        case Row():
            return {"$row": _plain(dict(value))}
        case Mapping():
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return {key: _plain(part) for key, part in value.items()}
            return {"$dict": [[_plain(key), _plain(part)] for key, part in value.items()]}
    raise TypeError(
        f"a host without Ray takes and gives text, numbers, bytes, images, lists and dicts, not "
        f"{type(value).__name__}: {value!r:.200}"
    )


def _read(found: dict[str, Any]) -> Any:
    if len(found) != 1:
        return found
    [(tag, content)] = found.items()
    match tag:
        case "$bytes":
            return base64.b64decode(content)
        case "$tuple":
            return tuple(content)
        case "$dict":
            return dict(content)
        case "$row":
            return Row(content)
    return _CLASSES[tag](**content) if tag in _CLASSES else found
