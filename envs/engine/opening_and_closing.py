"""The life of one episode's environment: made in a worker thread, closed exactly once, and every error at its stage."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import gymnasium

from ..sandbox.cancellation import finish
from .core import Environment
from .episode import EpisodeSpec, Failure, Stage
from .threads import being_cancelled, run_in_thread

CLOSE_SECONDS = 30.0  # an environment that takes longer to close is left to itself


class Broken(Exception):
    """Carries what broke the episode to the place that records it."""

    def __init__(self, stage: Stage, error: BaseException) -> None:
        super().__init__(stage)
        self.stage: Stage = stage
        self.error = error


class at_stage:  # read as `with at_stage("step"):`
    """Turn whatever is raised within into `Broken`; only a cancellation of ours passes.

    A class and no generator, since each turn enters it three times.
    """

    __slots__ = ("_stage",)

    def __init__(self, stage: Stage) -> None:
        self._stage: Stage = stage

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, GeneratorExit):
            return
        if isinstance(error, asyncio.CancelledError) and being_cancelled():
            return
        raise Broken(self._stage, error) from error  # a SystemExit too: an environment's must not end training


async def open_environment(
    create: Callable[[EpisodeSpec], gymnasium.Env[Any, Any]], spec: EpisodeSpec
) -> gymnasium.Env[Any, Any]:
    """Make an environment in a worker thread, since a constructor may block.

    Cancelled meanwhile, it leaves no environment open: the one that is still being made is closed by its thread.
    """
    lock = threading.Lock()
    abandoned = False
    made: gymnasium.Env[Any, Any] | None = None

    def make() -> gymnasium.Env[Any, Any]:
        nonlocal made
        environment = create(spec)
        with lock:
            if not abandoned:
                made = environment
                return environment
        environment.close()
        return environment

    try:
        return await run_in_thread(make)
    except BaseException:
        with lock:
            abandoned = True
        if made is not None:
            await finish(close_environment(made))
        raise


async def close_environment(environment: gymnasium.Env[Any, Any]) -> Failure | None:
    """Close it; what goes wrong is returned, since the episode itself stands."""
    closing = environment.aclose() if isinstance(environment, Environment) else run_in_thread(environment.close)
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await closing
    except GeneratorExit:
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and being_cancelled():
            raise
        return Failure.of("close", error)
    return None
