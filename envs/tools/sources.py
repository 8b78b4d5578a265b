"""Tools that exist only while something is open, such as the tools of a server."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from .tool import Tool


class ToolSource(abc.ABC):
    """Something that has tools while it is open. Put it among the `tools` of a `ToolEnv`.

    The environment opens it at each reset, and closes it when the environment is closed or reset again. All copies of
    the environment share the source itself.
    """

    @abc.abstractmethod
    def open(self) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Open it for one episode. The context may end in another task and another event loop."""


ToolLike = Callable[..., Any] | Tool | ToolSource
"""What the `tools` of a `ToolEnv` may be."""
