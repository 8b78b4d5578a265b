"""Checks the arguments of a tool call, and explains to the model what is wrong with them."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError


class ArgumentError(ValueError):
    """The model's arguments do not fit the tool's signature; the message is written for the model."""


def checked_arguments(name: str, arguments: Any, validator: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the arguments of a tool, checked and converted; a string that holds JSON is accepted at both levels.

    Raises:
        ArgumentError: they do not fit.
    """
    try:
        if isinstance(arguments, str):
            arguments = _from_json(arguments) if arguments.strip() else {}
        if not isinstance(arguments, Mapping):
            raise ArgumentError(f"{name}: arguments must be a JSON object, got {_shorten(arguments)}")
        # A copy: the tool may change its arguments, and the message must keep the model's own.
        return _validate(name, {key: _copied(value) for key, value in arguments.items()}, validator)
    except RecursionError:
        raise ArgumentError(f"{name}: the arguments are nested too deeply") from None


def _validate(name: str, arguments: dict[str, Any], validator: TypeAdapter[Any]) -> dict[str, Any]:
    try:
        return validator.validate_python(arguments)
    except ValidationError as error:
        first = error
    try:
        return validator.validate_python(_decode_strings(arguments, first))
    except ValidationError:
        raise ArgumentError(_explain(name, first)) from None


def _copied(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) else copy.deepcopy(value)


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"arguments must be a JSON object, got {_shorten(text)} ({error})") from None


def _decode_strings(arguments: Mapping[str, Any], error: ValidationError) -> dict[str, Any]:
    """Return the arguments with the JSON that each refused string holds, if any, in its place."""
    decoded = dict(arguments)
    for key in {detail["loc"][0] for detail in error.errors() if detail["loc"]}:
        value = decoded.get(str(key))
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                decoded[str(key)] = json.loads(value)
    return decoded


def _explain(name: str, error: ValidationError) -> str:
    details = []
    for detail in error.errors():
        where = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "missing":
            details.append(f"missing argument {where!r}")
        elif detail["type"] == "extra_forbidden":
            details.append(f"unknown argument {where!r}")
        else:
            what = f"argument {where!r}" if where else "the arguments"  # a rule of a JSON schema about all of them
            details.append(f"{what}: {detail['msg']}, got {_shorten(detail['input'])}")
    return f"{name}: " + "; ".join(details)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
