"""The Python session: a process without privileges that runs cells of code, one after the other, in one namespace.

Forked from the supervisor, which has imported everything already. Whatever the code does to this process harms this
process alone: the supervisor bounds, checks and replaces it. Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports] # a module of CPython, in every version
import ast
import linecache
import os
import signal
import site
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from .inside_channel import encode_reply, read_request

CELL = "<cell "  # file names of cells begin so

_SIGINT = int(signal.SIGINT)
_set_handler = _signal.signal  # what `signal.signal` wraps to make enumerations of handlers, twenty times slower


def serve(requests: int, replies: int, limit: int, errand: tuple[bytes, Callable[[], Any]] | None) -> None:
    """Answer requests (a nonce and a cell's source) until the descriptor `requests` ends.

    An errand is a nonce, and what is to be done before anything of the code is here; it is answered like a cell.
    """
    read, write, getpid, leave = os.read, os.write, os.getpid, os._exit  # before the code can replace them
    me = getpid()
    if errand is not None:
        nonce, work = errand
        os.write(replies, encode_reply(nonce, 0, None, _problem(work), limit))
    namespace = _prepare_interpreter()
    count = 0
    while True:
        request = read_request(lambda size: read(requests, size))
        if request is None:
            leave(0)
        nonce, source = request
        count += 1
        cell = _Cell(namespace, f"{CELL}{count}>")
        cell.run(source)
        if getpid() != me:
            leave(0)  # the code forked, and this is the child: only the parent answers
        reply = encode_reply(nonce, cell.exit_code, cell.value, cell.error, limit)
        while reply:
            reply = reply[write(replies, reply) :]


def _problem(work: Callable[[], Any]) -> bytes | None:
    try:
        work()
        os.chdir(os.environ["PWD"])
    except Exception as error:
        return f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace")
    return None


def _prepare_interpreter() -> dict[str, Any]:
    main = types.ModuleType("__main__")  # a real module, so that pickle and multiprocessing find what cells define
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.argv = [""]
    sys.path.insert(0, "")
    site.USER_BASE = site.USER_SITE = None  # found out anew, as the home is another one now
    sys.path.append(site.getusersitepackages())  # where `pip install` puts things, in a box with a network
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    for name, number in (("stdout", 1), ("stderr", 2)):
        # Line by line: what was printed before a crash or a kill is not lost.
        stream = open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)  # as ever in Python: an OSError for the code, not its death
    _ignore_interrupts()
    return main.__dict__


def _ignore_interrupts() -> None:
    while True:
        try:
            _set_handler(_SIGINT, _nothing)
            return
        except KeyboardInterrupt:
            pass  # it arrived just before; once is enough


def _nothing(number: int, frame: Any) -> None:
    """An interruption that comes between two cells. (SIG_IGN would be inherited by every child.)"""


class _Cell:
    """One piece of code: runs it, and holds what came of it."""

    def __init__(self, namespace: dict[str, Any], name: str) -> None:
        self.namespace = namespace
        self.name = name
        self.exit_code = 0
        self.value: bytes | None = None
        self.error: bytes | None = None

    def run(self, source: bytes) -> None:
        try:
            try:
                _set_handler(_SIGINT, signal.default_int_handler)
                self._run_and_describe(source)
            finally:
                _ignore_interrupts()
        except BaseException as error:  # an interruption while the error of another was being described
            self._fail(1, type(error).__name__ + "\n")

    def _run_and_describe(self, source: bytes) -> None:
        try:
            self._evaluate(source)
            _flush()
        except SystemExit as error:
            self._exit(error.code)
            _flush()
        except BaseException as error:
            self._fail(1, self._describe(error))
            _flush()

    def _evaluate(self, source: bytes) -> None:
        text = source.decode("utf-8", "surrogatepass")
        linecache.cache[self.name] = (len(text), None, text.splitlines(True), self.name)
        tree = ast.parse(text, self.name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        if tree.body:
            exec(compile(tree, self.name, "exec", dont_inherit=True), self.namespace)
        if isinstance(last, ast.Expr):
            code = compile(ast.Expression(last.value), self.name, "eval", dont_inherit=True)
            value = eval(code, self.namespace)
            if value is not None:
                self.value = str(repr(value)).encode("utf-8", "backslashreplace")

    def _exit(self, code: Any) -> None:
        """sys.exit() ends the cell, not the session; without an argument it is no error."""
        number = 0 if code is None else int.__and__(code, 0xFF) if isinstance(code, int) else 1
        if number:  # as a process's: 256 is 0
            self._fail(number, f"SystemExit: {code}\n")

    def _fail(self, exit_code: int, text: str) -> None:
        self.exit_code = exit_code
        self.value = None
        self.error = text.encode("utf-8", "backslashreplace")

    def _describe(self, error: BaseException) -> str:
        trace = error.__traceback__
        while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(CELL):
            trace = trace.tb_next  # our own frames
        return "".join(traceback.format_exception(type(error), error, trace))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:  # noqa: SIM105 - this runs in every cell, and a context manager takes longer than the flush
            stream.flush()  # type: ignore[union-attr]
        except (AttributeError, OSError, ValueError):
            pass  # the code closed or replaced it
