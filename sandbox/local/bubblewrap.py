"""The command line of bubblewrap, and what this machine must have for it. Nothing here starts a box."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..base import WORKSPACE
from ..errors import EngineError, ImageError
from ..host.seccomp import BOX_CAPABILITIES
from ..images.host_image import GUEST_FOLDER, GUEST_VARIABLES
from ..limits import Limits, size_of

HOSTNAME = "sandbox"
INSTALL = "on Debian or Ubuntu: `apt-get install bubblewrap`"

_USER = 1000  # the one user of a box, as whom this user appears there
_USERS = range(2_000_000_000, 2_100_000_000)  # for boxes of root: no host gives them to anybody
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # beside /usr: today links into it, once folders
_FILES_OF_THE_SYSTEM = ("/etc/ld.so.cache", "/etc/alternatives")  # without them some programs do not start
_PROBE_SECONDS = 20.0


@dataclass(slots=True, frozen=True)
class Installation:
    """A Python of this machine that runs the code."""

    python: str
    folders: tuple[str, ...]  # beside /usr, the folders that it needs

    @classmethod
    def of(cls, python: str | Path) -> Installation:
        """Find the folders of an interpreter.

        Raises:
            ImageError: there is no such interpreter, or its folder holds more than Python.
        """
        found = shutil.which(str(python))
        if found is None:
            raise ImageError(f"python={str(python)!r} is no program of this machine")
        given, real = Path(os.path.abspath(found)), Path(found).resolve()
        venv = given.parent.parent
        has_venv = (venv / "pyvenv.cfg").is_file()
        folders = [real.parent.parent, *([venv] if has_venv else [])]
        for folder in folders:
            if not any((folder / "lib").glob("python3*")) or Path.home().resolve().is_relative_to(folder):
                raise ImageError(
                    f"python={str(python)!r} is not in a folder of its own, and the box would show all of {folder}: "
                    "give the interpreter of a virtual environment, or of the system"
                )
        own = tuple(str(folder) for folder in folders if not folder.is_relative_to("/usr"))
        return cls(str(given if has_venv else real), own)


@cache
def default_installation() -> Installation:
    """Return the interpreter behind this one, without the packages of a virtual environment."""
    return Installation.of(getattr(sys, "_base_executable", sys.executable))


def new_user(number: int) -> int | None:
    """Return the id of the code's user in the `number`th box of root; None for another user, whom a box maps."""
    return _USERS[number % len(_USERS)] if is_root() else None


@cache
def is_root() -> bool:
    """Whether this process may become any user; the root of a user namespace may not."""
    first = [int(number) for number in Path("/proc/self/uid_map").read_text().split()[:3]]
    return os.geteuid() == 0 and first[0] == 0 and first[2] >= _USERS[-1]


def program() -> str:
    """Return the path of bubblewrap's program; EngineError if there is none."""
    found = shutil.which("bwrap")
    if found is None:
        raise EngineError(f"bubblewrap is missing; {INSTALL}")
    return found


@cache
def options(program: str) -> frozenset[str]:
    """Return the options of a bubblewrap; EngineError if it does not run."""
    try:
        text = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=_PROBE_SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"bubblewrap does not run: {error}") from None
    return frozenset(word for word in text.split() if word.startswith("--"))


@cache
def why_not(program: str) -> str:
    """Return why a bubblewrap makes no boxes on this machine, or "". It is tried once."""
    try:
        command = executor_command(Limits(), Installation("/bin/true", ()), user=new_user(0), view=[], fd=None)
        command.append("/bin/true")
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, env={})
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    said = done.stderr.strip() or f"it ended with {done.returncode}"
    return (
        f"bubblewrap makes no boxes on this machine: {said}. Most containers forbid it, and so does Ubuntu's AppArmor "
        "unless it has a profile for bwrap"
    )


def has_sizes() -> bool:
    """Whether bubblewrap can limit the size of a file system in memory."""
    return "--size" in options(program())


def executor_command(
    limits: Limits, installation: Installation, *, user: int | None, view: list[str], fd: int | None
) -> list[str]:
    """Return the command that makes the box of an executor; the program to run in it comes behind.

    Args:
        limits: of the box.
        installation: the Python of the box.
        user: None if the box has one user, who is this one; or the code's user, beside the supervisor, who is root.
        view: further arguments.
        fd: the descriptor of the filter of system calls.
    """
    command = _new_namespaces(_path(installation))
    if user is None:
        command += ["--unshare-user", "--uid", str(_USER), "--gid", str(_USER)]
        command += [option for option in ("--disable-userns",) if option in options(program())]
    else:
        command += _capabilities("SETUID", "SETGID", "KILL")
    command += [*_folders(installation), "--proc", "/proc", "--dev", "/dev", *view, *_in_memory("/dev/shm", limits.shm)]
    command += [*_in_memory("/tmp", limits.tmp), *_in_memory(WORKSPACE, limits.workspace), "--remount-ro", "/dev"]
    return [*command, "--remount-ro", "/", "--chdir", "/", *(["--seccomp", str(fd)] if fd is not None else []), "--"]


def box_command(limits: Limits, root: Path, guest: Path, *, view: list[str], fd: int) -> list[str]:
    """Return the command that makes a box with a root file system that can be written; the program comes behind.

    Args:
        limits, view, fd: as of `executor_command`.
        root: the folder of the root file system. This process is root, or the root of a user namespace.
        guest: the folder of the guest's Python.
    """
    variables = (part for name, value in GUEST_VARIABLES.items() for part in ("--setenv", name, value))
    command = [*_new_namespaces("/usr/bin:/bin"), *variables, *_capabilities(*BOX_CAPABILITIES)]
    command += ["--bind", str(root), "/"]
    command += ["--ro-bind", str(guest), GUEST_FOLDER, "--proc", "/proc", "--dev", "/dev", *view]
    return [*command, *_in_memory("/dev/shm", limits.shm), "--remount-ro", "/dev", "--seccomp", str(fd), "--"]


def _new_namespaces(path: str) -> list[str]:
    command = [program(), "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    return [*command, "--die-with-parent", "--as-pid-1", "--hostname", HOSTNAME, "--clearenv", "--setenv", "PATH", path]


def _capabilities(*names: str) -> list[str]:
    return ["--cap-drop", "ALL", *(part for name in names for part in ("--cap-add", f"CAP_{name}"))]


def _in_memory(path: str, size: int | str) -> list[str]:
    return ["--perms", "1777", *(["--size", str(size_of(size))] if has_sizes() else []), "--tmpfs", path]


def _path(installation: Installation) -> str:
    folders = [os.path.dirname(installation.python), *(f"{folder}/bin" for folder in installation.folders)]
    return ":".join(dict.fromkeys([*folders, "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]))


def _folders(installation: Installation) -> Iterator[str]:
    """Show the system's folders and Python's, all of them read-only."""
    yield from ("--ro-bind", "/usr", "/usr")
    for name in _SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    made: set[Path] = set()
    for name in (*_FILES_OF_THE_SYSTEM, *installation.folders):
        for parent in reversed(Path(name).parents[:-1]):
            if parent not in made:
                made.add(parent)
                yield from ("--dir", str(parent))  # else nobody but its owner could enter it
        yield from ("--ro-bind-try", name, name)
