"""Frames, whatever the other side sends; and what runs inside a box keeps to Python 3.8."""

from __future__ import annotations

import ast
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.sandbox import Status, boot, connection, protocol
from gymnast.sandbox.errors import SandboxLostError
from gymnast.sandbox.protocol import MAX_HEADER, MAX_PAYLOAD, Decoder, ProtocolError, encode, split

HEADERS = st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.none(), st.booleans()), max_size=4)


@given(st.lists(st.tuples(HEADERS, st.binary(max_size=300)), max_size=4), st.integers(1, 50))
def test_frames_survive_any_way_of_cutting_the_stream(frames: list[tuple[dict[str, object], bytes]], size: int) -> None:
    stream = b"".join(encode(header, payload) for header, payload in frames)
    decoder = Decoder()
    received = [frame for start in range(0, len(stream), size) for frame in decoder.feed(stream[start : start + size])]
    assert received == frames
    assert decoder.feed(encode({"last": 1})) == [({"last": 1}, b"")]  # nothing else was waited for


@given(st.binary(max_size=2000))
def test_garbage_is_refused_or_waited_for(garbage: bytes) -> None:
    decoder = Decoder(max_header=100, max_payload=100)
    try:
        decoder.feed(garbage)
    except ProtocolError:
        return
    with pytest.raises(ProtocolError):
        decoder.feed(bytes(300))  # no more than this was waited for, and zeros are no frame


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
def test_a_header_that_is_no_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError, match="header is no JSON"):
        Decoder().feed(struct.pack(">II", len(text), 0) + text)


def test_both_ends_know_the_same_ways_to_end() -> None:
    assert {*protocol.STATUSES, "sandbox_lost"} == {str(each) for each in Status}


@pytest.mark.parametrize("code", [None, 0, 255, -9])
@pytest.mark.parametrize("status", protocol.STATUSES)
def test_answers_to_code_come_back_as_they_were(status: str, code: int | None) -> None:
    request = {"id": 2**40, "op": "bash", "timeout": 1e300}
    answer = {
        "id": 7, "op": "python", "status": status, "value": True, "lost": False, "code": code,
        "dropped": [0, 2**53, 1], "lengths": [1, 0, 0, 0, 0, 0, 2], "retire": "\N{SNOWMAN}",
    }  # fmt: skip
    frames = Decoder().feed(encode(request, b"x") + encode(answer, b"abc"))
    assert frames == [(request, b"x"), (answer, b"abc")]


@pytest.mark.parametrize("header", [b"?", b"!", b"!" + b"\xff" * 118, b"?" + b"\xff" * 17, b"?" * 19, b"!" * 200])
def test_fields_that_cannot_be_are_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError, match="fields"):
        Decoder().feed(len(header).to_bytes(4, "big") + bytes(4) + header)


def test_what_is_too_large_is_not_sent() -> None:
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
    """As the engine sends the data of a stream."""
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


class FakeTransport:
    """What a connection needs of a transport."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True


def connected() -> tuple[connection.AttachedConnection, FakeTransport]:
    transport = FakeTransport()
    conn = connection.AttachedConnection(max_payload=1000)
    conn.connection_made(transport)  # type: ignore[arg-type]
    return conn, transport


async def test_a_reply_reaches_its_request_byte_by_byte() -> None:
    conn, _ = connected()
    number, reply = conn.request({"op": "ping"})
    data = piece(b"warning", stream=2) + piece(encode({"id": number, "lengths": [2, 1]}, b"abc"))
    for index in range(len(data)):
        conn.data_received(data[index : index + 1])
    assert await reply == ({"id": number, "lengths": [2, 1]}, [b"ab", b"c"])
    assert conn.stderr == "warning"


@pytest.mark.parametrize(
    "data",
    [
        piece(encode({"id": 99, "lengths": []})),
        piece(encode({"id": [], "lengths": []})),
        piece(encode({"id": 1})),
        piece(encode({"id": 1, "lengths": [5]}, b"abc")),
        piece(b"\xff" * 100),
        piece(encode({"id": 1, "lengths": [2000]}, bytes(2000))),
        piece(b"x", stream=7),
    ],
)
async def test_anything_else_ends_the_connection(data: bytes) -> None:
    conn, transport = connected()
    _, reply = conn.request({"op": "ping"})
    conn.data_received(data)
    assert transport.aborted
    with pytest.raises(SandboxLostError):
        await reply
    _, later = conn.request({"op": "ping"})
    with pytest.raises(SandboxLostError):
        await later


# --- what runs inside -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", boot._MODULES)
def test_what_runs_inside_is_python_3_8(name: str) -> None:
    source = Path(boot.__file__).with_name(f"{name}.py").read_text()
    tree = ast.parse(source, feature_version=(3, 8))
    assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    absolute = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
    absolute |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules_of_python_3_8 = {
        "__future__", "_signal", "_socket", "ast", "collections", "collections.abc", "contextlib", "errno", "fcntl",
        "gc", "importlib", "json", "linecache", "math", "os", "select", "signal", "site", "stat", "struct", "sys",
        "time", "traceback", "types", "typing",
    }  # fmt: skip
    assert absolute <= modules_of_python_3_8
