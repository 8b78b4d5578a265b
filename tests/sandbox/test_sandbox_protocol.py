"""Frames survive anything that the other side sends; code inside a box needs only Python 3.8."""

from __future__ import annotations

import ast
import asyncio
import socket
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.sandbox import Limits
from gymnast.sandbox.errors import SandboxLostError
from gymnast.sandbox.guest import supervisor
from gymnast.sandbox.guest.protocol import MAX_HEADER, MAX_PAYLOAD, Decoder, ProtocolError, encode, split
from gymnast.sandbox.host import connection
from gymnast.sandbox.host.messages import Header

SMALL = Limits(max_output="1k", max_file="1k", max_code="1k")
LONGEST = (8 << 10) + (1 << 20)  # bytes of an answer within them
GUEST = sorted(Path(supervisor.__file__).parent.glob("*.py"))
HEADERS = st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.none(), st.booleans()), max_size=4)


@given(st.lists(st.tuples(HEADERS, st.binary(max_size=300)), max_size=4), st.integers(1, 50))
def test_frames_survive_any_way_of_cutting_the_stream(frames: list[tuple[dict[str, object], bytes]], size: int) -> None:
    stream = b"".join(encode(header, payload) for header, payload in frames)
    decoder = Decoder()
    received = [frame for start in range(0, len(stream), size) for frame in decoder.feed(stream[start : start + size])]
    assert received == frames
    assert decoder.feed(encode({"last": 1})) == [({"last": 1}, b"")]  # no further bytes were needed


@given(st.binary(max_size=2000))
def test_garbage_is_refused_or_incomplete(garbage: bytes) -> None:
    decoder = Decoder(max_header=100, max_payload=100)
    try:
        decoder.feed(garbage)
    except ProtocolError:
        return
    with pytest.raises(ProtocolError):
        decoder.feed(bytes(300))  # no more bytes were needed, and zeros are not a frame


@pytest.mark.parametrize("lengths", [(0xFFFFFFFF, 0), (2, 0xFFFFFFFF), (MAX_HEADER + 1, 0), (2, MAX_PAYLOAD + 1)])
def test_a_huge_length_is_refused_at_once_and_nothing_is_allocated(lengths: tuple[int, int]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="announces"):
            Decoder().feed(struct.pack(">II", *lengths))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'"x"', b"NaN", b"\xff\xfe", b"[" * 100_000, b"1" * 5000, b'{"x": ' + b"9" * 9999 + b"}"]
)
def test_a_header_that_is_not_a_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"header is not (a )?JSON"):
        Decoder().feed(struct.pack(">II", len(text), 0) + text)


def test_too_large_frames_are_not_sent() -> None:
    with pytest.raises(ValueError, match=str(MAX_HEADER)):
        encode({"x": "y" * MAX_HEADER})


@pytest.mark.parametrize("lengths", [[1, 1], [3, -1, 1], [True, 2], [3.0], ["3"], [None], [2**70]])
def test_parts_must_add_up(lengths: list[int]) -> None:
    with pytest.raises(ProtocolError):
        split(b"abc", lengths)


def test_parts_of_a_payload() -> None:
    assert split(b"abcdef", [1, 0, 5]) == [b"a", b"", b"bcdef"]


# --- the host's end ---------------------------------------------------------------------------------------------


def piece(data: bytes, stream: int = 1) -> bytes:
    """A piece of a stream, framed as the engine does it."""
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


class FakeTransport:
    """The part of a transport that a connection needs."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True


def connected() -> tuple[connection.AttachedConnection, FakeTransport]:
    transport = FakeTransport()
    conn = connection.AttachedConnection(SMALL)
    conn.connection_made(transport)  # type: ignore[arg-type]
    return conn, transport


def parts_of(header: Header, parts: list[bytes]) -> list[bytes]:
    return parts


async def test_a_reply_reaches_its_request_byte_by_byte() -> None:
    conn, _ = connected()
    number, reply = conn.request({"op": "ping"}, b"", parts_of)
    data = piece(b"warning", stream=2) + piece(encode({"id": number, "lengths": [2, 1]}, b"abc"))
    for index in range(len(data)):
        conn.data_received(data[index : index + 1])
    assert await reply == [b"ab", b"c"]
    assert conn.retire == ""
    assert conn.stderr == "warning"


@pytest.mark.parametrize(
    "data",
    [
        piece(encode({"id": 99, "lengths": []})),
        piece(encode({"id": [], "lengths": []})),
        piece(encode({"id": 1})),
        piece(encode({"id": 1, "lengths": [5]}, b"abc")),
        piece(b"\xff" * 100),
        piece(encode({"id": 1, "lengths": [LONGEST + 1]}, bytes(LONGEST + 1))),
        piece(b"x", stream=7),
    ],
)
async def test_anything_else_ends_the_connection(data: bytes) -> None:
    conn, transport = connected()
    _, reply = conn.request({"op": "ping"}, b"", parts_of)
    conn.data_received(data)
    assert transport.aborted
    with pytest.raises(SandboxLostError):
        await reply
    _, later = conn.request({"op": "ping"}, b"", parts_of)
    with pytest.raises(SandboxLostError):
        await later


# --- the guest --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", GUEST, ids=lambda file: file.stem)
def test_the_guest_needs_python_3_8_and_the_standard_library_only(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 8))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert all(node.level < 2 for node in imports), "it imports from another room"
    absolute = {node.module for node in imports if not node.level}
    absolute |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules_of_python_3_8 = {
        "__future__", "_signal", "abc", "ast", "collections", "collections.abc", "contextlib", "errno", "fcntl",
        "functools", "gc", "inspect", "importlib", "json", "linecache", "math", "os", "select", "signal", "site",
        "socket", "stat", "struct", "sys", "time", "traceback", "types", "typing",
        "ctypes", "fnmatch", "resource", "termios",  # of a box, whose guest has its own Python
    }  # fmt: skip
    assert absolute <= modules_of_python_3_8
    assert len(tree.body) == 1 or any(node.module == "__future__" for node in imports)


async def test_the_last_words_of_a_guest_that_does_not_read_its_program_are_kept() -> None:
    ours, theirs = socket.socketpair()
    words = b"exec python3 failed"
    loop = asyncio.get_running_loop()
    _, conn = await loop.create_connection(lambda: connection.AttachedConnection(SMALL), sock=ours)
    theirs.sendall(b"\2\0\0\0" + len(words).to_bytes(4, "big") + words)
    theirs.close()
    ended = asyncio.Event()
    conn.on_end = ended.set
    conn.send_raw(b"program")
    await asyncio.wait_for(ended.wait(), 5)
    assert conn.stderr == conn.lost == words.decode()
