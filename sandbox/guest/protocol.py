"""Frames: how the host and a box, and inside the box the supervisor and the processes that work on files for it, speak.

A frame is a u32 header length, a u32 payload length (big-endian), a header, and raw bytes. A header is a JSON object;
those of the two kinds of frames that are many, a piece of code and what came of it, have fixed fields instead, which
take about a third of the time. Nothing else is ever parsed, and no name that a box sends is looked up. This file also
runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import json
import struct
from typing import Any

MAX_HEADER = 256 << 10  # bytes
MAX_PAYLOAD = 72 << 20  # the largest file, and room for what goes with it

_LENGTHS = struct.Struct(">II")

SESSIONS = ("python", "bash")  # the operations that run code
STATUSES = ("ok", "error", "timeout", "oom", "exited", "signal", "protocol")  # how that may end: `Status`

# No JSON object begins with such a mark. A request: the mark, the id, the session, seconds. An answer: the mark, the
# id, the session, the status; whether there is a value, the state was lost, and there is an exit code; that code;
# bytes dropped of output, errors and value; the lengths of the payload's seven parts; and why the box should retire.
_REQUEST = struct.Struct(">cQBd")
_ANSWER = struct.Struct(">cQBB???q3Q7I")
_REQUEST_MARK, _ANSWER_MARK = b"?", b"!"


class ProtocolError(ValueError):
    """The peer sent something that is no frame; the stream cannot be used any more."""


def encode(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """One frame.

    Raises:
        ValueError: the header or the payload is too large.
    """
    if header.get("op") not in SESSIONS:
        text = json.dumps(header).encode("ascii")
    elif "status" in header:
        text = _encode_answer(header)
    else:
        text = _REQUEST.pack(_REQUEST_MARK, header["id"], SESSIONS.index(header["op"]), header["timeout"])
    if len(text) > MAX_HEADER or len(payload) > MAX_PAYLOAD:
        raise ValueError(
            f"a frame has at most {MAX_HEADER} bytes of header and {MAX_PAYLOAD} of payload, "
            f"got {len(text)} and {len(payload)}"
        )
    return b"".join((_LENGTHS.pack(len(text), len(payload)), text, payload))


class Decoder:
    """Makes frames from bytes as they arrive; lengths are checked before anything is buffered for them."""

    def __init__(self, *, max_header: int = MAX_HEADER, max_payload: int = MAX_PAYLOAD) -> None:
        self.max_header = max_header
        self.max_payload = max_payload
        self._buffer = bytearray()
        self._expected: tuple[int, int] | None = None

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """The frames that these bytes complete.

        Raises:
            ProtocolError: a length is over its limit, or a header is no JSON object.
        """
        frames: list[tuple[dict[str, Any], bytes]] = []
        if not self._buffer and self._expected is None:
            data = self._take_whole(data, frames)
            if not data:
                return frames
        self._buffer += data
        while True:
            if self._expected is None:
                if len(self._buffer) < _LENGTHS.size:
                    return frames
                self._expected = self._lengths(self._buffer, 0)
                del self._buffer[: _LENGTHS.size]
            header_size, payload_size = self._expected
            if len(self._buffer) < header_size + payload_size:
                return frames
            header = _parse(bytes(self._buffer[:header_size]))
            payload = bytes(memoryview(self._buffer)[header_size : header_size + payload_size])
            del self._buffer[: header_size + payload_size]
            self._expected = None
            frames.append((header, payload))

    def _take_whole(self, data: bytes, frames: list[tuple[dict[str, Any], bytes]]) -> bytes:
        """Take the frames that are there from end to end, as small ones always are; returns what is left."""
        start = 0
        while len(data) - start >= _LENGTHS.size:
            header_size, payload_size = self._lengths(data, start)
            header_at = start + _LENGTHS.size
            payload_at = header_at + header_size
            end = payload_at + payload_size
            if end > len(data):
                break
            frames.append((_parse(data[header_at:payload_at]), data[payload_at:end]))
            start = end
        return data[start:]

    def _lengths(self, data: bytes | bytearray, start: int) -> tuple[int, int]:
        header, payload = _LENGTHS.unpack_from(data, start)
        if header > self.max_header or payload > self.max_payload:
            raise ProtocolError(
                f"a frame announces {header} bytes of header and {payload} of payload; "
                f"the limits are {self.max_header} and {self.max_payload}"
            )
        return header, payload


def _encode_answer(header: dict[str, Any]) -> bytes:
    code = header["code"]
    return _ANSWER.pack(
        _ANSWER_MARK,
        header["id"],
        SESSIONS.index(header["op"]),
        STATUSES.index(header["status"]),
        header["value"],
        header["lost"],
        code is not None,
        code or 0,
        *header["dropped"],
        *header["lengths"],
    ) + header["retire"].encode("utf-8")


def _parse(text: bytes) -> dict[str, Any]:
    mark = text[:1]
    if mark not in (_REQUEST_MARK, _ANSWER_MARK):
        return _parse_json(text)
    try:
        return _parse_request(text) if mark == _REQUEST_MARK else _parse_answer(text)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a frame's header has not the fields it should have: {text[:80]!r}") from error


def _parse_request(text: bytes) -> dict[str, Any]:
    _, number, session, timeout = _REQUEST.unpack(text)
    return {"id": number, "op": SESSIONS[session], "timeout": timeout}


def _parse_answer(text: bytes) -> dict[str, Any]:
    _, number, session, status, value, lost, has_code, code, *numbers = _ANSWER.unpack_from(text)
    return {
        "id": number,
        "op": SESSIONS[session],
        "status": STATUSES[status],
        "value": value,
        "lost": lost,
        "code": code if has_code else None,
        "dropped": numbers[:3],
        "lengths": numbers[3:],
        "retire": text[_ANSWER.size :].decode("utf-8"),
    }


def _parse_json(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a frame's header is no JSON: {text[:80]!r}") from error
    if not isinstance(header, dict):
        raise ProtocolError(f"a frame's header is no JSON object: {text[:80]!r}")
    return header


def split(payload: bytes, lengths: list[int]) -> list[bytes]:
    """Cut a payload into parts of the lengths that its header gave.

    Raises:
        ProtocolError: the lengths are not whole numbers that add up to the payload.
    """
    if set(map(type, lengths)) - {int} or min(lengths, default=0) < 0 or sum(lengths) != len(payload):
        raise ProtocolError(f"the lengths of the parts do not add up to a payload of {len(payload)} bytes")
    parts, start = [], 0
    for length in lengths:
        parts.append(payload[start : start + length])
        start += length
    return parts
