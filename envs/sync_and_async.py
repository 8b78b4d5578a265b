"""The two forms of an environment's methods: from the one that a class writes, the other one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from .threads import run_in_loop, run_in_thread


def derive_other_form(cls: type, name: str) -> None:
    """Give a class that writes one form of a method the other one.

    Each derived form calls the very function that it was derived from, not whatever `self` has under that name: so
    `super()` works in both forms, however a hierarchy mixes them.
    """
    for base in cls.__mro__:
        blocking, asynchronous = vars(base).get(name), vars(base).get(f"a{name}")
        if blocking is not None and asynchronous is None:
            setattr(cls, f"a{name}", _asynchronous_form(blocking))
        if asynchronous is not None and blocking is None:
            setattr(cls, name, _synchronous_form(asynchronous))
        if blocking is not None or asynchronous is not None:
            return


def _asynchronous_form(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    async def form(*args: Any, **kwargs: Any) -> Any:
        return await run_in_thread(function, *args, **kwargs)

    return form


def _synchronous_form(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def form(*args: Any, **kwargs: Any) -> Any:
        return run_in_loop(function(*args, **kwargs))

    return form
