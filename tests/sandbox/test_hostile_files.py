"""Files that the code has made as traps: reading, writing and listing them ends at once and harms neither side."""

from __future__ import annotations

import asyncio

import pytest

from gymnast.sandbox import SandboxFileError, SandboxFileTooLargeError, SandboxPermissionError

from . import faults
from .boxes import usable
from .faults import RealBox, docker_only

kind, shared_box, box = faults.kind, faults.shared_box, faults.box

Error = type[SandboxFileError]


async def refuses_to_read(box: RealBox, prepare: str, path: str, error: Error) -> SandboxFileError:
    await box.bash(prepare)
    with pytest.raises(error) as caught:
        await asyncio.wait_for(box.read_file(path), 10)
    assert caught.value.filename == path
    assert await usable(box)
    return caught.value


@pytest.mark.parametrize(
    ("prepare", "path", "error"),
    [
        pytest.param("ln -s /etc/shadow f", "f", SandboxPermissionError, marks=pytest.mark.fault(25)),
        pytest.param("ln -s f f", "f", SandboxPermissionError, marks=pytest.mark.fault(25)),
        pytest.param("", "/dev/stdin", SandboxFileError, marks=pytest.mark.fault(26)),
        pytest.param("", "x" * 4096, SandboxFileError, marks=pytest.mark.fault(24), id="4096 bytes"),
        pytest.param("", "x/" * 2048 + "x", SandboxFileError, marks=pytest.mark.fault(24), id="4097 bytes"),
    ],
)
async def test_reading_anything_but_a_readable_file(box: RealBox, prepare: str, path: str, error: Error) -> None:
    await refuses_to_read(box, prepare, path, error)


@docker_only
@pytest.mark.parametrize(
    ("prepare", "path", "error"),
    [
        pytest.param("", "/etc/shadow", SandboxFileError, marks=pytest.mark.fault(25)),
        pytest.param("ln -s /proc/1 d", "d/environ", SandboxPermissionError, marks=pytest.mark.fault(25)),
        pytest.param("", "/proc/1/environ", SandboxPermissionError, marks=pytest.mark.fault(31)),
        pytest.param("", "/proc/1/mem", SandboxPermissionError, marks=pytest.mark.fault(31)),
        pytest.param("", "/proc/kmsg", SandboxPermissionError, marks=pytest.mark.fault(26)),
        pytest.param("chmod 000 .", "f", SandboxPermissionError, marks=pytest.mark.fault(24)),
    ],
)
async def test_reading_a_file_of_another_user(box: RealBox, prepare: str, path: str, error: Error) -> None:
    await refuses_to_read(box, prepare, path, error)


GROWTH = """
def peak():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return [int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")][0]
async with make() as box:
    await box.python("with open('f', 'wb') as file: file.truncate(40 << 20)")
    before, said = peak(), ""
    try: await box.read_file("f")
    except OSError as error: said = f"{type(error).__name__}: {error}"
    print(json.dumps([said, peak() - before]))
"""


@pytest.mark.fault(27)
async def test_a_file_over_the_limit_is_not_read(kind: str) -> None:
    said, growth = await faults.run_alone(kind, GROWTH)
    assert said.startswith(f"{SandboxFileTooLargeError.__name__}: ")
    assert "41943040 bytes" in said
    assert "33554432" in said
    assert growth < 4 << 20  # no part of it was buffered


@docker_only
@pytest.mark.fault(28)
@pytest.mark.parametrize(
    ("prepare", "path", "error"),
    [
        ("", "/etc/x", SandboxPermissionError),
        ("ln -s /etc d", "d/x", SandboxPermissionError),
        ("ln -s / d", "d/x", SandboxPermissionError),
        ("ln -s /proc/self d", "d/mem", SandboxPermissionError),
        ("ln -s /proc/1 d", "d/oom_score_adj", SandboxPermissionError),
        ("head -c 60M /dev/zero > full", "big", SandboxFileError),
    ],
)
async def test_writing_without_permission(box: RealBox, prepare: str, path: str, error: Error) -> None:
    await box.bash(prepare)
    with pytest.raises(error):
        await box.write_file(path, bytes(9 << 20))
    assert await usable(box)


@docker_only
@pytest.mark.fault(28)
async def test_a_folder_elsewhere_is_written_as_the_codes_user(box: RealBox) -> None:
    """Through a link to a folder, wherever the code itself may write, and only with its rights."""
    await box.bash("ln -s /tmp d")
    await box.write_file("d/x", "text")
    assert (await box.bash("stat -c %a /tmp/x; [ -O /tmp/x ] && [ -G /tmp/x ] && cat /tmp/x")).stdout == "644\ntext"


# --- hostile trees ----------------------------------------------------------------------------------------------

HOSTILE = """
import io, os, tarfile
with tarfile.open("evil.tar", "w") as tar:
    for name in ("../../escaped", "/tmp/escaped", "link/escaped"):
        member = tarfile.TarInfo(name); member.size = 1; tar.addfile(member, io.BytesIO(b"x"))
    for name, kind, target in (("link", tarfile.SYMTYPE, "/etc"), ("hard", tarfile.LNKTYPE, "/etc/passwd"),
                               ("device", tarfile.CHRTYPE, "")):
        member = tarfile.TarInfo(name); member.type = kind; member.linkname = target; tar.addfile(member)
for name in ("...", "..\\\\..\\\\escaped", "%2e%2e%2fescaped", "~", "$(touch escaped)", "-rf", "a\\nb", "C:escaped"):
    with open(name, "w") as file: file.write(name)
os.makedirs("deep/..../x"); os.mkfifo("pipe")
os.symlink("/etc", "link"); os.symlink("../../../../etc/passwd", "deep/link"); os.symlink("..", "up")
"""

SERVED = """
CHANGES = ("os.mkdir", "os.link", "os.symlink", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.chown",
           "os.utime", "os.truncate", "os.system", "os.exec", "os.posix_spawn", "os.fork", "shutil.", "subprocess.",
           "pickle.")
watching, seen = False, []
def watch(event, arguments):
    writes = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if watching and (writes or event.startswith(CHANGES)): seen.append([event, str(arguments)])
sys.addaudithook(watch)
async with make() as box:
    result = await box.python({hostile!r})
    assert result.ok, result
    watching = True
    entries = await box.list_files(recursive=True)
    data, refused = {{}}, []
    for entry in entries:
        try: data[entry.path] = (await box.read_file(entry.path)).hex()
        except OSError as error: refused.append([entry.path, entry.kind, type(error).__name__])
    watching = False
print(json.dumps([[entry.path for entry in entries], data, refused, seen]))
"""


@pytest.mark.fault(29)
async def test_a_hostile_tree_is_only_listed(kind: str) -> None:
    """No archive of a box is ever unpacked: each file is served on its own, and nothing on the host is written."""
    paths, data, refused, seen = await faults.run_alone(kind, SERVED.format(hostile=HOSTILE))
    assert seen == []
    files = ["$(touch escaped)", "%2e%2e%2fescaped", "-rf", "...", "..\\..\\escaped", "C:escaped", "a\nb", "~"]
    folders = ["deep", "deep/....", "deep/..../x"]
    assert paths == sorted([*files, *folders, "deep/link", "evil.tar", "link", "pipe", "up"])
    assert {path: bytes.fromhex(data[path]).decode() for path in files} == {path: path for path in files}
    assert b"../../escaped" in bytes.fromhex(data["evil.tar"])
    assert {path: error for path, kind, error in refused if kind == "link"} == {
        "deep/link": "SandboxPermissionError",
        "link": "SandboxPermissionError",
        "up": "SandboxPermissionError",
    }
    assert {path for path, _, _ in refused} == {*folders, "deep/link", "link", "pipe", "up"}
