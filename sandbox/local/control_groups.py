"""A control group for the processes of one box, where the system lets this user make one."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..limits import Limits, size_of

_ROOT = Path("/sys/fs/cgroup")
_NAME = "gymnast-"  # of a group; the owner's id follows
_OF_SWAP = ("memory.swap.max", "memory.memsw.limit_in_bytes")
_YOUNG_SECONDS = 60.0  # in which an owner puts its box into its group
_REMOVAL_SECONDS = 10.0  # on a busy machine a killed process takes its time
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
        target = _ROOT if self.is_unified else _ROOT / "memory"
        above = [part for folder in reversed(target.parents[:-1]) for part in ("--dir", str(folder))]
        return [*above, "--ro-bind", str(self.folders["memory"]), str(target)]  # else only root could enter those above

    def _counter(self) -> Path:
        return self.folders["memory"] / ("memory.events" if self.is_unified else "memory.oom_control")

    def remove(self) -> None:
        """Remove the folders, whose processes are ending. This blocks."""
        deadline = time.monotonic() + _REMOVAL_SECONDS
        for path in set(self.folders.values()):
            with contextlib.suppress(OSError):  # it is gone, or this kernel has no such file
                if (path / "cgroup.kill").exists():
                    (path / "cgroup.kill").write_text("1")
            while path.exists() and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    path.rmdir()
                time.sleep(0.001)


def make_control_group(limits: Limits) -> ControlGroup:
    """Make a group that limits memory and processes, as far as this user may limit them."""
    name = f"{_NAME}{os.getpid()}-{uuid.uuid4().hex[:12]}"
    memory, pids = str(size_of(limits.memory)), {"pids.max": str(limits.pids)}
    is_unified = (_ROOT / "cgroup.controllers").exists()
    if is_unified:
        files = {"memory": {"memory.max": memory, "memory.swap.max": "0"}, "pids": pids}
        # A process is in one group only. The group limits both, or else the memory, or else the processes.
        choices: tuple[tuple[str, ...], ...] = (("memory", "pids"), ("memory",), ("pids",))
    else:
        files = {"memory": {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory}, "pids": pids}
        choices = (("memory",), ("pids",))
    folders: dict[str, Path] = {}
    for controllers in choices:
        parent = _parent(controllers, is_unified)
        if parent is None:
            continue
        remove_ownerless(parent)
        values = {file: value for controller in controllers for file, value in files[controller].items()}
        if _limit(parent / name, values):
            folders |= dict.fromkeys(controllers, parent / name)
            if is_unified:
                break
    return ControlGroup(folders=folders, is_unified=is_unified)


@cache
def remove_ownerless(parent: Path) -> None:
    """Remove the groups that dead processes have left in this one; once a process.

    They are left where the owner of a box was killed together with the shell that removes its group.
    """
    for folder in parent.glob(f"{_NAME}*-*"):
        if not os.path.exists(f"/proc/{folder.name.removeprefix(_NAME).partition('-')[0]}"):
            with contextlib.suppress(OSError):  # its processes are still ending, or another process was faster
                # The owner of a young one may be alive in another container, and its box about to enter the group.
                if time.time() - folder.stat().st_mtime > _YOUNG_SECONDS:
                    folder.rmdir()


def _parent(controllers: tuple[str, ...], is_unified: bool) -> Path | None:
    """Return the group below which this user may make one that limits these resources; of version 1, only one."""
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    own = next(
        (path for _, names, path in lines if (names == "" if is_unified else controllers[0] in names.split(","))), ""
    )
    root = _ROOT if is_unified else (_ROOT / controllers[0]).resolve()  # version 1 may link two to the same folder
    folder = root / own.lstrip("/")
    if not folder.exists():  # the path of another namespace
        folder = root
    if not is_unified:
        return folder
    # A group with processes of its own, as that of this process, can limit none below it.
    for parent in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            is_shared = set(controllers) <= set((parent / "cgroup.subtree_control").read_text().split())
            # To move a process one must be allowed to write to the list of the group above the old and the new one.
            if is_shared and all(os.access(path, os.W_OK) for path in (parent, parent / "cgroup.procs")):
                return parent
        if parent == root:
            break
    return None


def _limit(folder: Path, files: Mapping[str, str]) -> bool:
    """Make a group, unless it holds another resource already, and set its limits.

    A kernel that counts no swap has no file for it.
    """
    is_new = not folder.exists()
    try:
        folder.mkdir(exist_ok=True)
        for file, value in files.items():
            if file not in _OF_SWAP or (folder / file).exists():
                (folder / file).write_text(value)
        return os.access(folder / "cgroup.procs", os.W_OK)
    except OSError:
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        return False
