"""A control group for the processes of one box, where the system lets this user make one."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..limits import Limits, size_of

_ROOT = Path("/sys/fs/cgroup")
_REMOVAL_SECONDS = 2.0
RAN_OUT = 124  # an exit code


@dataclass(kw_only=True)
class ControlGroup:
    """Folders of the control file system that hold some resources of one box."""

    folders: Mapping[str, Path]  # by resource, "memory" and "pids": one folder in version 2, several in version 1
    is_unified: bool  # version 2

    def entering(self, command: list[str]) -> list[str]:
        """Return a command that runs another one in this group, and then removes the group.

        So nothing of it is left where its owner, this process, has been killed. The exit code is `RAN_OUT` if the
        kernel has killed a process of the group for memory.
        """
        if not self.folders:
            return command
        folders = " ".join(shlex.quote(str(path)) for path in set(self.folders.values()))
        enter = f'for f in {folders}; do echo 0 > "$f/cgroup.procs" || exit 125; done; exec "$@"'
        counter = shlex.quote(str(self._counter())) if "memory" in self.folders else "/dev/null"
        leave = f"grep -q '^oom_kill [1-9]' {counter} && code={RAN_OUT}; "
        leave += f"for i in 1 2 3 4 5; do rmdir {folders} 2>/dev/null && break; sleep 0.1; done"
        return ["/bin/sh", "-c", f"({enter}); code=$?; {leave}; exit $code", "sh", *command]

    def view(self) -> list[str]:
        """Return the arguments of bubblewrap that show the box its memory, where the guest looks for it."""
        if "memory" not in self.folders:
            return []
        return ["--ro-bind", str(self.folders["memory"]), str(_ROOT if self.is_unified else _ROOT / "memory")]

    def _counter(self) -> Path:
        return self.folders["memory"] / ("memory.events" if self.is_unified else "memory.oom_control")

    def remove(self) -> None:
        """Remove the folders, whose processes are ending. This blocks."""
        deadline = time.monotonic() + _REMOVAL_SECONDS
        for path in set(self.folders.values()):
            while path.exists() and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    path.rmdir()
                time.sleep(0.001)


def make_control_group(limits: Limits) -> ControlGroup:
    """Make a group that limits memory and processes, as far as this user may limit them."""
    name = f"gymnast-{uuid.uuid4().hex[:12]}"
    memory = str(size_of(limits.memory))
    is_unified = (_ROOT / "cgroup.controllers").exists()
    wanted = {
        "memory": {"memory.max": memory, "memory.swap.max": "0"}
        if is_unified
        else {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory},
        "pids": {"pids.max": str(limits.pids)},
    }
    folders: dict[str, Path] = {}
    for controller, files in wanted.items():
        parent = _parent(controller, is_unified)
        if parent is not None and _limit(parent / name, files):
            folders[controller] = parent / name
    return ControlGroup(folders=folders, is_unified=is_unified)


def _parent(controller: str, is_unified: bool) -> Path | None:
    """Return the group below which this user may make one that limits a resource."""
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    own = next(
        (path for _, names, path in lines if (names == "" if is_unified else controller in names.split(","))), ""
    )
    root = _ROOT if is_unified else _ROOT / controller
    folder = root / own.lstrip("/")
    if not folder.exists():  # the path of another namespace
        folder = root
    if not is_unified:
        return folder
    # A group with processes of its own, as that of this process, can limit none below it.
    for parent in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            if controller in (parent / "cgroup.subtree_control").read_text().split() and os.access(parent, os.W_OK):
                return parent
        if parent == root:
            break
    return None


def _limit(folder: Path, files: Mapping[str, str]) -> bool:
    """Make a group and set its limits. The first one must hold; a kernel that counts no swap lacks the second."""
    try:
        folder.mkdir(exist_ok=True)
        for number, (file, value) in enumerate(files.items()):
            if number == 0 or (folder / file).exists():
                (folder / file).write_text(value)
        return os.access(folder / "cgroup.procs", os.W_OK)
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return False
