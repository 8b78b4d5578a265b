"""The box of a task: its image, limits and network, and the state in which the agent finds it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import shlex
import time
from collections.abc import Mapping
from typing import Any

from ...sandbox.box import Box
from ...sandbox.box_image import BoxImage
from ...sandbox.limits import Limits
from ..core import BrokenEnvironmentError
from .harbor import ARTIFACTS, HarborTask, Stage
from .settings import Agent, Healthcheck, Machine, Verifier, resolve_variables

LOGS = "/logs/verifier"
_FOLDERS = f"mkdir -p /logs/agent {LOGS} {ARTIFACTS} && chmod 777 /logs/agent {LOGS} {ARTIFACTS}"

logger = logging.getLogger("gymnast.envs")


class SetupError(BrokenEnvironmentError):
    """A box did not become what its task describes: a healthcheck or a set-up script failed."""


def box_of(
    prototype: Box, task: HarborTask, phase: Agent | Verifier, *, machine: Machine, image: BoxImage | None = None
) -> Box:
    """Return a new box, not started, for the agent or a verifier of a task. `image` stands for the machine's own.

    It is like the prototype, which also says what the public network is: the task can only ask for none.
    """
    network = "none" if task.network(phase) == "no-network" else None
    return prototype.variant(image=image or image_of(task), limits=_limits(prototype.limits, machine), network=network)


def image_of(task: HarborTask) -> BoxImage:
    """Return the image of a task."""
    if task.machine.docker_image is not None:
        return BoxImage.named(task.machine.docker_image)
    return BoxImage.dockerfile(task.folder / "environment")


def _limits(limits: Limits, machine: Machine) -> Limits:
    changes: dict[str, Any] = {}
    if machine.memory_mb is not None:
        changes = {"memory": f"{machine.memory_mb}m", "workspace": "memory/4", "tmp": "memory/8", "shm": "memory/32"}
    if machine.cpus is not None:
        changes["cpus"] = min(machine.cpus, os.cpu_count() or 1)  # an engine refuses more than it has
    return dataclasses.replace(limits, **changes)


async def set_up(box: Box, task: HarborTask) -> Mapping[str, Any]:
    """Make a box that has just started ready for its task; return the directory and variables of its programs.

    Raises:
        SetupError: the healthcheck fails.
    """
    machine, env = task.machine, resolve_variables(task.machine.env, "environment.env")
    make = f"mkdir -p {shlex.quote(machine.workdir or '.')} && cd {shlex.quote(machine.workdir or '.')} && pwd"
    where = await run_or_raise(box, f"{_FOLDERS} && {make}", "the folders of the task", user=0)
    how = {"cwd": where.rstrip("\n"), "env": env}
    if task.files is not None:
        await box.copy_in(task.files, how["cwd"])
    if machine.healthcheck is not None:
        await become_healthy(box, machine.healthcheck, how)
    return how


async def begin_stage(box: Box, stage: Stage, how: Mapping[str, Any], *, before: Stage | None = None) -> None:
    """Make the box ready for a stage: without the tests of the one before, with its own files and set-up.

    Raises:
        SetupError: its set-up script or its healthcheck fails.
    """
    if before is not None:
        await run_or_raise(box, f"rm -rf /tests {LOGS} && {_FOLDERS}", "the removal of the last tests", user=0)
    how = {**how, "user": stage.agent.user}
    if stage.workdir is not None:
        await box.copy_in(stage.workdir, how["cwd"])
        if (stage.workdir / "setup.sh").is_file():
            await run_or_raise(box, "bash ./setup.sh", f"setup.sh of {stage.name!r}", timeout=600.0, **how)
    if stage.healthcheck is not None:
        await become_healthy(box, stage.healthcheck, how)


async def run_or_raise(box: Box, command: str, name: str, **how: Any) -> str:
    """Run a command in the box, and return its output; a `SetupError` if it fails."""
    result = await box.exec(command, **how)
    if not result.ok:
        raise SetupError(f"{name} failed with {result.status}, exit code {result.exit_code}: {result.stderr[-500:]}")
    return result.stdout


async def become_healthy(box: Box, check: Healthcheck, how: Mapping[str, Any]) -> None:
    """Wait until a healthcheck succeeds; a `SetupError` if it does not."""
    started, failures = time.monotonic(), 0
    while True:
        result = await box.exec(check.command, timeout=check.timeout_sec, **how)
        if result.ok:
            return
        in_start = time.monotonic() - started < check.start_period_sec
        failures += not in_start
        if failures >= check.retries:
            printed = (result.stdout + result.stderr)[-500:]
            raise SetupError(f"the healthcheck {check.command!r} failed {failures} times, at last: {printed}")
        await asyncio.sleep(check.start_interval_sec if in_start else check.interval_sec)
