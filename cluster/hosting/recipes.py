"""Pickles environments for other machines: as the arguments of their constructors, not as their present state."""

from __future__ import annotations

import io
import types
from functools import partial
from typing import Any

import cloudpickle

from ...envs.core import ConfigurationError, Environment
from ...envs.tools.mark import recipe_of


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Environment):
            arguments, options = obj._constructor
            return partial(type(obj), *arguments, **options), ()
        recipe = recipe_of(obj) if isinstance(obj, types.FunctionType) else None
        return recipe or super().reducer_override(obj)


def pack(value: Any, what: str) -> bytes:
    """Pickle an environment, a class, a function, or a dict of these. Code of the main program is included.

    An environment becomes a fresh one, as `clone` makes it.

    Raises:
        ConfigurationError: it cannot be pickled.
    """
    file = io.BytesIO()
    try:
        _Pickler(file).dump(value)
    except Exception as error:
        raise ConfigurationError(
            f"{what} cannot be sent to another machine ({type(error).__name__}: {error}); pass a class, or a function "
            f"that makes everything on the host"
        ) from error
    return file.getvalue()
