"""BwrapBox: the contract, images and snapshots, limits, and its end. `test_bwrap_without_root.py` runs this file too.

`test_box_attacks.py` has root's attacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.sandbox import (
    Box,
    BoxImage,
    BwrapBox,
    EngineError,
    ImageError,
    Limits,
    SandboxClosedError,
    SandboxFileError,
    SandboxLostError,
    Status,
)
from gymnast.sandbox.local.layers import reap
from gymnast.sandbox.testing.conformance import BOX_CHECKS, Check

from .boxes import cancel_a_start, eventually

pytestmark = pytest.mark.usefixtures("bubblewrap")
LIMITS = Limits(memory="256m", pids=64)
PACKAGES = str(Path(pytest.__file__).parents[1])


def folders() -> set[Path]:
    """The folders of this process's boxes and snapshots."""
    return set(Path(tempfile.gettempdir()).glob(f"gymnast-*-{os.getpid()}-*"))


@pytest.fixture(scope="module")
async def usual() -> AsyncIterator[BwrapBox]:
    async with BwrapBox(limits=LIMITS) as box:
        yield box


@pytest.fixture(scope="module")
async def bare(busybox: BoxImage) -> AsyncIterator[BwrapBox]:
    async with BwrapBox(image=busybox) as box:
        yield box


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    before = folders()
    yield
    assert folders() <= before


of_a_capability = pytest.mark.parametrize(
    "check", [check for check in BOX_CHECKS if check.needs <= BwrapBox.capabilities], ids=str
)


@of_a_capability
async def test_in_a_usual_image(check: Check[Box], usual: BwrapBox) -> None:
    await check(usual)


@of_a_capability
async def test_in_an_image_of_busybox(check: Check[Box], bare: BwrapBox) -> None:
    await check(bare)


# --- files ------------------------------------------------------------------------------------------------------


async def test_root_may_write_everything_and_reaches_nothing_outside(usual: BwrapBox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    written = await usual.exec("rm /usr/bin/tar; mkdir /opt; echo x > /opt/file; chmod 000 /opt; cat /opt/file; id -u")
    assert written.stdout == "x\n0\n"
    seen = f"ls -d /home {tmp_path} 2>/dev/null; ls /proc | grep -c '^[0-9]'; hostname; grep -c . /etc/hosts"
    assert (await usual.exec(seen)).stdout == "4\nsandbox\n1\n"
    async with usual.clone() as other:
        assert (await other.exec("command -v tar && ls -d /opt")).stdout == "/usr/bin/tar\n"


async def test_the_root_of_a_box_has_no_attribute_of_ours(usual: BwrapBox) -> None:
    assert (await usual.exec(["python3", "-c", "import os; print(os.listxattr('/'))"])).stdout == "[]\n"


@pytest.mark.usefixtures("nothing_left")
async def test_a_full_disk_is_not_taken_for_one_without_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "setxattr", fail)
    with pytest.raises(OSError, match=r"^\[Errno 28\]"):
        await BwrapBox().start()


async def test_a_path_that_is_longer_than_a_request_is_an_error_of_the_file(usual: BwrapBox) -> None:
    path = "/x" * 200_000
    for call in (usual.read_file(path), usual.write_file(path, b"")):
        with pytest.raises(SandboxFileError) as caught:
            await call
        assert caught.value.errno == errno.ENAMETOOLONG


@pytest.mark.usefixtures("nothing_left")
async def test_snapshots_of_snapshots_keep_what_was_removed_and_made() -> None:
    async with BwrapBox(limits=LIMITS) as box:
        await box.exec("rm -r /usr/local/lib; mkdir -m 0 /root/closed; ln -s file /root/link")
        async with box.snapshot() as first, box.variant(image=first) as second:
            await second.exec("echo more > /root/file; rm /root/link; mkdir /usr/local/lib")
            async with second.snapshot() as image:
                boxes = [box.variant(image=image) for _ in range(3)]
                await asyncio.gather(*(one.start() for one in boxes))
                for one in boxes:
                    listed = await one.exec("ls -A /root /usr/local/lib; stat -c %a /root/closed; pwd")
                    assert listed.stdout == "/root:\nclosed\nfile\n\n/usr/local/lib:\n0\n/workspace\n"
                    await one.close()


@pytest.mark.usefixtures("nothing_left")
async def test_images_that_need_an_engine_or_are_broken_are_refused(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "broken.tar").write_bytes(b"no tar")
    for image, message in [
        (BoxImage.named("debian:12"), "the image 'debian:12' needs Docker.*docker export"),
        (BoxImage.dockerfile(tmp_path), f"the Dockerfile in {tmp_path} needs Docker"),
        (BoxImage.rootfs(tmp_path / "broken.tar"), "broken.tar could not be unpacked: tar: "),
    ]:
        with pytest.raises(ImageError, match=message):
            await BwrapBox(image=image).start()
    wrong: Any = tmp_path
    for make in (BwrapBox, BwrapBox().variant):
        with pytest.raises(TypeError, match="image must be a BoxImage"):
            make(image=wrong)
    with pytest.raises(ValueError, match="network must be 'none', got 'bridge'"):
        BwrapBox().variant(network="bridge")


# --- limits -----------------------------------------------------------------------------------------------------


async def test_memory_and_processes_of_the_whole_box_are_held(usual: BwrapBox) -> None:
    hungry = (
        "import os, time\nfor _ in range(20):\n    if not os.fork(): x = b'x' * (40 << 20); time.sleep(9); os._exit(0)"
    )
    bomb = "import os, time\nfor n in range(200):\n    try:\n        if not os.fork(): time.sleep(60)\n"
    bomb += "    except BlockingIOError: print(n); break"
    for code in (hungry, "x = b'x' * (600 << 20)"):
        code += "\nfor _ in range(20): assert os.wait()[1] == 0" if "fork" in code else ""
        result = await usual.exec(["python3", "-c", code], timeout=30)
        assert result.status in (Status.OOM, Status.ERROR), result
        assert (await usual.exec("echo on")).stdout == "on\n"
    result = await usual.exec(["python3", "-c", bomb], timeout=30)
    assert 30 < int(result.stdout) < LIMITS.pids
    assert (await usual.exec("kill -9 -1")).status in (Status.OK, Status.SIGNAL)


async def test_a_limit_that_cannot_be_held_is_refused_if_it_was_set() -> None:
    with pytest.raises(EngineError, match=r"cannot hold Limits\.cpus on this machine"):
        await BwrapBox(limits=Limits(cpus=2.0, workspace="1m")).start()


# --- life and death ---------------------------------------------------------------------------------------------

OWNER = """
import asyncio
from gymnast.sandbox import BwrapBox
async def main():
    async with BwrapBox() as box:
        await box.exec("mkdir -m 0 /root/closed; touch /root/file; setsid sleep 600 >/dev/null 2>&1 &")
        async with box.snapshot() as image:
            print(box._process.folder, image.source, *box._process.group.folders.values(), flush=True)
            await box.exec("trap '' TERM INT; while :; do :; done", timeout=600)
asyncio.run(main())
"""


async def test_the_death_of_an_owner_ends_the_box_and_removes_its_files() -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"import site; site.addsitedir({PACKAGES!r})\n{OWNER}", stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    box, snapshot, *groups = map(Path, (await asyncio.wait_for(owner.stdout.readline(), 60)).decode().split())
    assert box.exists()
    owner.kill()
    await owner.wait()
    assert await eventually(lambda: not any(path.exists() for path in (box, *groups)), 5)
    assert snapshot.exists()
    reap.cache_clear()
    reap()  # as every first start in a process does
    assert not snapshot.exists()


MAKER = """
import time
from gymnast.sandbox.local import layers
layers._made("rootfs-of-a-killed-owner", lambda folder: (print(folder, flush=True), time.sleep(600)))
"""


async def test_the_half_made_image_of_a_killed_owner_is_removed() -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"import site; site.addsitedir({PACKAGES!r})\n{MAKER}", stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    (folder,) = map(Path, (await asyncio.wait_for(owner.stdout.readline(), 60)).decode().split())
    owner.kill()
    await owner.wait()
    assert folder.exists()
    reap.cache_clear()
    reap()
    assert not folder.exists()


@pytest.mark.usefixtures("nothing_left")
async def test_nothing_is_left_after_a_cancelled_start_and_a_cancelled_snapshot() -> None:
    await cancel_a_start(BwrapBox)
    async with BwrapBox() as box:
        await box.exec("head -c 50000000 /dev/urandom > /root/large")
        taking = asyncio.ensure_future(box.snapshot().__aenter__())
        await asyncio.sleep(0.01)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        assert (await box.exec("echo on")).stdout == "on\n"


@pytest.mark.usefixtures("nothing_left")
async def test_a_box_that_was_reset_is_closed_like_a_new_one() -> None:
    async with BwrapBox(limits=LIMITS) as box:
        await box.exec("echo x > /root/file")
        await box.reset()
        assert not (await box.exec("test -e /root/file")).ok
    assert box.state == "closed"


async def test_a_lost_box_says_so_when_it_is_kept_as_an_image() -> None:
    async with BwrapBox(limits=LIMITS) as box:
        assert box._process is not None
        os.killpg(box._process.popen.pid, 9)
        for _ in range(2):
            with pytest.raises(SandboxLostError, match="the box is lost"):
                await box.snapshot().__aenter__()


# --- processes --------------------------------------------------------------------------------------------------

WRITER = "(while :; do echo x >> /root/log; sleep 0.02; done) >/dev/null 2>&1 & until test -s /root/log; do :; done"


async def still_writes(box: Box) -> None:
    size = (await box.exec("wc -c < /root/log")).stdout.strip()
    grown = await box.exec(f"until [ $(wc -c < /root/log) -gt {size} ]; do sleep 0.02; done", timeout=5)
    assert grown.status is Status.OK


async def test_processes_go_on_after_a_snapshot_that_was_cancelled_and_after_two_at_once() -> None:
    async with BwrapBox(limits=LIMITS) as box:
        await box.exec(WRITER)
        for passes in range(1, 4):
            taking = asyncio.ensure_future(box.snapshot().__aenter__())
            for _ in range(passes):
                await asyncio.sleep(0)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            await still_writes(box)
        async with box.snapshot(), contextlib.AsyncExitStack() as more:
            await asyncio.gather(*(more.enter_async_context(box.snapshot()) for _ in range(3)))
            await still_writes(box)


async def test_a_program_is_used_in_its_block_only(usual: BwrapBox) -> None:
    async with usual.open("cat") as program:
        waiting = asyncio.ensure_future(program.wait())
        assert await program.read(timeout=0.05) == b""
    assert await waiting == -9
    for call in (program.write(b"x"), program.signal(9)):
        with pytest.raises(SandboxClosedError, match="in the block that opened it"):
            await call
    assert (await usual.exec("echo on")).stdout == "on\n"


async def test_a_box_with_an_open_program_is_not_idle() -> None:
    async with BwrapBox(limits=Limits(idle=0.5)) as box, box.open("sleep 1") as program:
        assert await program.wait() == 0


async def test_a_call_may_have_more_output_than_the_limits_of_executors() -> None:
    async with BwrapBox(limits=Limits(max_file="64k", max_code="64k", max_output="64k")) as box:
        flood = await box.exec("head -c 9000000 /dev/zero | tee /root/file", max_output=16 << 20)
        assert (len(flood.stdout), flood.dropped_bytes) == (9_000_000, 0)
        assert len(await box.read_file("/root/file")) == 9_000_000


async def test_links_stay_inside_whatever_the_limit_of_a_copy(usual: BwrapBox, tmp_path: Path) -> None:
    await usual.exec("mkdir -p /root/links && ln -s /etc/passwd /root/links/link")
    assert await usual.copy_out("/root/links", tmp_path, limit=sys.maxsize) == ["link: it is a symbolic link"]
    assert await usual.copy_out("/root/links", tmp_path, limit=math.inf) == ["link: it is a symbolic link"]  # pyright: ignore[reportArgumentType]
    assert os.listdir(tmp_path) == []
