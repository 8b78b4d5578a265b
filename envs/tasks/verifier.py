"""The verdict on one stage of a task: its tests run in a box that the agent never touched, or in the agent's own.

A reward comes out of a file that the tests write, and never out of an exit code. Tests without a verdict must judge the
task's untouched image: otherwise the episode fails. If they do, they run again, and the agent's files are at fault if
there is no verdict again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import posixpath
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from ...sandbox.box import Box
from ...sandbox.box_image import BoxImage
from ...sandbox.errors import SandboxFileError, SandboxFileNotFoundError, SandboxLostError
from ..core import BrokenEnvironmentError
from .harbor import ARTIFACTS, HarborTask, Stage
from .machine import LOGS, SetupError, become_healthy, box_of, run_or_raise, set_up
from .settings import Machine, resolve_variables

Verify = Literal["separate", "shared"]

_RUNS = 3  # of the tests, at most: twice on the agent's files, and once on the untouched image
_AROUND = 120.0  # seconds to make a box and fill it
_KEPT = 20_000  # bytes of a log, its end
_LARGEST = 1 << 20  # bytes of a file with rewards

LentBox = Callable[[], AbstractAsyncContextManager[Box]]


class NoVerdictError(BrokenEnvironmentError):
    """The tests of a task gave no reward, and the agent is not to blame."""


@dataclass(kw_only=True, slots=True)
class Verdict:
    """What tests said."""

    rewards: Mapping[str, float] = field(default_factory=dict)  # by key; empty if there is no verdict
    reason: str = ""  # why there is none
    log: str = ""  # the end of what the tests printed
    seconds: float = 0.0

    @property
    def reward(self) -> float:
        """The reward of this key, or else the mean of all."""
        return self.rewards.get("reward", fmean(self.rewards.values()))


def seconds_of_verdict(stage: Stage) -> float:
    """Return the seconds that a verdict may take: tests that hang must not make the episode fail by `step_timeout`."""
    hooks = sum(hook.timeout_sec for hook in stage.verifier.collect)
    return hooks + _RUNS * (stage.verifier.timeout_sec + _AROUND)


async def verify(box: Box, prototype: Box, task: HarborTask, stage: Stage, *, how: Any, mode: Verify) -> Verdict:
    """Judge a stage by the files in the agent's box.

    Args:
        box: The agent's box.
        prototype: The box that others are made like.
        task: The task.
        stage: The stage that is over.
        how: The directory and the variables of the programs in the box.
        mode: "shared" runs tests that share the agent's box, as their task says, in that very box.

    Raises:
        NoVerdictError: the tests gave no reward, and the agent is not to blame.
        SandboxError: a box broke, and the agent is not to blame.
    """
    for hook in stage.verifier.collect:
        # A hook that fails leaves no artifact: the tests see it.
        with contextlib.suppress(ValueError, SandboxFileError):
            await box.exec(hook.command, timeout=hook.timeout_sec, **{**how, "user": hook.user})
    own_network = task.network(stage.verifier) != task.network(stage.agent)
    is_shared = mode == "shared" and stage.verifier.mode != "separate" and not own_network
    hand_in = _live if is_shared else _artifacts if stage.verifier.mode == "separate" else _snapshot
    async with hand_in(box, prototype, task, stage, how) as lent_box:
        verdict = await _judge_in(lent_box, stage, how, of_agent=box)
        if verdict.rewards:
            return verdict
        untouched = await _judge_in(lambda: _untouched(prototype, task, stage), stage, how)
        if not untouched.rewards:
            raise NoVerdictError(_why(task, stage, untouched))
        verdict = await _judge_in(lent_box, stage, how, of_agent=box)
    if not verdict.rewards:
        verdict.rewards = {"reward": 0.0}
        verdict.log += f"\n[no verdict: {verdict.reason}; on the untouched image there is one, so the reward is 0]"
    return verdict


def _why(task: HarborTask, stage: Stage, verdict: Verdict) -> str:
    place = f"{task.folder.name}, {stage.name}" if stage.name else task.folder.name
    return f"the tests of {place} gave no verdict: {verdict.reason}. They printed:\n{verdict.log[-1000:]}"


# The boxes in which tests run.


@contextlib.asynccontextmanager
async def _live(box: Box, prototype: Box, task: HarborTask, stage: Stage, how: Any) -> AsyncIterator[LentBox]:
    """Lend the agent's box."""
    yield lambda: contextlib.nullcontext(box)


@contextlib.asynccontextmanager
async def _snapshot(box: Box, prototype: Box, task: HarborTask, stage: Stage, how: Any) -> AsyncIterator[LentBox]:
    """Lend boxes that have the files of the agent's box, and none of its processes."""
    async with box.snapshot() as image:
        yield lambda: box_of(prototype, task, stage.verifier, machine=task.machine, image=image)


@contextlib.asynccontextmanager
async def _artifacts(box: Box, prototype: Box, task: HarborTask, stage: Stage, how: Any) -> AsyncIterator[LentBox]:
    """Lend boxes of the verifier's image, which have the artifacts of the agent's box."""
    with tempfile.TemporaryDirectory(prefix="gymnast-artifacts-") as name:
        copies: list[tuple[Path, str]] = []
        for number, artifact in enumerate(stage.artifacts):
            source = posixpath.join(how["cwd"], artifact.source)
            folder = Path(name) / str(number)
            with contextlib.suppress(SandboxFileNotFoundError):  # the agent has not made it
                await box.copy_out(source, folder, exclude=artifact.exclude)
                copies.append((folder, posixpath.dirname(source) if await _is_file(box, source, folder) else source))

        @contextlib.asynccontextmanager
        async def fresh_box() -> AsyncIterator[Box]:
            async with _untouched(prototype, task, stage) as fresh:
                for folder, target in copies:
                    await fresh.copy_in(folder, target)
                yield fresh

        yield fresh_box


async def _is_file(box: Box, source: str, copy: Path) -> bool:
    """Return whether a path in the agent's box is a file. Believe it only if the copy can be that of a file.

    The content of a folder beside its name would be files of the agent's choice, such as `/tests/test.sh`.
    """
    try:
        await box.exec(["true"], cwd=source, user=0)  # no program of the box is asked: any of them may be the agent's
    except SandboxFileError:
        return os.listdir(copy) == [posixpath.basename(source)]
    return False


@contextlib.asynccontextmanager
async def _untouched(prototype: Box, task: HarborTask, stage: Stage) -> AsyncIterator[Box]:
    """Lend a box in which no agent has been."""
    own, machine = stage.verifier_image, stage.verifier.environment or task.machine
    image = None
    if own is not None:
        image = BoxImage.dockerfile(own) if isinstance(own, Path) else BoxImage.named(own)
    async with box_of(prototype, task, stage.verifier, machine=machine, image=image) as box:
        if own is None:
            await set_up(box, task)
        yield box


# The tests.


async def _judge_in(lent_box: LentBox, stage: Stage, how: Any, *, of_agent: Box | None = None) -> Verdict:
    """Run the tests in a box. The agent's files may break it, for instance by asking for all of its memory."""
    box = None
    try:
        async with lent_box() as box:
            return await _judge(box, stage, how)
    except (SandboxLostError, SandboxFileError, SetupError, ValueError) as error:
        if isinstance(error, SandboxLostError) and box in (None, of_agent):
            raise
        return Verdict(reason=f"their box broke: {error}")


async def _judge(box: Box, stage: Stage, how: Any) -> Verdict:
    verifier, started = stage.verifier, time.monotonic()
    own = stage.verifier_image is not None  # which has the tests
    remove = f"rm -rf {LOGS} {'' if own else '/tests'} && mkdir -p {LOGS} {ARTIFACTS} && chmod 777 {LOGS} {ARTIFACTS}"
    await run_or_raise(box, remove, "the removal of old rewards", user=0)
    for folder in () if own else stage.tests:
        await box.copy_in(folder, "/tests")
    await box.exec(["chmod", "+x", "/tests/test.sh"], user=0)
    if own or verifier.environment is not None:
        machine = verifier.environment or Machine()
        how = {"cwd": machine.workdir, "env": resolve_variables(machine.env, "verifier.environment.env")}
        if machine.healthcheck is not None:
            await become_healthy(box, machine.healthcheck, how)
    result = await box.exec(
        ["sh", "-c", f"exec /tests/test.sh > {LOGS}/test-stdout.txt 2>&1"],
        user=verifier.user,
        timeout=verifier.timeout_sec,
        **{**how, "env": how["env"] | resolve_variables(verifier.env, "verifier.env")},
    )
    printed = await box.exec(["tail", "-c", str(_KEPT), f"{LOGS}/test-stdout.txt"], user=0)
    verdict = Verdict(log=printed.stdout + result.stderr)
    if result.exit_code is None:
        verdict.reason = f"they ended with {result.status} after {verifier.timeout_sec:g} s"
    else:
        try:
            verdict.rewards = await _read_rewards(box)
        except (ValueError, SandboxFileError) as error:
            verdict.reason = str(error)
    verdict.seconds = time.monotonic() - started
    return verdict


async def _read_rewards(box: Box) -> dict[str, float]:
    """Return the rewards that the tests have written; a ValueError or SandboxFileError if there are none."""
    name, read = "reward.json", json.loads
    try:
        data = await box.read_file(f"{LOGS}/{name}", user=0, limit=_LARGEST)
    except SandboxFileNotFoundError:
        name, read = "reward.txt", float
        data = await box.read_file(f"{LOGS}/{name}", user=0, limit=_LARGEST)
    try:
        value = read(data.decode().strip())
        rewards = value if isinstance(value, dict) else {"reward": value}
        if not rewards or not all(
            type(number) in (int, float) and math.isfinite(number) for number in rewards.values()
        ):
            raise ValueError
        return {key: float(number) for key, number in rewards.items()}
    except (ValueError, OverflowError, RecursionError):
        raise ValueError(f"{name} must hold a finite number, or some by key, got {data[:80]!r}") from None
