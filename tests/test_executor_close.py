"""Closing an executor while it is doing something else, at any moment: nothing is left, and nobody hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gymnast.sandbox import DockerExecutor, Executor, LocalExecutor, SandboxClosedError, SandboxError

from .boxes import LIMITS, eventually, own_containers

MAKERS: dict[str, Callable[[], Executor]] = {"docker": lambda: DockerExecutor(limits=LIMITS), "local": LocalExecutor}


@pytest.fixture(params=MAKERS)
def executor(request: pytest.FixtureRequest) -> Executor:
    if request.param == "docker":
        request.getfixturevalue("image")
    return MAKERS[request.param]()


@pytest.mark.parametrize("milliseconds", [0, 5, 20, 60, 120, 200, 300])
async def test_closed_while_it_starts(executor: Executor, milliseconds: int) -> None:
    starting = asyncio.ensure_future(executor.start())
    await asyncio.sleep(milliseconds / 1000)
    async with asyncio.timeout(20):
        await executor.close()
        [outcome] = await asyncio.gather(starting, return_exceptions=True)
    assert outcome is None or isinstance(outcome, SandboxClosedError)
    await check_closed(executor)


@pytest.mark.parametrize("milliseconds", [0, 2, 5, 10, 20])
async def test_closed_while_it_is_reset(executor: Executor, milliseconds: int) -> None:
    await executor.start()
    resetting = asyncio.ensure_future(executor.reset())
    await asyncio.sleep(milliseconds / 1000)
    async with asyncio.timeout(20):
        await executor.close()
        [outcome] = await asyncio.gather(resetting, return_exceptions=True)
    assert outcome is None or isinstance(outcome, SandboxError)
    await check_closed(executor)


async def check_closed(executor: Executor) -> None:
    assert executor.state == "closed"
    with pytest.raises(SandboxClosedError):
        await executor.python("1")
    if isinstance(executor, DockerExecutor):
        assert await eventually(lambda: not own_containers(), 2)
    else:
        assert executor._process is None  # type: ignore[attr-defined]
