"""DockerExecutor beyond the contract and the faults: options, limits, reset, lifetime."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path
from typing import Any

import pytest

from gymnast.sandbox import DEFAULT_IMAGE, DockerExecutor, Engine, Limits, Status
from gymnast.sandbox.host.seccomp import default_seccomp

from ..sandbox.boxes import LIMITS, eventually, usable

# --- sessions ---------------------------------------------------------------------------------------------------


async def test_a_traceback_is_of_the_code_alone(box: DockerExecutor) -> None:
    await box.python("def f():\n    return 1 / 0")
    result = await box.python("f()")
    assert (result.status, result.exit_code, result.state_lost) == (Status.ERROR, 1, False)
    assert [line for line in result.stderr.splitlines() if "File" in line] == [
        '  File "<cell 2>", line 1, in <module>',
        '  File "<cell 1>", line 2, in f',
    ]
    assert "python_worker" not in result.stderr


async def test_bash_takes_aliases_and_here_documents(box: DockerExecutor) -> None:
    await box.bash("alias say=echo")
    result = await box.bash('say hi; cat <<E\nhere "doc"\nE\npwd; umask; echo $-')
    assert result.stdout == 'hi\nhere "doc"\n/workspace\n0022\nhBc\n'


async def test_the_codes_user_is_of_no_range_that_a_host_gives_away_and_can_make_archives(box: DockerExecutor) -> None:
    user = int((await box.python("import os; os.getuid()")).value or "")
    assert 2_000_200_000 < user < (1 << 31) - 1  # above /etc/subuid, systemd's containers, SSSD and FreeIPA
    code = """
import os, shutil
os.makedirs("folder/deep")
open("folder/deep/file", "w").write("content")
for kind in ("tar", "gztar", "zip"):
    shutil.unpack_archive(shutil.make_archive("archive", kind, "folder"), "out-" + kind)
[open(f"out-{kind}/deep/file").read() for kind in ("tar", "gztar", "zip")], os.stat("out-tar/deep/file").st_uid"""
    assert (await box.python(code)).value == f"(['content', 'content', 'content'], {user})"
    assert (await box.bash("tar cf - folder | tar xf - -C /tmp && cat /tmp/folder/deep/file")).stdout == "content"


async def test_a_kernel_that_changes_the_mode_of_no_pipe_can_hold_a_box(image: str) -> None:
    """As gVisor; there the code cannot open /dev/stdout."""
    profile = json.loads(default_seccomp())
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name != "fchmod"]
    profile["syscalls"].append({"names": ["fchmod"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM})
    async with DockerExecutor(limits=LIMITS, seccomp=json.dumps(profile)) as box:
        assert await usable(box)
        assert (await box.bash("echo out; echo err >&2")).stderr == "err\n"
        await box.reset()
        assert await usable(box)


# --- options ----------------------------------------------------------------------------------------------------


async def test_files_and_environment_are_there_again_after_a_reset(image: str) -> None:
    async with DockerExecutor(limits=LIMITS, files={"data/x.csv": "1,2\n"}, env={"KEY": "value"}) as box:
        assert await box.read_file("data/x.csv") == b"1,2\n"
        await box.bash("rm -r data; export KEY=changed")
        await box.reset()
        assert await box.read_file("data/x.csv") == b"1,2\n"
        assert (await box.bash("echo $KEY")).stdout == "value\n"
        assert (await box.python("import os; os.environ['KEY']")).value == "'value'"


async def test_a_reset_is_in_place_unless_the_root_is_writable(image: str) -> None:
    for read_only in (True, False):
        async with DockerExecutor(limits=LIMITS, read_only=read_only) as box:
            old = box._launched
            await box.reset()
            assert (box._launched is old) is read_only
            assert await usable(box)


async def test_a_preloaded_module_sees_the_environment_of_the_code(image: str) -> None:
    """Some libraries start threads or choose folders when they are imported."""
    async with DockerExecutor(limits=LIMITS, preload=["pydoc"], env={"PYTHONDOCS": "set"}) as box:
        assert (await box.python("import pydoc; pydoc.Doc.PYTHONDOCS")).value == "'set'"


async def test_modules_can_be_preloaded_even_one_that_prints(image: str) -> None:
    async with DockerExecutor(limits=LIMITS, preload=["this", "decimal"]) as box:
        for _ in range(2):
            result = await box.python("import this, sys; print('x'); {'this', 'decimal'} <= {*sys.modules}")
            assert (result.stdout, result.value) == ("x\n", "True")
            await box.reset()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_output": 10}, "from 1k to 16m"),
        ({"max_file": "65m"}, "at most 64m"),
    ],
)
def test_limits_are_checked(limits: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits(**limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"network": ""}, ValueError, "network='' would be the engine's bridge"),
        ({"network": "default"}, ValueError, "network='default' would be the engine's bridge"),
        ({"network": "host"}, ValueError, "another network namespace"),
        ({"network": "container:any"}, ValueError, "another network namespace"),
        ({"image": ""}, ValueError, "an image needs a name, .* got ''"),
        ({"image": "./img"}, ValueError, r"is a folder: .* give it as a Path, image=Path\('./img'\)"),
        ({"pull": "always"}, ValueError, "pull='always' is for images from a registry, and .* on this machine"),
        ({"image": Path("folder"), "pull": "never"}, ValueError, "from a registry, and 'folder' is made on this"),
    ],
)
def test_impossible_options(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        DockerExecutor(**options)


# --- life -------------------------------------------------------------------------------------------------------


# Its processes are as unlikely to be killed as the supervisor, and the memory belongs to no process.
USE_UP_MEMORY = """
import os
open("/proc/self/oom_score_adj", "w").write("0")
held = []
while True:
    held.append(os.memfd_create("x"))
    for _ in range(60):
        os.write(held[-1], bytes(1 << 20))
"""
COST_THE_BOX = """echo 0 > /proc/self/oom_score_adj
for _ in 1 2 3; do (exec python3 use_up.py) & done; wait; exec python3 use_up.py"""


@pytest.mark.usefixtures("nothing_left")
async def test_code_that_uses_up_the_memory_of_the_box_gets_a_result(image: str) -> None:
    async with DockerExecutor(limits=LIMITS) as box:
        await box.write_file("use_up.py", USE_UP_MEMORY)
        result = await box.bash(COST_THE_BOX, timeout=30)
        assert (result.status, result.state_lost) == (Status.OOM, True)
        assert await usable(box)
        assert await box.list_files() == []


@pytest.mark.usefixtures("nothing_left")
async def test_a_box_that_runs_out_of_memory_after_a_call_says_so_however_late_the_next_call_is(engine: Engine) -> None:
    async with DockerExecutor(limits=LIMITS, engine=engine) as box:
        await box.write_file("use_up.py", USE_UP_MEMORY)
        await box.bash(f"(sleep 1; {COST_THE_BOX}) >/dev/null 2>&1 &")
        assert await eventually(lambda: box.retire_reason is not None, 30)
        await asyncio.sleep(1)
        api = engine.client.api
        for _ in range(300):  # the engine remembers 256 events
            await engine.call(api.tag, DEFAULT_IMAGE, "gymnast-tagged")
        await engine.call(api.remove_image, "gymnast-tagged")
        assert (await box.python("1")).status is Status.OOM
        assert await usable(box)
