"""Making and closing the environment of one episode, and sorting exceptions by stage."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from ...sandbox.cancellation import finish
from ..core import Environment
from ..episode import EpisodeSpec, Failure, Stage
from ..runtime.threads import run_in_thread
from ..runtime.user_calls import being_cancelled, within

GRACE_SECONDS = 30.0  # after the end of an episode, for a step that still runs in a thread, and for `close`


class Broken(Exception):
    """An exception of the environment or the policy, and the stage at which it was raised."""

    def __init__(self, stage: Stage, error: BaseException) -> None:
        super().__init__(stage)
        self.stage: Stage = stage
        self.error = error


class at_stage:  # read as `with at_stage("step"):`
    """Turns every exception in the block into `Broken`, `SystemExit` included: user code must not end training.

    Only a cancellation of this task passes unchanged, and a `Broken`, whose stage is known. It is a class because each
    turn enters it three times, and a generator-based context manager is slower.
    """

    __slots__ = ("_stage",)

    def __init__(self, stage: Stage) -> None:
        self._stage: Stage = stage

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, GeneratorExit | Broken):
            return
        if isinstance(error, asyncio.CancelledError) and being_cancelled():
            return
        raise Broken(self._stage, error) from error


async def open_environment(
    create: Callable[[EpisodeSpec], gymnasium.Env[Any, Any]], spec: EpisodeSpec
) -> gymnasium.Env[Any, Any]:
    """Make an environment in a thread, since a constructor may block.

    If this is cancelled, no environment stays open: the thread closes the environment that it is still making.
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


async def wait_for_threads(calls: Sequence[asyncio.Future[Any]], name: str) -> None:
    """Wait for a step that was cancelled while it ran in a thread: the environment must not change while it is graded.

    Raises:
        TimeoutError: it goes on for too long.
    """
    own = [call for call in calls if call.get_loop() is asyncio.get_running_loop()]  # others ran inside these
    late = TimeoutError(f"{name}.step() was still running in its thread {GRACE_SECONDS:g} s after episode_timeout")
    if own:
        await within(GRACE_SECONDS, late, asyncio.wait(own))


async def close_environment(environment: gymnasium.Env[Any, Any]) -> Failure | None:
    """Close an environment. An error is returned, not raised: the episode itself stands."""
    closing = environment.aclose() if isinstance(environment, Environment) else run_in_thread(environment.close)
    late = TimeoutError(f"{type(environment.unwrapped).__name__}.close() did not finish within {GRACE_SECONDS:g} s")
    try:
        await within(GRACE_SECONDS, late, closing)
    except GeneratorExit:
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and being_cancelled():
            raise
        return Failure.of("close", error)
    return None
