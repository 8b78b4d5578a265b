"""BwrapBox: a whole machine in the namespaces of bubblewrap, in which the code is root, without an engine."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Hashable, Mapping
from pathlib import Path
from typing import Any, Self

from ..arguments import checked_environment
from ..box import Capability
from ..box_image import BoxImage
from ..cancellation import removed_at_end
from ..errors import EngineError
from ..host.seccomp import box_seccomp, compiled_filter
from ..host.supervised import START_TIMEOUT
from ..host.supervised_box import SupervisedBox
from ..images.host_image import GUEST_COMMAND
from ..images.image import DEFAULT_IMAGE
from ..keywords import checks_keywords
from ..limits import Limits, check_limits, size_of
from . import bubblewrap, layers
from .bwrap_sandbox import BwrapSandbox, not_held, require_bubblewrap

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UNUSED = ("workspace", "tmp", "max_inodes")  # as in a `DockerBox`
_PROGRAMS = ("unshare", "mount", "umount", "prlimit", "setpriv")  # of util-linux


@checks_keywords(limits=Limits)
class BwrapBox(BwrapSandbox, SupervisedBox):
    """A box of bubblewrap: the code is root in a root file system that it can write, and reaches nothing else.

        async with BwrapBox(image=BoxImage.rootfs("debian.tar")) as box:
            print((await box.exec("id; cat /etc/os-release")).stdout)

    It needs Linux >= 5.11 and the program `bwrap`, and neither an engine nor root. Root is the only user of the box,
    and owns all of its files; outside, root is this user, or nobody where this process is root. The files that a box
    writes are in the folder for temporary files, and nothing limits them; `Limits.workspace`, `tmp` and `max_inodes`
    are not used.

    Args:
        image: the tar file of a root file system, `BoxImage.rootfs(...)`. The default is made of this machine's Python,
            Bash and command-line tools, as by `gymnast sandbox build`. Images are unpacked once, into the user's cache.
        limits: the resources that the box may use.
        env: environment variables for every program.
        best_effort: whether a box may start although a limit that you have set cannot be held, which is then logged.
        start_timeout: seconds until the box must be ready. The time to unpack its image does not count.

    Raises:
        TypeError, ValueError: an argument is of the wrong type or out of range.
    """

    what = "this machine"
    capabilities = (SupervisedBox.capabilities - {Capability.USERS}) | {Capability.SNAPSHOT, Capability.IMAGES}

    def __init__(
        self,
        *,
        image: BoxImage | str = DEFAULT_IMAGE,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
        best_effort: bool = False,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        super().__init__(limits=check_limits(limits), start_timeout=start_timeout)
        self.image = BoxImage.of(image)
        self.env = checked_environment(env)
        self.best_effort = best_effort

    @property
    def key(self) -> Hashable:
        return (type(self), self.image, self.limits, tuple(sorted(self.env.items())), self.best_effort)

    def variant(
        self, *, image: BoxImage | None = None, limits: Limits | None = None, network: str | None = None
    ) -> Self:
        if network not in (None, "none"):
            raise ValueError(f"a box of bubblewrap has no network: network must be 'none', got {network!r}")
        twin = self.clone()
        twin.image = self.image if image is None else BoxImage.of(image)
        twin.limits = self.limits if limits is None else check_limits(limits)
        return twin

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[BoxImage]:
        """See `Box.snapshot`."""

        async def remove(snapshot: Path) -> None:
            await asyncio.to_thread(layers.remove_folder, snapshot)

        async with removed_at_end(remove) as make:
            async with self._frozen():
                assert self._process is not None
                assert self._process.folder is not None
                snapshot = await make(asyncio.to_thread(layers.take_snapshot, self._process.folder))
            yield BoxImage(kind="rootfs", source=str(snapshot))

    async def prepare(self) -> None:
        await asyncio.to_thread(layers.layers_of, self.image)
        await asyncio.to_thread(layers.guest_folder)

    async def _prepare(self) -> None:
        await asyncio.to_thread(require_bubblewrap)
        if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
            raise EngineError(f"a box of bubblewrap needs {', '.join(missing)}, of the package util-linux")
        self._require_limits([name for name in not_held() if name not in _UNUSED])
        await asyncio.to_thread(layers.reap)
        self._layers = await asyncio.to_thread(layers.layers_of, self.image)
        self._guest_files = await asyncio.to_thread(layers.guest_folder)

    def _filter(self, denied: tuple[str, ...]) -> bytes:
        return compiled_filter(box_seccomp(), denied, guards_init=True)

    def _make_folder(self) -> Path:
        return layers.new_box(self._layers)

    def _command(self, view: list[str], fd: int, folder: Path | None) -> list[str]:
        assert folder is not None
        limits = [f"--nofile={self.limits.open_files}", "--core=0"]
        if "pids" not in not_held():
            limits.append(f"--nproc={self.limits.pids}")
        command = bubblewrap.box_command(self.limits, folder / "root", self._guest_files, view=view, fd=fd)
        return layers.mount_command(len(self._layers), ["prlimit", *limits, *command, *GUEST_COMMAND])

    def _settings(self) -> dict[str, Any]:
        return {
            "environment": {"PATH": _PATH, **self.env},
            "cwd": layers.directory_of(self._layers),
            "user": "",
            "idle": self.limits.idle,
            "lifetime": self.limits.lifetime,
            "measured": size_of(self.limits.memory) if self._is_measured else 0,
        }
