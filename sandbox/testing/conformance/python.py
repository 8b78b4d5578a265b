"""Checks of `Executor.python`: state, values, output, failures, timeouts."""

from __future__ import annotations

import signal

from ...base import Executor, Status
from .checks import CODE, MEMORY, OUTPUT, PROMPT, SHORT, box_check, expect, require, require_capped, require_usable

IGNORE = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"


@box_check(CODE)
async def python_keeps_its_state(box: Executor) -> None:
    """Names that one call defines exist in the next."""
    code = "import math\nx = 6\ndef double(n):\n    return 2 * n\nprint('said')"
    expect(await box.python(code), status=Status.OK, stdout="said\n", stderr="", value=None, state_lost=False)
    result = await box.python("double(x) + math.floor(0.5)")
    expect(result, status=Status.OK, value="12", stdout="", exit_code=0)
    require(result.duration > 0, f"duration is the seconds that passed, got {result.duration!r}")


@box_check(CODE)
async def python_gives_the_last_expression(box: Executor) -> None:
    """The value is repr() of the last expression; None if that is None or if a statement is last."""
    for code, value in (("'a\\n'", "'a\\n'"), ("1\n2", "2"), ("x = 1", None), ("None", None), ("1;", "1"), ("", None)):
        expect(await box.python(code), status=Status.OK, value=value, stdout="", stderr="")
    expect(await box.python("x = 5\nif x:\n    x"), value=None)


@box_check(CODE)
async def python_keeps_streams_apart(box: Executor) -> None:
    """stdout and stderr are apart from one another and from the value; text beyond ASCII goes in and comes out."""
    code = "import sys\nprint('out 日本 é 🙂')\nprint('err é', file=sys.stderr)\n'ß'"
    expect(await box.python(code), stdout="out 日本 é 🙂\n", stderr="err é\n", value="'ß'")


@box_check(CODE)
async def python_captures_other_writers(box: Executor) -> None:
    """Output of subprocesses and writes to the descriptors themselves are captured in order."""
    code = "import os, subprocess\nprint('a', flush=True)\nos.write(1, b'b\\n')\n"
    code += "ended = subprocess.run('echo c; echo d >&2', shell=True)"
    expect(await box.python(code), status=Status.OK, stdout="a\nb\nc\n", stderr="d\n")


@box_check(CODE)
async def python_reports_an_exception(box: Executor) -> None:
    """An exception is a result with the traceback on stderr, and the state stays."""
    await box.python("def f():\n    return 1 / 0\nkept = 1")
    result = await box.python("print('before')\nf()")
    expect(result, status=Status.ERROR, exit_code=1, stdout="before\n", value=None, state_lost=False)
    last = result.stderr.splitlines()[-1:]
    require(last == ["ZeroDivisionError: division by zero"], f"the traceback ends with the exception, got {last}")
    require("return 1 / 0" in result.stderr, f"the traceback shows the line, got {result.stderr!r:.500}")
    expect(await box.python("kept"), value="1")


async def _fails(box: Executor, code: str, said: str) -> None:
    await box.python("kept = 1")
    result = await box.python(code)
    expect(result, status=Status.ERROR, state_lost=False)
    require(said in result.stderr, f"{code!r:.80} should say {said!r} on stderr, got {result.stderr!r:.500}")
    expect(await box.python("kept"), status=Status.OK, value="1")


@box_check(CODE)
async def python_reports_code_that_cannot_run(box: Executor) -> None:
    """A syntax error, a NUL, a lone surrogate or code over the limit, 64 MiB at most, is an error result."""
    too_long = "#" * ((64 << 20) + 1)
    for code, said in (("def", "SyntaxError"), ("x = '\0'", "null"), ("x = '\ud800'", "surrogate"), (too_long, "")):
        await _fails(box, code, said)


@box_check(CODE)
async def python_survives_odd_failures(box: Executor) -> None:
    """input(), endless recursion, a repr() that fails and a closed stdout are error results, and the state stays."""
    await _fails(box, "input()", "EOFError")
    await _fails(box, "def f(): f()\nf()", "RecursionError")
    await _fails(box, "class V:\n    def __repr__(self):\n        return 1 / 0\nV()", "ZeroDivisionError")
    await _fails(box, "import os; os.close(1); print('x', flush=True)", "Bad file descriptor")


@box_check(CODE)
async def python_exit_ends_the_call_only(box: Executor) -> None:
    """sys.exit() ends the call with its status and keeps the state."""
    await box.python("import sys; kept = 1")
    expect(await box.python("print('x'); sys.exit()"), status=Status.OK, exit_code=0, stdout="x\n", state_lost=False)
    result = await box.python("sys.exit(4)")
    expect(result, status=Status.ERROR, exit_code=4, state_lost=False)
    require("SystemExit" in result.stderr, f"stderr should name SystemExit, got {result.stderr!r:.300}")
    expect(await box.python("kept"), value="1")


@box_check(CODE)
async def python_replaces_odd_bytes(box: Executor) -> None:
    """Output that is not valid UTF-8 is replaced; NUL, escapes and lone surrogates break nothing."""
    code = "import sys; x = sys.stdout.buffer.write(b'\\xff\\x00\\x1b[31m\\n'); print(chr(0xd800)); 'é' + chr(0xdfff)"
    result = await box.python(code)
    expect(result, status=Status.OK, value="'é\\udfff'")
    require(result.stdout.startswith("\ufffd\x00\x1b[31m\n"), f"stdout: {result.stdout!r}")
    result.stdout.encode()


@box_check(CODE)
async def python_caps_its_output(box: Executor) -> None:
    """A flood of output and a huge value are cut: head and tail are kept, and the dropped bytes are counted."""
    result = await box.python(f"import sys\nprint('first')\nx = sys.stdout.write('x' * {OUTPUT})\nprint('\\nlast')")
    expect(result, status=Status.OK, stderr="")
    total = len("first\n") + OUTPUT + len("\nlast\n")
    require_capped(result.stdout, result.dropped_bytes, total, "first\nxxx", "xxx\nlast\n")
    result = await box.python(f"'a' * {OUTPUT}")
    expect(result, status=Status.OK)
    require_capped(result.value or "", result.dropped_bytes, OUTPUT + 2, "'aaa", "aaa'")


@box_check(CODE)
async def python_caps_its_traceback(box: Executor) -> None:
    """The huge message of an exception is cut like output, and the state stays."""
    result = await box.python(f"kept = 1\nraise ValueError('x' * {OUTPUT})")
    expect(result, status=Status.ERROR, state_lost=False)
    message = result.stderr[result.stderr.find("ValueError: xxx") :]
    require_capped(message, result.dropped_bytes, len("ValueError: \n") + OUTPUT, "ValueError: xxx", "xxx\n")
    expect(await box.python("kept"), value="1")


@box_check(CODE)
async def python_is_interrupted_at_its_timeout(box: Executor) -> None:
    """Code that runs too long is interrupted; its output and its names stay."""
    for code in ("while True: pass", "import time; time.sleep(60)", "import os; x = os.system('sleep 60')"):
        await box.python("kept = 1")
        result = await box.python(f"print('partial')\nnew = 2\n{code}", timeout=SHORT)
        expect(result, status=Status.TIMEOUT, stdout="partial\n", value=None, state_lost=False)
        require(
            SHORT / 2 < result.duration < SHORT + PROMPT, f"the timeout was {SHORT} s, duration is {result.duration:g}"
        )
        expect(await box.python("kept, new", timeout=PROMPT), value="(1, 2)")


@box_check(CODE)
async def python_can_catch_its_interruption(box: Executor) -> None:
    """The interruption is a KeyboardInterrupt, so clean-up in the code runs."""
    code = (
        "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    cleaned = True; print('cleaned'); raise"
    )
    expect(await box.python(code, timeout=SHORT), status=Status.TIMEOUT, stdout="cleaned\n", state_lost=False)
    expect(await box.python("cleaned"), value="True")


@box_check(CODE)
async def python_is_killed_where_it_ignores_interruption(box: Executor) -> None:
    """Code that does not stop is killed: its output stays, its state is lost, and the shell's state stays."""
    stopped = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    for code in (IGNORE + "while True: pass", stopped):
        await box.bash("kept=1")
        await box.python("gone = 1")
        result = await box.python(f"print('partial', flush=True)\n{code}", timeout=SHORT)
        expect(result, status=Status.TIMEOUT, stdout="partial\n", state_lost=True)
        require(result.duration < SHORT + PROMPT, f"the timeout was {SHORT} s, duration is {result.duration:g}")
        expect(await box.python("'gone' in globals()"), value="False", state_lost=False)
        expect(await box.bash("echo $kept"), stdout="1\n")


@box_check(CODE)
async def python_that_exits_is_begun_afresh(box: Executor) -> None:
    """The result says how a session ended: by exit, crash or kill; the next call finds a new session."""
    for code, status, exit_code in (
        ("import os; os._exit(3)", Status.EXITED, 3),
        ("import ctypes; ctypes.string_at(0)", Status.SIGNAL, -signal.SIGSEGV),
        ("import os; os.kill(os.getpid(), 9)", Status.SIGNAL, -signal.SIGKILL),  # and not for lack of memory
    ):
        await box.python("gone = 1")
        await box.bash("kept=1")
        result = await box.python(f"print('partial', flush=True)\n{code}")
        expect(result, status=status, exit_code=exit_code, stdout="partial\n", state_lost=True)
        expect(await box.python("'gone' in globals()"), value="False", state_lost=False)
        expect(await box.bash("echo $kept"), stdout="1\n", state_lost=False)


@box_check(CODE)
async def python_killed_between_calls_is_reported(box: Executor) -> None:
    """A session that dies between two calls is restarted, and the next result says that the state is lost."""
    pid = (await box.python("import os; x = 1; os.getpid()")).value
    expect(await box.bash(f"kill -9 {pid}; while kill -0 {pid} 2>/dev/null; do :; done"), status=Status.OK)
    expect(await box.python("'x' in globals()"), value="False", state_lost=True)
    expect(await box.python("1"), value="1", state_lost=False)


@box_check(CODE, MEMORY)
async def python_out_of_memory(box: Executor) -> None:
    """Code that takes all memory, up to 8 GiB, is killed and reported as `Status.OOM`; the box must be retired."""
    code = "print('partial', flush=True)\nkept = []\nwhile len(kept) < 512: kept.append(bytearray(b'x' * (16 << 20)))"
    expect(await box.python(code), status=Status.OOM, stdout="partial\n", state_lost=True)
    await require_usable(box)
    require(box.retire_reason is not None, "a box that ran out of memory should give a retire_reason")
