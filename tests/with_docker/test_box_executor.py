"""BoxExecutor: the sessions of an executor in a `DockerBox` and in a `BwrapBox`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from gymnast.envs import CodeEnv, RolloutEngine, ScriptedPolicy, tool_call
from gymnast.envs.engine.rollout_engine import episode_specs
from gymnast.sandbox import (
    DEFAULT_IMAGE,
    Box,
    BoxExecutor,
    BoxImage,
    BwrapBox,
    DockerBox,
    EngineError,
    ExecutionResult,
    ExecutorPool,
    ImageError,
    Limits,
    SandboxClosedError,
    SandboxLostError,
)
from gymnast.sandbox.testing.conformance import NEEDS, check

from ..sandbox.boxes import GRACE

LIMITS = Limits(grace=GRACE)
pytestmark = pytest.mark.usefixtures("image", "nothing_left")


class Narrow(Box):
    """A box that cannot keep a program's streams."""

    async def start(self) -> None:
        self._begin()

    async def exec(self, command: str | Sequence[str], **options: Any) -> ExecutionResult:
        raise NotImplementedError

    async def close(self) -> None:
        self._state = "closed"


async def test_sessions_in_a_docker_box_keep_the_contract() -> None:
    report = await check(lambda: BoxExecutor(DockerBox(limits=LIMITS)), provides=NEEDS)
    assert report.ok, report
    assert len(report.passed) > 80


@pytest.mark.usefixtures("bubblewrap")
async def test_sessions_in_a_box_with_one_user() -> None:
    async with BoxExecutor(BwrapBox(limits=LIMITS), files={"a.txt": "x"}, env={"A": "b"}) as executor:
        assert (await executor.python("import os; os.getuid(), os.environ['A']")).value == "(0, 'b')"
        assert (await executor.bash("cat a.txt; echo y > b.txt")).stdout == "x"
        assert await executor.read_file("b.txt") == b"y\n"
        await executor.reset()
        assert [entry.path for entry in await executor.list_files()] == ["a.txt"]


async def test_the_code_does_not_end_its_guest() -> None:
    attacks = ["os.kill(os.getppid(), 9)", "os.kill(-1, 9)", "os.rename('..', '../../gone')", "os.unlink('../.tools')"]
    async with BoxExecutor(DockerBox(limits=LIMITS), user=1234) as executor:
        assert (await executor.python("import os; os.getuid()")).value == "1234"
        for attack in attacks:
            await executor.python(attack)
            assert (await executor.python("6 * 7")).value == "42", attack
        await executor.write_file("a/b.txt", "x")
        assert (await executor.bash("stat -c %u a/b.txt; pwd")).stdout.startswith("1234\n/tmp/gymnast-")


async def test_a_box_that_dies_is_lost_and_replaced_by_a_reset() -> None:
    async with BoxExecutor(DockerBox(limits=LIMITS), user=0) as executor:
        with pytest.raises(SandboxLostError, match="it has ended"):
            await executor.python(f"import os; os.kill(os.getppid(), {signal.SIGKILL:d})")
        assert executor.retire_reason is not None
        await executor.reset()
        assert (await executor.python("6 * 7")).value == "42"


async def test_closing_while_code_runs_leaves_nothing() -> None:
    executor = BoxExecutor(DockerBox(limits=LIMITS))
    await executor.start()
    call = asyncio.ensure_future(executor.bash("sleep 600"))
    await asyncio.sleep(0.1)
    await executor.close()
    with pytest.raises(SandboxLostError):
        await call
    with pytest.raises(SandboxClosedError):
        await executor.python("1")


def double(number: int) -> int:
    """Double a number.

    Args:
        number: The number.
    """
    return 2 * number


async def test_an_environment_plays_in_such_boxes() -> None:
    """With a function of the host that the code calls, and an image that the row names."""
    code = "import os\nfrom tools import double\nprint(double(number=21), os.getuid())"
    rows = [{"prompt": "?", "answer": "x"}, {"prompt": "?", "answer": "x", "image": DEFAULT_IMAGE}]
    async with ExecutorPool(BoxExecutor(DockerBox(limits=LIMITS)), max_boxes=2) as pool:
        policy = ScriptedPolicy([tool_call("python", code=code), "done"])
        engine = RolloutEngine(CodeEnv(pool, tools=[double]), policy)
        for episode in await engine.run(episode_specs(rows, group_size=1, seed=0)):
            assert episode.messages[2].get("content") == "42 1000", episode


class Faulty(BwrapBox):
    """A box whose programs cannot be opened, for a reason of its own."""

    def open(self, *args: Any, **options: Any) -> Any:
        raise KeyError("no such region")


@pytest.mark.usefixtures("bubblewrap")
async def test_an_error_of_a_box_of_somebody_else_is_shown() -> None:
    with pytest.raises(EngineError, match="no such region"):
        await BoxExecutor(Faulty(limits=LIMITS)).start()


async def test_what_a_box_lacks_is_named(busybox: BoxImage) -> None:
    with pytest.raises(ImageError, match="the box has no python3 on its PATH"):
        await BoxExecutor(DockerBox(image=busybox)).start()
    with pytest.raises(ImageError, match="the module nowhere, named in preload"):
        await BoxExecutor(DockerBox(), preload=["nowhere"]).start()
    with pytest.raises(TypeError, match="Narrow cannot keep a program's streams"):
        BoxExecutor(Narrow())
    with pytest.raises(TypeError, match="BwrapBox has one user"):
        BoxExecutor(BwrapBox(), user=7)
    for user in (-1, "root"):
        with pytest.raises(ValueError, match=f"user must be the id of a user.* got {user!r}"):
            BoxExecutor(DockerBox(), user=user)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="box must be a box that is not started"):
        BoxExecutor(os)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
