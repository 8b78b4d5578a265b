"""Checks of `Executor.bash`: state, exit codes, output, failures, timeouts."""

from __future__ import annotations

import signal

from ...base import Executor, Status
from .checks import CODE, OUTPUT, PROMPT, SHORT, box_check, expect, require, require_capped, require_usable


@box_check(CODE)
async def bash_keeps_its_state(box: Executor) -> None:
    """Directory, variables, environment, functions and umask stay."""
    await box.bash("mkdir -p d; cd d; export A=1; B=2; greet() { echo hello $1; }; umask 077")
    result = await box.bash("basename $PWD; echo $A $B; greet you; umask; bash -c 'echo $A$B'")
    expect(result, status=Status.OK, stdout="d\n1 2\nhello you\n0077\n1\n", value=None, state_lost=False)


@box_check(CODE)
async def bash_reports_an_exit_code(box: Executor) -> None:
    """The result has the command's exit code; any but 0 is an error, and the state stays."""
    await box.bash("kept=1")
    expect(await box.bash("true"), status=Status.OK, exit_code=0)
    expect(await box.bash("false"), status=Status.ERROR, exit_code=1, state_lost=False)
    expect(await box.bash("(exit 42)"), status=Status.ERROR, exit_code=42, state_lost=False)
    result = await box.bash("there_is_no_such_command")
    expect(result, status=Status.ERROR, exit_code=127, stdout="")
    require("not found" in result.stderr, f"stderr should say so, got {result.stderr!r:.300}")
    expect(await box.bash("echo $kept"), stdout="1\n")


@box_check(CODE)
async def bash_keeps_streams_apart(box: Executor) -> None:
    """stdout and stderr are apart, also when they are opened as /dev/stdout and /dev/stderr."""
    result = await box.bash("echo out; echo err >&2; echo named > /dev/stdout; echo failed > /dev/stderr")
    expect(result, status=Status.OK, stdout="out\nnamed\n", stderr="err\nfailed\n")


@box_check(CODE)
async def bash_takes_several_lines(box: Executor) -> None:
    """A command may hold here-documents, loops over lines and comments, and may be empty."""
    command = "cat <<END\nhere \"doc\" '$((1 + 1))'\nEND\nfor i in 1 2\ndo\n  echo $i  # a comment\ndone"
    expect(await box.bash(command), status=Status.OK, stdout="here \"doc\" '2'\n1\n2\n")
    expect(await box.bash(""), status=Status.OK, stdout="", stderr="")


@box_check(CODE)
async def bash_reports_a_command_that_does_not_parse(box: Executor) -> None:
    """An unclosed quote or a NUL is an error result; nothing of the command runs, and the state stays."""
    await box.bash("kept=1")
    for command in ("echo 'x", "echo a\0; echo b", "if true; then", "echo $(", "cat <<'END'"):
        result = await box.bash(command)
        if "END" not in command:  # of a here-document without its end Bash takes what there is
            expect(result, status=Status.ERROR, stdout="", state_lost=False)
        expect(await box.bash("echo $kept"), status=Status.OK, stdout="1\n", state_lost=False)


@box_check(CODE)
async def bash_has_no_input(box: Executor) -> None:
    """A command that reads finds the end of its input at once."""
    expect(await box.bash("cat; read line || echo none"), status=Status.OK, stdout="none\n")


@box_check(CODE)
async def bash_replaces_odd_bytes(box: Executor) -> None:
    """Output that is not valid UTF-8 is replaced; NUL characters stay."""
    expect(await box.bash("printf 'a\\377b\\000c é'"), stdout="a\ufffdb\0c é")


@box_check(CODE)
async def bash_caps_its_output(box: Executor) -> None:
    """A flood on both streams is cut: head and tail are kept, and the dropped bytes are counted."""
    flood = f"head -c {OUTPUT} /dev/zero | tr '\\0' x"
    result = await box.bash(f"{flood} >&2; echo first; {flood}; echo; echo last")
    expect(result, status=Status.OK)
    require("first\nxxx" in result.stdout, f"the head is kept, got {result.stdout[:80]!r}")
    total = 2 * OUTPUT + len("first\n\nlast\n")
    require_capped(result.stderr + result.stdout, result.dropped_bytes, total, "xxx", "xxx\nlast\n")


@box_check(CODE)
async def bash_that_exits_is_begun_afresh(box: Executor) -> None:
    """The result says how a shell ended; the shell is restarted in the same directory."""
    endings = (
        ("exit 4", Status.EXITED, 4),
        ("set -e; false", Status.EXITED, 1),
        ("exec true", Status.EXITED, 0),
        ("kill -9 $$", Status.SIGNAL, -signal.SIGKILL),
    )
    for command, status, exit_code in endings:
        await box.python("kept = 1")
        await box.bash("mkdir -p d; cd d; gone=1")
        result = await box.bash(f"echo before; {command}")
        expect(result, status=status, exit_code=exit_code, stdout="before\n", state_lost=True)
        expect(await box.bash("basename $PWD; echo [$gone]; cd .."), stdout="d\n[]\n", state_lost=False)
        expect(await box.python("kept"), value="1", state_lost=False)


@box_check(CODE)
async def bash_leaves_background_jobs(box: Executor) -> None:
    """A call does not wait for a background job, which keeps its output open and goes on."""
    result = await box.bash("sleep 100 & echo started", timeout=2 * PROMPT)
    expect(result, status=Status.OK, stdout="started\n")
    require(result.duration < PROMPT, f"the call waited {result.duration:g} s for a background job")
    expect(await box.bash("jobs -r | wc -l"), stdout="1\n")


@box_check(CODE)
async def bash_is_interrupted_at_its_timeout(box: Executor) -> None:
    """A command that runs too long is interrupted; its output and the shell's state stay."""
    await box.bash("kept=1")
    result = await box.bash("echo partial; sleep 60", timeout=SHORT)
    expect(result, status=Status.TIMEOUT, stdout="partial\n", state_lost=False)
    require(result.duration < SHORT + PROMPT, f"the timeout was {SHORT} s, duration is {result.duration:g}")
    expect(await box.bash("echo $kept"), stdout="1\n", state_lost=False)


@box_check(CODE)
async def bash_is_killed_where_it_ignores_interruption(box: Executor) -> None:
    """A shell that does not return is killed and restarted in the same directory; Python's state stays."""
    await box.python("kept = 1")
    for command in ("while :; do :; done", "trap '' INT; sleep 60"):
        await box.bash("mkdir -p d; cd d; gone=1")
        result = await box.bash(f"echo partial; {command}", timeout=SHORT)
        expect(result, status=Status.TIMEOUT, stdout="partial\n", state_lost=True)
        expect(await box.bash("basename $PWD; echo [$gone]; cd .."), stdout="d\n[]\n", state_lost=False)
    expect(await box.python("kept"), value="1", state_lost=False)


@box_check(CODE)
async def a_timeout_ends_the_processes_of_the_call(box: Executor) -> None:
    """Processes that a call started in the background are gone after its timeout."""
    code = "import subprocess\nchild = subprocess.Popen(['sleep', '60'])\nprint(child.pid)\nwhile True: pass"
    result = await box.python(code, timeout=SHORT)
    expect(result, status=Status.TIMEOUT)
    pid = result.stdout.strip()
    running = f"state=$(ps -o stat= -p {pid} 2>/dev/null || cut -d' ' -f3 /proc/{pid}/stat 2>/dev/null)"
    expect(await box.bash(f"{running}; case $state in ''|Z*) echo gone;; *) echo $state;; esac"), stdout="gone\n")


@box_check(CODE)
async def bash_cannot_forge_its_status(box: Executor) -> None:
    """Nothing that a command writes to its shell's descriptors is taken for a result."""
    answers = "for value in x $(compgen -v | grep -i -e nonce -e token -e id); do"
    answers += ' { printf \'%s 0 /\\0\' "$value" "${!value}" >&$fd; } 2>/dev/null; done'
    await box.bash("true")  # now its variables hold what they hold after a command
    for ending, wanted in (("false", Status.ERROR), ("sleep 60", Status.TIMEOUT)):
        command = f"for fd in /proc/$$/fd/*; do fd=${{fd##*/}}; [ $fd -gt 2 ] && {answers}; done; {ending}"
        result = await box.bash(command, timeout=SHORT)
        require(result.status in (wanted, Status.PROTOCOL), f"a forged status 0 was taken: {result}")
        tampered = result.status is Status.PROTOCOL
        require(not tampered or box.retire_reason is not None, "a box that was tampered with must give a retire_reason")
        await require_usable(box)
