"""What is special about a `DockerBox`: the settings of its image, its protection, its snapshots, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gymnast.sandbox import (
    BoxImage,
    DockerBox,
    Engine,
    EngineError,
    ImageError,
    Limits,
    SandboxClosedError,
    SandboxFileTooLargeError,
    SandboxLostError,
    Status,
    reap,
)
from gymnast.sandbox.docker import guest_volume as guest_volumes
from gymnast.sandbox.docker.snapshots import TEMPORARY

from ..sandbox.boxes import containers_of, eventually

LIMITS = Limits(memory="128m", pids=64)


def temporary_images(pid: int) -> list[str]:
    """The snapshots, and other images that are soon removed, of a process."""
    filters = [f"--filter=label={TEMPORARY}", f"--filter=label=gymnast.sandbox.pid={pid}"]
    return subprocess.run(
        ["docker", "images", "-q", *filters], capture_output=True, text=True, check=True
    ).stdout.split()


async def test_the_settings_of_an_image_hold_and_give_way_to_ours(image: str, tmp_path: Path) -> None:
    lines = [f"FROM {image}", "ENV A=image B=image LD_PRELOAD=/nowhere.so LC_ALL=nonsense PYTHONHOME=/nowhere"]
    (tmp_path / "Dockerfile").write_text("\n".join([*lines, "WORKDIR /work", "USER sandbox", 'CMD ["false"]']))
    command = "id -un; pwd; echo $A $B $LD_PRELOAD $LC_ALL $PYTHONHOME $HOME"
    async with DockerBox(image=BoxImage.dockerfile(tmp_path), env={"B": "box"}) as box:
        said = "sandbox\n/work\nimage box /nowhere.so nonsense /nowhere /workspace\n"
        assert (await box.exec(command)).stdout == said
        assert (await box.exec("id -un; pwd; echo $B $HOME", user="root", cwd="/tmp", env={"B": "call"})).stdout == (
            "root\n/tmp\ncall /root\n"
        )
        async with box.snapshot() as snapshot, DockerBox(image=snapshot, env={"B": "box"}) as other:
            assert (await other.exec(command)).stdout == said
    async with DockerBox(image=BoxImage.dockerfile(tmp_path), user="1234:5678", limits=LIMITS) as box:
        assert (await box.exec("id -u; id -g")).stdout == "1234\n5678\n"
        await box.write_file("/tmp/f", "x")
        assert (await box.exec("ls -n /tmp/f")).stdout.split()[2:4] == ["1234", "5678"]


async def test_a_box_is_limited_and_has_no_network(image: str) -> None:
    async with DockerBox(limits=LIMITS) as box:
        result = await box.exec(
            "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max; ls /sys/class/net"
        )
        assert result.stdout.split() == [str(128 << 20), "lo"]
        assert (await box.exec("grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status")).stdout.split()[1::2] == ["1", "2"]


PLANTED = {
    "loader": "for f in ld.so.preload ld.so.conf ld.so.cache localtime; do echo /tmp/evil.so > /etc/$f; done",
    "pipes": "mkdir -p /usr/lib/locale; mkfifo /usr/lib/locale/locale-archive; cd /etc; rm -f passwd group localtime; "
    "mkfifo passwd group localtime",
    "another /etc": "mv /etc /etc2; mkdir /etc; cd /etc; mkfifo group hosts hostname resolv.conf; ln -s passwd passwd",
    "folders": "cd /etc; rm passwd group; mkdir -p passwd/x group; rm -f /bin/sh; ln -s / /work; chmod 000 /",
    "no folder": "mv /etc /etc2; mkfifo /etc",
    "long lists": "head -c 2000000 /dev/zero > /etc/passwd; truncate -s 9M /etc/group",
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
async def test_what_is_planted_in_a_snapshot_reaches_neither_the_engine_nor_the_next_guest(
    image: str, plant: str
) -> None:
    async with DockerBox(limits=LIMITS) as box:
        await box.exec(plant)
        async with box.snapshot() as snapshot, box.variant(image=snapshot) as other:
            assert (await other.exec(["/bin/echo", "x"])).stdout == "x\n"


async def test_a_snapshot_with_a_huge_hole_is_refused(image: str) -> None:
    async with DockerBox(limits=LIMITS) as box:
        await box.exec("truncate -s 1T /huge")
        with pytest.raises(SandboxFileTooLargeError, match="a snapshot has at most"):
            async with box.snapshot():
                pass
        assert (await box.exec("rm /huge")).ok


async def test_snapshots_are_removed_however_their_block_ends(image: str) -> None:
    own = os.getpid()
    async with DockerBox(limits=LIMITS) as box:
        async with box.snapshot():
            assert len(temporary_images(own)) == 1
        assert not temporary_images(own)
        for seconds in (0.0, 0.02, 0.1):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds), box.snapshot():
                    await asyncio.sleep(60)
            assert not temporary_images(own)
        assert (await box.exec("sleep 0.01; echo goes on")).stdout == "goes on\n"


OWNER = """
import asyncio, sys
from gymnast.sandbox import DockerBox
async def main():
    async with DockerBox() as box, box.snapshot() as image, box.variant(image=image) as other:
        await box.exec("setsid sleep 600 & sleep 600 & true")
        print("ready", flush=True)
        await other.exec("sleep 600")
asyncio.run(main())
"""


async def test_nothing_is_left_of_an_owner_that_was_killed(image: str, engine: Engine) -> None:
    """Its boxes are gone within two seconds, and the next process to use an engine removes its snapshots."""
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, stdout=asyncio.subprocess.PIPE)
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"ready\n"
    assert len(containers_of(owner.pid)) == 2
    owner.kill()
    await owner.wait()
    assert await eventually(lambda: not containers_of(owner.pid), 2)
    assert len(temporary_images(owner.pid)) == 1
    await reap(engine)  # a process of another test may do so at the same moment
    assert await eventually(lambda: not temporary_images(owner.pid), 2)


async def test_a_box_that_the_engine_loses_is_lost_and_not_the_codes_deed(image: str) -> None:
    async with DockerBox(limits=LIMITS) as box, box.open(["cat"]) as process:
        waiting = asyncio.ensure_future(box.exec("sleep 600"))
        await box.exec("true")
        await asyncio.to_thread(
            subprocess.run, ["docker", "rm", "-f", *containers_of(os.getpid())], capture_output=True
        )
        for call in (waiting, process.read(), process.wait(), box.exec("true"), box.read_file("/f"), box.ping()):
            with pytest.raises(SandboxLostError):
                await call
        assert box.retire_reason is not None
        assert box.retire_reason.category == "lost"


async def test_calls_that_run_when_a_box_is_closed_say_so(image: str, nothing_left: None) -> None:
    async with DockerBox(limits=LIMITS) as box:
        calls = [asyncio.ensure_future(call) for call in (box.exec("sleep 600"), box.copy_out("/dev/zero", "/nowhere"))]
        await box.exec("true")
        await box.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[0], SandboxClosedError)


async def test_variants_differ_in_what_is_given(image: str) -> None:
    box = DockerBox(limits=LIMITS, env={"A": "1"}, user=7)
    assert box.clone().key == box.variant().key == box.key
    other = box.variant(limits=Limits(pids=99), network="bridge")
    assert (other.limits.pids, other.options.network, other.user, other.options.environment) == (
        99, "bridge", "7", (("A", "1"),),
    )  # fmt: skip
    assert len({box.key, other.key, box.variant(image=BoxImage.named("other")).key}) == 3
    missing = DockerBox(image=BoxImage.named("gymnast-has-no-such-image", pull="never"))
    with pytest.raises(ImageError, match="gymnast-has-no-such-image"):
        await missing.start()
    assert missing.state == "closed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": 7}, "image must be a BoxImage"),
        ({"image": ""}, "an image needs a name"),
        ({"network": "host"}, "another network namespace"),
        ({"env": {"A": 1}}, "env maps names to values"),
        ({"limits": {"memory": "1g"}}, "limits must be a Limits"),
        ({"memory": "1g"}, "give limits=Limits"),
        ({"start_timeout": 0}, "start_timeout must be a positive"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        DockerBox(**options)


async def test_the_guests_volume_is_filled_once_by_whoever_is_first(
    image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines fill it at the same time, as two processes may; both use the same one, and the other is removed."""
    recipe = f"test-{os.getpid()}"
    monkeypatch.setattr(guest_volumes, "guest_recipe", lambda boot: recipe)
    filters = {"name": f"gymnast-guest-{recipe}"}
    async with Engine() as one, Engine() as two:
        try:
            names = await asyncio.gather(guest_volumes.guest_volume(one), guest_volumes.guest_volume(two))
            assert names[0] == names[1] == await guest_volumes.guest_volume(two)
            found = (await one.call(lambda: one.client.api.volumes(filters=filters)))["Volumes"]
            assert sorted(volume["Name"] for volume in found) == sorted([names[0], f"gymnast-guest-{recipe}"])
            await one.call(one.client.api.remove_volume, names[0])  # as `docker volume prune` may
            assert await guest_volumes.guest_volume(one) != names[0]
        finally:
            for volume in (await one.call(lambda: one.client.api.volumes(filters=filters)))["Volumes"]:
                await one.call(one.client.api.remove_volume, volume["Name"])
    assert not temporary_images(os.getpid())


async def test_an_engine_that_is_not_there_is_an_engine_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    with pytest.raises(EngineError, match="no container engine answers"):
        await DockerBox().start()


async def test_output_and_input_of_a_call_are_bounded(image: str) -> None:
    async with DockerBox(limits=LIMITS) as box:
        for size in (0, 17 << 20):
            with pytest.raises(ValueError, match="max_output must be from 1024"):
                await box.exec("true", max_output=size)
        with pytest.raises(ValueError, match="input has at most 67108864 bytes"):
            await box.exec("true", input=bytes(65 << 20))
        result = await box.exec("head -c 40000000 /dev/zero", max_output=16 << 20)
        assert (result.status, result.dropped_bytes) == (Status.OK, 40_000_000 - (16 << 20))
