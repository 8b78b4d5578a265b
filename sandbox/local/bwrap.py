"""BwrapExecutor: code in the namespaces that bubblewrap makes, without an engine and without root."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..arguments import checked_environment, checked_modules
from ..base import WORKSPACE
from ..host.boot import BOOT
from ..host.messages import supervisor_settings
from ..host.seccomp import compiled_filter, default_seccomp
from ..host.supervised import START_TIMEOUT
from ..host.supervised_executor import SupervisedExecutor
from ..keywords import checks_keywords
from ..limits import Limits, check_limits, size_of
from . import bubblewrap
from .bwrap_sandbox import BwrapSandbox, not_held, require_bubblewrap


@checks_keywords(limits=Limits)
class BwrapExecutor(BwrapSandbox, SupervisedExecutor):
    """A box in namespaces of its own: no network, no files but the system's, no processes but its own.

        async with BwrapExecutor() as box:
            print((await box.python("import os; os.listdir('/home')")).stderr)

    It needs Linux and the program `bwrap`, and neither an engine nor root. The code sees the folders `/usr` and `/lib`
    of this machine and the folder of `python`, all of them read-only; `/workspace`, `/tmp` and `/dev/shm` are in
    memory. The filter of system calls is that of a container.

    Memory and processes of the whole box are held by a control group where this user may make one. Elsewhere the
    supervisor measures the memory and kills the code if it is too much (`Status.OOM`), and the kernel counts the
    processes. `cpus` and `max_inodes` are not held: docs/without_docker.md.

    Args:
        python: the interpreter that runs the code; the code can import its packages. The default is that behind this
            one, without the packages of a virtual environment.
        limits: the resources that the box may use.
        env: environment variables for the code. The host's environment is not passed on.
        files: the content of `/workspace` after `start` and each `reset`, by relative path; text is encoded as UTF-8.
        preload: modules to import before the first session, for which their import then takes no time.
        best_effort: whether a box may start although a limit that you have set cannot be held, which is then logged.
        start_timeout: seconds until the box must be ready.

    Raises:
        TypeError, ValueError: an argument is of the wrong type or out of range.
    """

    what = "this machine"

    def __init__(
        self,
        *,
        python: str | Path | None = None,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, bytes | str] | None = None,
        preload: Sequence[str] = (),
        best_effort: bool = False,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        super().__init__(limits=check_limits(limits), files=files, start_timeout=start_timeout)
        self.python_path = None if python is None else str(python)
        self.env = checked_environment(env)
        self.preload = checked_modules(preload)
        self.best_effort = best_effort

    @property
    def key(self) -> Hashable:
        environment = tuple(sorted(self.env.items()))
        return (type(self), self.python_path, self.limits, environment, self.preload, self.best_effort)

    async def _prepare(self) -> None:
        await asyncio.to_thread(require_bubblewrap)
        path = self.python_path
        self._installation = bubblewrap.default_installation() if path is None else bubblewrap.Installation.of(path)
        self._require_limits(not_held())

    def _filter(self, denied: tuple[str, ...]) -> bytes:
        return compiled_filter(default_seccomp(), denied, guards_init=self._user is None)

    def _command(self, view: list[str], fd: int, folder: Path | None) -> list[str]:
        command = bubblewrap.executor_command(self.limits, self._installation, user=self._user, view=view, fd=fd)
        return [*command, self._installation.python, "-u", "-c", BOOT]

    def _settings(self) -> dict[str, Any]:
        limits = self.limits
        rlimits = {
            "RLIMIT_CORE": 0,
            "RLIMIT_NOFILE": limits.open_files,
            "RLIMIT_FSIZE": max(size_of(limits.workspace), size_of(limits.tmp)),
        }
        if "pids" not in not_held():
            rlimits["RLIMIT_NPROC"] = limits.pids
        return supervisor_settings(
            limits, WORKSPACE, self.env, self.preload, user=self._user, rlimits=rlimits, measured=self._is_measured
        )
