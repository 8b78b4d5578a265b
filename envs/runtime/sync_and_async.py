"""Derive the asynchronous form of an environment's method from the synchronous one, or the other way round."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from .threads import run_in_loop, run_in_thread


def derive_other_form(cls: type, name: str) -> None:
    """Add the other form of a method to a class that writes one form of it.

    A derived form calls the function that it was derived from, and does not look its name up on `self`. So `super()`
    works in both forms, also if base classes write another form than their subclasses.
    """
    if inspect.iscoroutinefunction(vars(cls).get(name)):
        raise TypeError(f"{cls.__name__}.{name} is `async def`: the asynchronous form is called a{name}, rename it")
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
