"""The boxes of the fault tests: one of each kind of executor for a module, clean before each test.

A module takes the fixtures as its own: `kind, shared_box, box = faults.kind, faults.shared_box, faults.box`. Its tests
run once for each kind; `docker_only` marks tests that only a container can survive.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import pytest

from gymnast.sandbox import DockerExecutor, Limits, LocalExecutor

from .boxes import LIMITS

RealBox: TypeAlias = DockerExecutor | LocalExecutor

docker_only = pytest.mark.parametrize("kind", ["docker"], indirect=True, scope="module")


def recipe(kind: str, **options: Any) -> RealBox:
    """An executor of this kind, not started."""
    if kind == "docker":
        return DockerExecutor(limits=LIMITS, **options)
    return LocalExecutor(limits=Limits(grace=LIMITS.grace), **options)


@pytest.fixture(scope="module", params=["docker", "local"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "docker":
        request.getfixturevalue("image")  # imported here because it runs its own event loop
    return request.param


@pytest.fixture(scope="module")
async def shared_box(kind: str) -> AsyncIterator[RealBox]:
    async with recipe(kind) as box:
        yield box


@pytest.fixture
async def box(shared_box: RealBox) -> RealBox:
    """A clean box."""
    await shared_box.reset()
    return shared_box


def owner_program(kind: str, body: str) -> list[str]:
    """The command that runs the body of a coroutine in a new process; `make()` makes an executor in it."""
    name, limits = type(recipe(kind)).__name__, recipe(kind).limits
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    program = f"""
import asyncio, json, os, pathlib, sys
from gymnast.sandbox import {name}, Limits, SandboxPermissionError
make = lambda: {name}(limits={limits!r})
async def main():
{lines}
asyncio.run(main())
"""
    return [sys.executable, "-W", "error", "-c", program]


async def run_alone(kind: str, body: str) -> Any:
    """Run that program to its end; return its output, which is JSON."""
    process = await asyncio.create_subprocess_exec(*owner_program(kind, body), stdout=asyncio.subprocess.PIPE)
    try:
        said, _ = await asyncio.wait_for(process.communicate(), 120)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    return json.loads(said)
