"""Frames between the host and a guest, and from a guest's file processes, whose reports it passes on to the host.

A frame is a u32 header length, a u32 payload length (big-endian), a JSON object as header, and raw bytes as payload.
The receiver checks every field before use (on the host: `host/messages.py`).
"""

from __future__ import annotations

import json
import struct
from typing import Any

MAX_HEADER = 256 << 10  # bytes
MAX_PAYLOAD = 72 << 20  # bytes: the largest file is smaller

_LENGTHS = struct.Struct(">II")

PIECE = 2 << 20  # bytes of a file in one frame: a small box has no memory to copy a large file
MAX_REPORT = 32 << 10  # bytes around the content in the report of a file operation
MAX_CALL = 1 << 20  # bytes of a call that the code makes
MAX_ANSWER = 4 << 20  # bytes of its answer
SESSIONS = ("python", "bash")  # the operations that run code
MAX_LISTED = 100_000  # files in one listing; more would keep the host busy for too long


class ProtocolError(ValueError):
    """The peer sent bytes that are not a valid frame. The stream cannot be used any more."""


def encode(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """Return a frame; ValueError if the header or the payload is too large."""
    text = json.dumps(header).encode("ascii")
    if len(text) > MAX_HEADER or len(payload) > MAX_PAYLOAD:
        raise ValueError(
            f"a frame has at most {MAX_HEADER} bytes of header and {MAX_PAYLOAD} of payload, "
            f"got {len(text)} and {len(payload)}"
        )
    return b"".join((_LENGTHS.pack(len(text), len(payload)), text, payload))


class Decoder:
    """Makes frames from bytes as they arrive. It checks the lengths before it buffers the rest."""

    def __init__(self, *, max_header: int = MAX_HEADER, max_payload: int = MAX_PAYLOAD) -> None:
        self.max_header = max_header
        self.max_payload = max_payload
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Return the frames that these bytes complete; ProtocolError if a length or a header is not as it must be."""
        self._buffer += data
        frames, start = [], 0
        while len(self._buffer) - start >= _LENGTHS.size:
            header, payload = _LENGTHS.unpack_from(self._buffer, start)
            if header > self.max_header or payload > self.max_payload:
                raise ProtocolError(
                    f"a frame announces {header} bytes of header and {payload} of payload; "
                    f"the limits are {self.max_header} and {self.max_payload}"
                )
            middle = start + _LENGTHS.size + header
            if middle + payload > len(self._buffer):
                break
            with memoryview(self._buffer) as view:
                text, content = bytes(view[middle - header : middle]), bytes(view[middle : middle + payload])
            frames.append((_parse(text), content))
            start = middle + payload
        del self._buffer[:start]
        return frames


def _parse(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a frame's header is not JSON: {text[:80]!r}") from error
    if not isinstance(header, dict):
        raise ProtocolError(f"a frame's header is not a JSON object: {text[:80]!r}")
    return header


def joined(head: bytes, tail: bytes, dropped: int) -> bytes:
    """Return a head and a tail, with a marker between them if so many bytes were dropped there."""
    return b"%s\n[... %d bytes dropped ...]\n%s" % (head, dropped, tail) if dropped else head + tail


def split(payload: bytes, lengths: list[int]) -> list[bytes]:
    """Cut a payload into parts of these lengths; ProtocolError unless they are whole numbers that add up to it."""
    if set(map(type, lengths)) - {int} or min(lengths, default=0) < 0 or sum(lengths) != len(payload):
        raise ProtocolError(f"the lengths of the parts do not add up to a payload of {len(payload)} bytes")
    parts, start = [], 0
    for length in lengths:
        parts.append(payload[start : start + length])
        start += length
    return parts
