"""The executor and the box for untrusted code on a machine that has Docker, or bubblewrap, or neither."""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from ..docker.box import DockerBox
from ..docker.executor import DockerExecutor
from ..docker.images import build_image
from ..errors import EngineError
from ..local.bwrap import BwrapExecutor
from ..local.bwrap_box import BwrapBox
from ..local.bwrap_sandbox import require_bubblewrap

logger = logging.getLogger(__name__)


def default_executor(**options: Any) -> DockerExecutor | BwrapExecutor:
    """Return a `DockerExecutor` if a container engine answers, else a `BwrapExecutor` if bubblewrap makes boxes here.

    Both run untrusted code; docs/without_docker.md says how they differ. The first call makes the default image if the
    engine has none of this Python, which takes seconds.

    Args:
        options: the arguments that both have: `limits`, `env`, `files`, `preload`, `best_effort` and `start_timeout`.

    Raises:
        EngineError: there is neither; the message says what to do.
        ImageError: an engine answers, but no image can be made from this machine's Python.
        TypeError, ValueError: an option is unknown or out of range.
    """
    return (DockerExecutor if _has_engine() else BwrapExecutor)(**options)


def default_box(**options: Any) -> DockerBox | BwrapBox:
    """Return a `DockerBox` or a `BwrapBox`, as `default_executor` chooses and raises.

    Args:
        options: the arguments that both have: `image`, `limits`, `env`, `best_effort` and `start_timeout`.
    """
    return (DockerBox if _has_engine() else BwrapBox)(**options)


def _has_engine() -> bool:
    """Return whether to take Docker, or else bubblewrap; an EngineError if there is neither."""
    problem = _problem_of_engine(os.environ.get("DOCKER_HOST", ""))
    if problem:
        try:
            require_bubblewrap()
        except EngineError as error:
            raise EngineError(f"{problem} There are no boxes without an engine either: {error}.") from None
        logger.info("boxes are made by bubblewrap: %s", problem)
    return not problem


@cache
def _problem_of_engine(address: str) -> str:
    """Return why no engine can be used, or "" if one has the default image; `address` is that of DOCKER_HOST."""
    with ThreadPoolExecutor(1) as thread:  # which has no event loop, while this one may
        try:
            thread.submit(asyncio.run, build_image()).result()
        except EngineError as error:
            return str(error)
    return ""
