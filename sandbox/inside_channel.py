"""What the supervisor and its Python worker send each other: fixed fields, as the frames are many and small.

A number of so many bits can neither be of the wrong type nor take long to read, whoever wrote it.
Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any

from .protocol import ProtocolError

_REQUEST = struct.Struct(">16sI")  # the nonce, and the bytes of source that follow
# The nonce; whether the cell failed, and whether it has a value; the exit code; bytes of value and traceback that were
# dropped; and the lengths of what follows: the value's head and tail, and the traceback.
_REPLY = struct.Struct(">16s??BQIII")
_MOST_DROPPED = 1 << 53
_CHUNK = 1 << 16
_MARKER = 64  # bytes, at most, of what stands where the middle of a long traceback was


def new_nonce() -> bytes:
    """What an answer has to repeat from its request: 16 bytes of text that nobody can guess."""
    return os.urandom(8).hex().encode()


def encode_request(nonce: bytes, source: bytes) -> bytes:
    return _REQUEST.pack(nonce, len(source)) + source


def read_request(read: Callable[[int], bytes]) -> tuple[bytes, bytes] | None:
    """Wait for the next request, with a function that reads some bytes; None if there will be none."""
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
    """What came of a cell: an exit code, a value or None, and a traceback or None, each cut to the limit."""
    head, tail, dropped = _cut(value or b"", limit)
    start, end, more = _cut(error or b"", limit)
    text = b"%s\n[... %d bytes dropped ...]\n%s" % (start, more, end) if more else start
    lengths = (len(head), len(tail), len(text))
    fields = _REPLY.pack(nonce, error is not None, value is not None, code, dropped + more, *lengths)
    return b"".join((fields, head, tail, text))


def decode_reply(data: bytearray, nonce: bytes, limit: int) -> dict[str, Any] | None:
    """What a worker says of its cell; None if there is more to come.

    Args:
        data: everything that came since the request.
        nonce: the request's.
        limit: bytes of a value, and of a traceback.

    Raises:
        ProtocolError: this is no answer to that request.
    """
    if not data.startswith(nonce[: len(data)]):
        raise ProtocolError("it answered what was not asked")
    if len(data) < _REPLY.size:
        return None
    _, failed, value, code, dropped, head, tail, error = _REPLY.unpack_from(data)
    tail_at, error_at, end = _REPLY.size + head, _REPLY.size + head + tail, _REPLY.size + head + tail + error
    if head + tail > limit or error > limit + _MARKER or dropped > _MOST_DROPPED or len(data) > end:
        raise ProtocolError("it answered more than it may")
    if len(data) < end:
        return None
    parts = [bytes(data[_REPLY.size : tail_at]), bytes(data[tail_at:error_at]), bytes(data[error_at:])]
    status = "error" if failed else "ok"
    return {"status": status, "code": code, "value": value, "dropped": dropped, "parts": parts}


def _cut(data: bytes, limit: int) -> tuple[bytes, bytes, int]:
    """Head and tail of data that is larger than the limit, and how much is missing between them."""
    if len(data) <= limit:
        return data, b"", 0
    half = limit // 2
    return data[:half], data[-half:], len(data) - 2 * half
