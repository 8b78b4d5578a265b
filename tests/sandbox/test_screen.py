"""`Screen` shows what a program draws in its terminal, and survives what no terminal understands."""

from __future__ import annotations

import math
import random

import pytest

from gymnast.sandbox import Process, Screen


class Drawing(Process):
    """A process that has already drawn, and ends."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = [*pieces]
        self.size = (0, 0)

    async def read(self, *, timeout: float = math.inf) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    async def write(self, data: bytes) -> None:
        raise AssertionError("a screen only reads")

    async def wait(self, *, timeout: float = math.inf) -> int | None:
        return 0

    async def signal(self, number: int) -> None:
        raise AssertionError("a screen only reads")

    async def resize(self, columns: int, rows: int) -> None:
        self.size = columns, rows


async def test_text_stands_where_it_was_drawn() -> None:
    wide = "é漢".encode()
    drawn = Drawing(b"first\r\nsecond\x1b[2J\x1b[3;5Hthi", b"rd\x1b[5;1H" + wide[:3], wide[3:] + b"\x1b[1;31m!\x1b[0m")
    screen = Screen(drawn, columns=20, rows=6)
    assert await screen.read() == "\n\n    third\n\né漢!"
    assert screen.cursor == (4, 4)
    assert await screen.read() == screen.text
    await screen.resize(10, 3)
    assert drawn.size == (10, 3)


async def test_a_long_output_is_scrolled() -> None:
    screen = Screen(Drawing(b"".join(b"%d\r\n" % line for line in range(500))), columns=8, rows=4)
    assert await screen.read() == "497\n498\n499"


@pytest.mark.parametrize("seed", range(20))
async def test_sequences_that_no_terminal_knows_cost_nothing_else(seed: int) -> None:
    rng = random.Random(seed)

    def sequence() -> bytes:
        numbers = [str(rng.choice([0, 1, 38, 48, 9999, 10**8])).encode() for _ in range(rng.randint(0, 4))]
        return b"\x1b[" + rng.choice([b"", b"?", b">", b"!"]) + b";".join(numbers) + bytes([rng.randint(64, 126)])

    noise = b"".join(sequence() + rng.randbytes(3) for _ in range(100))
    screen = Screen(Drawing(noise, b"\x1b\\\x1bc\x1b[2J\x1b[1;1Hfine"), columns=80, rows=24)
    assert await screen.read() == "fine"
