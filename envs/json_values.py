"""Values of users as JSON has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import pydantic_core

from .images import Image, is_picture

_MOST_LEVELS = 64  # pydantic reads some 200, and an episode nests the arguments of a call in further levels


def encodable(value: Any) -> Any:
    """Return the value with lone surrogates escaped, since UTF-8 cannot hold them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list | tuple):
        return [encodable(item) for item in value]
    if isinstance(value, dict):
        return {encodable(key) if isinstance(key, str) else key: encodable(item) for key, item in value.items()}
    return value


def check_depth(value: Any) -> None:
    """Raise a ValueError if lists and objects are nested deeper than 64 levels: a record could not hold them."""
    level = [value]
    for _ in range(_MOST_LEVELS + 1):
        level = [part for whole in level for part in _parts(whole)]
        if not level:
            return
    raise ValueError(f"it is nested too deeply, in more than {_MOST_LEVELS} levels")


def _parts(whole: Any) -> Iterable[Any]:
    if isinstance(whole, Mapping):
        return whole.values()
    return whole if isinstance(whole, list | tuple) else ()


def plain(value: Any) -> Any:
    """Replace a value that JSON does not have: pictures by an `Image`, arrays by lists of numbers, others by `repr`."""
    if is_picture(value):
        return Image.of(value)
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def jsonable(value: Any, images: dict[str, Image] | None) -> Any:
    """Return a value of a row or a report as JSON; `images` gets the pictures, whose digests then stand for them."""
    options: Any = {"inf_nan_mode": "strings", "fallback": plain, "context": images}
    try:
        return pydantic_core.from_json(pydantic_core.to_json(_picture(value), **options))
    except ValueError:  # bytes that are not UTF-8, lone surrogates, circular references
        return repr(value)


def _picture(value: Any) -> Any:
    """Return the image of a picture as data sets have it, and another value as it is."""
    if isinstance(value, Mapping) and value.keys() == {"bytes", "path"} and isinstance(value["bytes"], bytes):
        with suppress(ValueError):
            return Image(value["bytes"])
    return value
