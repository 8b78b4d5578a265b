#!/usr/bin/env python3
"""Functions that run outside of this box; a call that fails raises ToolError.

In a shell they are commands: `tools NAME --argument value`.
"""

# ruff: noqa: SIM105, T201 - this module is small, and also a command

from __future__ import annotations

import functools
import inspect
import json
import os
import socket
import sys
from typing import Any, Literal, get_type_hints  # noqa: F401 - the functions at the end of this file use them

__all__ = []  # the functions

_LONGEST = 1 << 20  # bytes of a call
_SOCKET = os.path.join(os.path.dirname(os.path.abspath(__file__)), "socket")


class ToolError(Exception):
    """The tool refused the call, or failed; the message says why."""


def _tool(name, names):
    """Let a declared function call the tool `name`; `names` has the tool's name of each of its parameters."""

    def made(declared):
        try:
            declared.__annotations__ = get_type_hints(declared)  # so that help() shows types, and not their texts
        except TypeError:  # `list[str]` before Python 3.9, `int | None` before 3.10
            pass
        signature = inspect.signature(declared)

        @functools.wraps(declared)
        def function(*positional, **named):
            declared(*positional, **named)  # does nothing but raise the TypeError of arguments that do not fit
            given = signature.bind(*positional, **named).arguments
            return _call(name, {names[parameter]: value for parameter, value in given.items()})

        __all__.append(declared.__name__)
        return function

    return made


def _call(name, arguments):
    request = json.dumps({"name": name, "arguments": arguments}, default=_plain, allow_nan=False).encode()
    if len(request) > _LONGEST:
        raise ToolError(f"{name}: the arguments have {len(request)} bytes, more than {_LONGEST}: pass less")
    answer = json.loads(_exchange(name, request))
    if answer.get("error") is not None:
        raise ToolError(answer["error"])
    if answer.get("final"):
        raise SystemExit
    return json.loads(answer["content"]) if answer["is_json"] else answer["content"]


def _plain(value):
    if hasattr(value, "tolist"):  # an array, or a number of NumPy
        return value.tolist()
    raise TypeError(f"an argument is a {type(value).__name__}: pass text, numbers, lists and dicts")


def _exchange(name, request):
    with socket.socket(socket.AF_UNIX) as channel:
        try:
            channel.connect(_SOCKET)
            channel.sendall(len(request).to_bytes(4, "big") + request)
            with channel.makefile("rb") as stream:
                size = stream.read(4)
                answer = stream.read(int.from_bytes(size, "big"))
        except OSError as error:
            raise ToolError(f"{name}: {error}") from None
    if not answer:
        raise ToolError(f"{name}: there was no answer, as the code that the call belongs to has ended")
    return answer


def _main(words):
    functions = {name: globals()[name] for name in __all__}
    if not words or words[0] not in functions:
        for name, function in functions.items():
            summary = (function.__doc__ or "").partition("\n")[0]
            print(f"{name}{inspect.signature(function)}: {summary}")
        sys.exit(f"tools: there is no {words[0]}" if words and words[0] not in ("-h", "--help") else 0)
    function = functions[words[0]]
    if {"-h", "--help"} & set(words):
        print(f"{words[0]}{inspect.signature(function)}\n\n{inspect.getdoc(function)}")
        return
    try:
        value = function(**_arguments(words[1:]))
    except (TypeError, ToolError) as error:
        sys.exit(f"tools: {error}")
    print(value if isinstance(value, str) else json.dumps(value))


def _arguments(words):
    """Return the arguments as texts: the host converts them."""
    arguments, words = {}, list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            sys.exit(f"tools: expected --NAME VALUE, got {word!r}")
        name, has_value, value = word[2:].partition("=")
        if not has_value:
            value = words.pop(0) if words and not words[0].startswith("--") else "true"
        arguments[name.replace("-", "_")] = value
    return arguments
