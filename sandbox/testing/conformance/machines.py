"""The contract of `sandbox/box.py` as checks that every box passes, each as far as the box is capable of it.

The checks use `sh`, `cat`, `sleep` and the like, and share one box: each has files of its own.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from ...base import Status
from ...box import Box, Capability, Process
from ...errors import (
    SandboxClosedError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxFileTooLargeError,
    SandboxPermissionError,
)
from .checks import PROMPT, SHORT, box_check, expect, raises, require, require_capped

_NOBODY = 65534


async def _alive(box: Box, pid: str) -> bool:
    """Whether a process of the box runs. One that has been killed may take a moment to end."""
    deadline = time.monotonic() + PROMPT
    while (await box.exec(f"kill -0 {pid} && ! grep -q '^State:.Z' /proc/{pid}/status")).ok:
        if time.monotonic() > deadline:
            return True
    return False


@box_check()
async def a_program_runs_to_its_end(box: Box) -> None:
    """A list is a program and its arguments; its output and exit code are the result."""
    script = 'printf "%s|" "$@"; echo oops >&2; exit 3'
    result = await box.exec(["sh", "-c", script, "sh", "a b", "$HOME", "*", ""])
    expect(result, status=Status.ERROR, exit_code=3, stdout="a b|$HOME|*||", stderr="oops\n", state_lost=False)
    expect(await box.exec(["true"]), status=Status.OK, exit_code=0, stdout="", stderr="", value=None)


@box_check()
async def a_text_is_run_by_a_shell(box: Box) -> None:
    """A text is the command of a shell, on several lines if need be."""
    expect(await box.exec("x=7\necho $((x * 6)) | cat && exit 5"), exit_code=5, stdout="42\n")


@box_check()
async def a_call_has_input_and_directory_and_variables(box: Box) -> None:
    """`input`, `cwd` and `env` are those of the program; without input, it reads nothing."""
    expect(await box.exec(["cat"], input=b"a" * 500_000), stdout="a" * 500_000)
    expect(await box.exec(["cat"]), stdout="")
    expect(await box.exec(["sleep", "0"], input=b"x" * 5_000_000), status=Status.OK)
    result = await box.exec('pwd; echo "$A-$B"', cwd="/tmp", env={"A": "ä 'b'", "B": ""})
    expect(result, stdout="/tmp\nä 'b'-\n")


@box_check()
async def a_program_that_is_not_there_is_a_result(box: Box) -> None:
    """Without the program the exit code is 127, if it cannot be run 126, as in a shell; a directory must exist."""
    result = await box.exec(["/nowhere/program"])
    expect(result, status=Status.ERROR, exit_code=127)
    require("/nowhere/program" in result.stderr, f"stderr names the program, got {result.stderr!r}")
    expect(await box.exec(["/etc"]), status=Status.ERROR, exit_code=126)
    await raises(SandboxFileNotFoundError, box.exec("true", cwd="/nowhere"), "exec(cwd='/nowhere')")


@box_check()
async def a_signal_that_ends_a_program_is_told(box: Box) -> None:
    """The exit code is minus the number of the signal that ended the program."""
    result = await box.exec(["sh", "-c", "echo before; kill -9 $$"])
    require((result.status, result.exit_code) == (Status.SIGNAL, -9), f"a killed program is told, got {result}")
    require(result.stdout == "before\n", "the output before the end is kept")


@box_check()
async def a_timeout_kills_all_that_the_call_has_started(box: Box) -> None:
    """After the timeout the program, its children and its orphans are dead, and the output so far is there."""
    began = time.monotonic()
    script = "(sleep 601 & echo $!); sh -c 'sleep 602 & echo $!'; echo $$; sleep 603"
    result = await box.exec(script, timeout=SHORT)
    expect(result, status=Status.TIMEOUT, exit_code=None)
    pids = result.stdout.split()
    require(len(pids) == 3, f"the output so far is kept, got {result.stdout!r}")
    require(time.monotonic() - began < PROMPT, "a timeout ends the call in time")
    for pid in pids:
        require(not await _alive(box, pid), f"process {pid} of {pids} outlives the timeout of its call")


@box_check()
async def a_timeout_spares_the_processes_of_other_calls(box: Box) -> None:
    """A call that runs beside another, and processes that earlier calls left, go on when a call times out."""
    left = (await box.exec("sleep 600 >/dev/null 2>&1 & echo $!")).stdout.strip()
    beside = asyncio.ensure_future(box.exec(f"(sleep {2 * SHORT} & wait); echo done"))
    expect(await box.exec("sleep 600", timeout=SHORT), status=Status.TIMEOUT)
    expect(await beside, status=Status.OK, stdout="done\n")
    expect(await box.exec(f"kill -9 {left}"), status=Status.OK)


@box_check()
async def calls_run_side_by_side(box: Box) -> None:
    """A call does not wait for another one, and each gets its own output."""
    await box.exec("rm -f /tmp/pipe; mkfifo /tmp/pipe || true")
    slow = asyncio.ensure_future(box.exec("cat /tmp/pipe", timeout=PROMPT))
    results = await asyncio.gather(*(box.exec(f"echo {number}") for number in range(10)))
    require([result.stdout for result in results] == [f"{number}\n" for number in range(10)], "outputs are mixed up")
    await box.exec("echo through > /tmp/pipe")
    expect(await slow, stdout="through\n")


@box_check()
async def processes_that_a_call_leaves_go_on(box: Box) -> None:
    """A background process neither holds the call nor ends with it, though it writes to the call's output."""
    began = time.monotonic()
    result = await box.exec("(while sleep 0.05; do echo more; echo x >> /tmp/left; done) & echo $!")
    require(time.monotonic() - began < PROMPT, "a background process holds the call")
    size = len(await box.read_file("/tmp/left")) if (await box.exec("sleep 0.3; test -e /tmp/left")).ok else 0
    await box.exec("sleep 0.3")
    require(len(await box.read_file("/tmp/left")) > size, "the background process has ended")
    await box.exec(f"kill -9 {result.stdout.split()[0]}")


@box_check()
async def a_cancelled_call_is_ended(box: Box) -> None:
    """Cancelling a call kills its processes, and leaves the box usable."""
    call = asyncio.ensure_future(box.exec("echo $$ > /tmp/cancelled; sleep 600"))
    pid = (await box.exec("until test -s /tmp/cancelled; do sleep 0.01; done; cat /tmp/cancelled")).stdout.strip()
    call.cancel()
    require(isinstance((await asyncio.gather(call, return_exceptions=True))[0], asyncio.CancelledError), "it is over")
    require(not await _alive(box, pid), "a cancelled program runs on")


@box_check()
async def output_is_capped(box: Box) -> None:
    """Long output keeps its head and its tail, with a marker between them; bytes that are no text are replaced."""
    script = "echo begin; i=0; while [ $i -lt 2000 ]; do echo 0123456789012345678; i=$((i+1)); done; echo end"
    result = await box.exec(script, max_output=4096)
    require_capped(result.stdout, result.dropped_bytes, 40_010, "begin\n", "end\n")
    expect(await box.exec(r"printf '\377\376'"), stdout="\ufffd\ufffd")


@box_check()
async def arguments_are_checked(box: Box) -> None:
    """A timeout that is not positive and finite, and a command without a program, are errors, and nothing runs."""
    for timeout in (0, -1.0, float("inf"), float("nan")):
        await raises(ValueError, box.exec("touch /tmp/ran", timeout=timeout), f"exec(timeout={timeout})")
    await raises(TypeError, box.exec([]), "exec([])")
    await raises(ValueError, box.exec(["echo", "a\0b"]), "exec() with a NUL")
    require(not (await box.exec("test -e /tmp/ran")).ok, "a refused command ran")


@box_check()
async def files_are_written_and_read(box: Box) -> None:
    """Files hold what was written, of any size and with any bytes; the folders above a file are made."""
    for data in (b"", bytes(range(256)), b"\n", b"x" * 3_000_001):
        await box.write_file("/tmp/a/b c/d'e", data)
        require(await box.read_file("/tmp/a/b c/d'e") == data, f"a file of {len(data)} bytes comes back changed")
    await box.write_file("/tmp/text", "ä\n")
    expect(await box.exec(["cat", "/tmp/text"]), stdout="ä\n")
    await box.exec("ln -s /tmp/text /tmp/link")
    require(await box.read_file("/tmp/link") == "ä\n".encode(), "read_file follows links")


@box_check()
async def unfit_files_are_errors(box: Box) -> None:
    """A missing file, a folder, a pipe, and a file over the limit are errors; nothing waits for a writer."""
    await box.exec("mkfifo /tmp/fifo; head -c 2000 /dev/zero > /tmp/zeros")
    await raises(SandboxFileNotFoundError, box.read_file("/nowhere"), "reading a missing file")
    await raises(SandboxFileTooLargeError, box.read_file("/tmp/zeros", limit=1999), "reading too much")
    require(len(await box.read_file("/tmp/zeros", limit=2000)) == 2000, "a file of just the limit can be read")
    for path in ("/tmp", "/tmp/fifo"):
        await raises(SandboxFileError, box.read_file(path), f"read_file({path!r})")
    await raises(SandboxFileError, box.write_file("/tmp/zeros/below", b""), "writing below a file")


@box_check()
async def folders_go_in_and_out(box: Box) -> None:
    """A folder arrives with its modes and links, and comes out without links; patterns leave names out."""
    with tempfile.TemporaryDirectory() as scratch:
        source, target = _make_folder(Path(scratch, "source")), Path(scratch, "target")
        for _ in range(2):  # the folder may exist
            await box.copy_in(source, "/tmp/in/to")
        expect(await box.exec("cd /tmp/in/to && test -h link && test -d empty && ./link"), stdout="ran\n")
        refused = await box.copy_out("/tmp/in/to", target, exclude=["deep"])
        require([line.split(":")[0] for line in refused] == ["link"], f"links are refused by name, got {refused}")
        require(_names(target) == ["big é", "empty", "sub"], f"the rest comes out, got {_names(target)}")
        require((target / "big é").read_bytes() == (source / "big é").read_bytes(), "content comes out unchanged")
        await box.copy_out("/tmp/in/to/sub/deep/run.sh", target)
        require((target / "run.sh").read_text().endswith("ran\n"), "a file alone comes out")
        await raises(SandboxFileNotFoundError, box.copy_out("/nowhere", Path(scratch, "none")), "copy_out('/nowhere')")
        await raises(SandboxFileTooLargeError, box.copy_out("/tmp/in", Path(scratch, "less"), limit=10_000), "too much")


@box_check(Capability.STREAMS)
async def an_open_program_is_read_and_written(box: Box) -> None:
    """What a program prints can be read as it comes, and it reads what is written; the exit code can be waited for."""
    async with box.open("echo ready; while read line; do echo got $line; done; echo over >&2; exit 7") as process:
        require(await _read(process, 6) == b"ready\n", "output comes before the end")
        require(await process.read(timeout=0.05) == b"", "without output, read() returns nothing in time")
        require(await process.wait(timeout=0.05) is None, "wait() returns None while the program runs")
        for word in (b"one\n", b"two\n"):
            await process.write(word)
            require(await _read(process, 8) == b"got " + word, "the program reads what is written")
        await process.write(b"")
        require(await _read(process, 5) == b"over\n", "stderr comes among stdout, and b'' ends the input")
        require(await process.wait() == 7, "wait() returns the exit code")
        require(await process.read() == b"" and await process.wait() == 7, "the end can be asked for again")


@box_check(Capability.STREAMS)
async def streams_carry_any_amount(box: Box) -> None:
    """A program that is far ahead of its reader waits, and so does a writer; nothing is lost."""
    data = bytes(range(256)) * 20_000
    async with box.open(["cat"]) as process:
        writing = asyncio.ensure_future(process.write(data))
        require(await _read(process, len(data)) == data, "what `cat` was given comes back")
        await writing


@box_check(Capability.STREAMS)
async def a_program_may_close_its_input(box: Box) -> None:
    """What is written to a program that does not read any more is dropped, and so is what follows the end of input."""
    async with box.open("exec <&-; echo closed; sleep 609") as process:
        await _read(process, 7)
        for _ in range(3):
            await process.write(b"x" * 100_000)
    async with box.open(["cat"]) as process:
        for data in (b"x", b"", b"y", b""):
            await process.write(data)
        require(await _read(process, 1) == b"x", "what was written before the end of input comes back")
        require(await process.wait() == 0, "the program has ended")
        await process.write(b"z")
    await box.ping()


@box_check(Capability.STREAMS)
async def an_open_program_ends_with_its_block(box: Box) -> None:
    """At the end of the block the program and all that it has started are killed."""
    async with box.open("(sleep 604 & echo $!); echo $$; echo ready; exec sleep 605") as process:
        pids = (await _read(process, 9, last=b"ready\n")).decode().split()[:2]
    for pid in pids:
        require(not await _alive(box, pid), f"process {pid} outlives its block")


@box_check(Capability.STREAMS)
async def an_open_program_is_signalled(box: Box) -> None:
    """A signal reaches the program and its children."""
    # A child that is not yet another program may swallow the signal.
    script = "trap 'c=1; echo caught' TERM; sleep 606 & until grep -q sleep /proc/$!/comm; do :; done; echo ready; "
    script += 'wait; until [ "$c" ]; do :; done; wait; echo went on; sleep 607'  # the child may end first
    async with box.open(script) as process:
        await _read(process, 6)
        await process.signal(15)
        said = await _read(process, 15, last=b"went on\n")
        require(b"caught\n" in said, f"the child is ended, and the program has its trap, got {said!r}")
        await process.signal(9)
        require(await process.wait() == -9, "the exit code is minus the signal")
        await process.signal(9)


@box_check(Capability.STREAMS, Capability.TTY)
async def a_program_runs_in_a_terminal(box: Box) -> None:
    """With `tty`, the program has a terminal, which echoes, sends signals for keys, and can be resized."""
    async with box.open("test -t 0 && test -t 1 && read x && echo got $x; sleep 608", tty=(80, 24)) as process:
        await process.write(b"word\n")
        require(b"word\r\ngot word\r\n" in await _read(process, 16), "the terminal echoes what is typed")
        await process.resize(100, 30)
        await process.write(b"\x03")
        require(await process.wait(timeout=PROMPT) in (-2, 130), "Ctrl-C interrupts the program")
    async with box.open(["cat"]) as process:
        await raises(TypeError, process.resize(80, 24), "resize() without a terminal")


@box_check(Capability.USERS)
async def programs_and_files_are_of_any_user(box: Box) -> None:
    """`user` is the user of a program and of a file operation: its rights are those of the user, by name or id."""
    expect(await box.exec("id -u; id -g", user="root"), stdout="0\n0\n")
    expect(await box.exec("id -u", user=_NOBODY), stdout=f"{_NOBODY}\n")
    await box.write_file("/tmp/secret", b"x", user=0)
    await box.exec("chmod 600 /tmp/secret; mkdir -p /tmp/open; chmod 777 /tmp/open", user=0)
    await raises(SandboxPermissionError, box.read_file("/tmp/secret", user=_NOBODY), "reading root's file")
    await raises(SandboxPermissionError, box.write_file("/etc/mine", b"", user=_NOBODY), "writing to /etc")
    await box.write_file("/tmp/open/own", b"x", user=_NOBODY)
    with tempfile.TemporaryDirectory() as scratch:
        await box.copy_in(_make_folder(Path(scratch, "source")), "/tmp/owned", user=_NOBODY)
    expect(await box.exec("cd /tmp; stat -c %u open/own owned owned/link"), stdout=f"{_NOBODY}\n" * 3)
    error = await raises(ValueError, box.exec("true", user="no such user"), "exec() as an unknown user")
    require("no such user" in str(error), f"the error names the user, got {error}")
    expect(await box.exec("sleep 609", user=_NOBODY, timeout=SHORT), status=Status.TIMEOUT)


@box_check(Capability.SNAPSHOT, Capability.IMAGES)
async def a_snapshot_holds_the_files_and_no_processes(box: Box) -> None:
    """A box of the snapshot has the files, whatever becomes of the first box; this one's processes go on."""
    left = (await box.exec("echo kept > /root/file; sleep 610 >/dev/null 2>&1 & echo $!")).stdout.strip()
    async with box.snapshot() as image:
        expect(await box.exec(f"echo changed > /root/file; kill -0 {left}"), status=Status.OK)
        async with box.variant(image=image) as other:
            expect(await other.exec("cat /root/file; pwd"), stdout=f"kept\n{(await box.exec('pwd')).stdout}")
            require("610" not in (await other.exec("cat /proc/[0-9]*/cmdline")).stdout, "a process is in the snapshot")
    await box.exec(f"kill -9 {left}")


@box_check()
async def a_box_is_used_between_its_start_and_its_end(box: Box) -> None:
    """Every method raises SandboxClosedError before start and after close; a box is started once."""
    other = box.clone()
    require(other.key == box.key or other.key != box.clone().key, "keys are equal for one configuration, or for none")
    await raises(SandboxClosedError, other.exec("true"), "exec() before start()")
    async with other:
        await raises(SandboxClosedError, other.start(), "a second start()")
        require(other.retire_reason is None, f"retire_reason of a fresh box is {other.retire_reason!r}")
        await other.ping(timeout=PROMPT)
        await other.write_file("/tmp/of the clone", b"")
    for call in (other.exec("true"), other.read_file("/f"), other.write_file("/f", b""), other.ping()):
        await raises(SandboxClosedError, call, "a call after close()")
    await other.close()
    require(not (await box.exec(["test", "-e", "/tmp/of the clone"])).ok, "a clone shares its files")


async def _read(process: Process, size: int, *, last: bytes = b"") -> bytes:
    """Read at least so many bytes, up to these last ones."""
    data = b""
    async with asyncio.timeout(PROMPT):
        while (len(data) < size or not data.endswith(last)) and (more := await process.read()):
            data += more
    return data


def _make_folder(folder: Path) -> Path:
    (folder / "empty").mkdir(parents=True)
    (folder / "sub/deep").mkdir(parents=True)
    (folder / "sub/deep/run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "sub/deep/run.sh").chmod(0o755)
    (folder / "big é").write_bytes(bytes(range(256)) * 20_000)
    (folder / "link").symlink_to("sub/deep/run.sh")
    return folder


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
