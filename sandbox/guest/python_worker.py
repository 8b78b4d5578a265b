"""The Python worker: a process without privileges that runs cells of code, one after the other, in one namespace.

It is forked from the supervisor, which has imported everything already. Code can damage only this process: the
supervisor bounds, checks and replaces it. They exchange messages of fixed fields, not JSON: the supervisor is root and
reads bytes that hostile code may have written, and a number of 32 bits can be neither of a wrong type nor slow to read.
"""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports] # a module of CPython, in every version
import ast
import linecache
import os
import signal
import site
import struct
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from .protocol import ProtocolError, joined
from .session import Reply

CELL = "<cell "  # file names of cells begin so

_SIGINT = int(signal.SIGINT)
_set_handler = _signal.signal  # `signal.signal` wraps it to make enumerations of handlers, twenty times slower

_REQUEST = struct.Struct(">16sI")  # the nonce, and the length of the source that follows
# The nonce; whether the cell failed, and whether it has a value; the exit code; bytes of value and traceback that were
# dropped; and the lengths of the parts that follow: the value, and the traceback.
_REPLY = struct.Struct(">16s??BQII")
_MOST_DROPPED = 1 << 53
_CHUNK = 1 << 16
_MARKER = 64  # bytes, at most, of the text that replaces the middle of a long value or traceback


def serve(requests: int, replies: int, limit: int, setup: tuple[bytes, Callable[[], Any]] | None) -> None:
    """Answer requests (a nonce and a cell's source) until the descriptor `requests` ends.

    A value, and a traceback, has `limit` bytes at most. The function in `setup`, with its nonce, is called before the
    first cell, and answered like a cell.
    """
    read, write, getpid, leave = os.read, os.write, os.getpid, os._exit  # before the code can replace them
    me = getpid()
    if setup is not None:
        nonce, work = setup
        os.write(replies, encode_reply(nonce, 0, None, _error_of(work), limit))
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


def _error_of(work: Callable[[], Any]) -> bytes | None:
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
    sys.path[:0] = ["", *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
    site.USER_BASE = site.USER_SITE = None  # computed again, as the home has changed
    sys.path.append(site.getusersitepackages())  # `pip install` puts packages there, in a box with a network
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    for name, number in (("stdout", 1), ("stderr", 2)):
        # Line by line, so that nothing printed before a crash or a kill is lost.
        stream = open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)  # as everywhere in Python: the code gets an OSError
    _ignore_interrupts()
    return main.__dict__


def _ignore_interrupts() -> None:
    while True:
        try:
            _set_handler(_SIGINT, _nothing)
            return
        except KeyboardInterrupt:
            pass  # it came just before the new handler: try again


def _nothing(number: int, frame: Any) -> None:
    """Ignore an interruption between two cells. (SIG_IGN would be inherited by every child.)"""


class _Cell:
    """One piece of code and its result."""

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
        except BaseException as error:  # an interruption while another error was being described
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
        """End the cell for sys.exit(); the session goes on. Without an argument it is no error."""
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


# --- messages ---------------------------------------------------------------------------------------------------


def encode_request(nonce: bytes, source: bytes) -> bytes:
    return _REQUEST.pack(nonce, len(source)) + source


def read_request(read: Callable[[int], bytes]) -> tuple[bytes, bytes] | None:
    """Wait for the next request, with a function that reads some bytes; return None when the channel has ended."""
    data, nonce, end = bytearray(), b"", 0
    while not nonce or len(data) < end:
        more = read(_CHUNK)
        if not more:
            return None
        data += more
        if not nonce and len(data) >= _REQUEST.size:
            nonce, length = _REQUEST.unpack_from(data)
            end = _REQUEST.size + length
    return nonce, bytes(data[_REQUEST.size :])


def encode_reply(nonce: bytes, code: int, value: bytes | None, error: bytes | None, limit: int) -> bytes:
    """Encode a cell's exit code, its value or None, and its traceback or None, each cut to the limit."""
    text, dropped = _cut(value or b"", limit)
    trace, more = _cut(error or b"", limit)
    flags = error is not None, value is not None
    return _REPLY.pack(nonce, *flags, code, dropped + more, len(text), len(trace)) + text + trace


def decode_reply(data: bytearray, nonce: bytes, limit: int) -> Reply | None:
    """Decode a worker's reply from every byte that came since the request; return None if more is to come.

    ProtocolError if this is not a reply to the request with this nonce, or is longer than `limit` allows.
    """
    if not data.startswith(nonce[: len(data)]):
        raise ProtocolError("its reply does not begin with the nonce of the request")
    if len(data) < _REPLY.size:
        return None
    _, failed, has_value, code, dropped, size, error = _REPLY.unpack_from(data)
    middle, end = _REPLY.size + size, _REPLY.size + size + error
    if max(size, error) > limit + _MARKER or dropped > _MOST_DROPPED or len(data) > end:
        raise ProtocolError("its reply is longer than the limits allow")
    if len(data) < end:
        return None
    value = bytes(data[_REPLY.size : middle]) if has_value else None
    return Reply("error" if failed else "ok", code, value, bytes(data[middle:]), dropped)


def _cut(data: bytes, limit: int) -> tuple[bytes, int]:
    """Return data without its middle if it is larger than the limit, and the number of bytes dropped."""
    if len(data) <= limit:
        return data, 0
    dropped = len(data) - limit // 2 * 2
    return joined(data[: limit // 2], data[-(limit // 2) :], dropped), dropped
