"""`Screen` shows what a program draws in its terminal, and survives what no terminal understands."""

from __future__ import annotations

import math
import random
import re
import time

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


async def shown(*pieces: bytes | str, columns: int = 20, rows: int = 6) -> str:
    drawn = Drawing(*(piece.encode() if isinstance(piece, str) else piece for piece in pieces))
    return await Screen(drawn, columns=columns, rows=rows).read()


async def test_text_stands_where_it_was_drawn() -> None:
    wide = "é漢".encode()
    drawn = Drawing(b"first\r\nsecond\x1b[2J\x1b[3;5Hthi", b"rd\x1b[5;", b"1H" + wide[:3], wide[3:] + b"\x1b[1;31m!")
    screen = Screen(drawn, columns=20, rows=6)
    assert await screen.read() == "\n\n    third\n\né漢!"
    assert screen.cursor == (4, 4)
    assert await screen.read() == screen.text


async def test_a_screen_grows_with_its_terminal() -> None:
    drawn = Drawing(b"\x1b[9;9Hx")
    screen = Screen(drawn, columns=4, rows=2)
    await screen.resize(10, 9)
    assert await screen.read() == "\n" * 8 + " " * 8 + "x"
    assert drawn.size == (10, 9)


async def test_a_long_output_is_scrolled() -> None:
    lines = "".join(f"{line}\r\n" for line in range(2000))
    assert await shown(lines, columns=8, rows=4) == "1997\n1998\n1999"


async def test_reading_ends_in_time_and_goes_on_where_it_was() -> None:
    screen = Screen(Drawing(b"x\r\n" * 500_000 + b"end"), columns=8, rows=4)
    begun = time.monotonic()
    assert "end" not in await screen.read(timeout=0.2)
    assert time.monotonic() - begun < 1.5
    assert (await screen.read(timeout=60)).endswith("end")


@pytest.mark.parametrize(
    ("drawn", "text"),
    [
        ("漢字\rab", "ab字"),
        ("漢字\ra", "a 字"),
        ("\u26a0\ufe0f Warning: 3\u200b tests", "\u26a0 Warning: 3 tests"),
        ("e\u0301", "é"),
        ("a\x1b[5bz", "aaaaaaz"),
        ("\x1b(0lqqk\x1b(Bq", "┌──┐q"),
        ("shell$ \x1b[?1049h\x1b[Heditor\x1b[?1049lexit", "shell$ exit"),
        ("\x1b[?3hkept", "kept"),
    ],
)
async def test_a_program_may_draw_as_in_xterm(drawn: str, text: str) -> None:
    assert await shown(drawn) == text


@pytest.mark.parametrize(
    "noise",
    ["\x1b[?5A", "\u009b?5A", f"\x1b[{'9' * 5000}m", "\x1b[\u00b2m", "\x1b[1;2;3;4H", "\x1b\x1b[>7c", "\x1b[0;b"],
)
@pytest.mark.parametrize("cut", [False, True])
async def test_a_sequence_that_cannot_be_read_costs_nothing_else(noise: str, cut: bool) -> None:
    whole = f"before {noise}after"
    pieces = [whole[place : place + 1] for place in range(len(whole))] if cut and len(whole) < 100 else [whole]
    assert re.fullmatch(r"before\W+(²m)?after", await shown(*pieces, columns=80))


@pytest.mark.parametrize("seed", range(20))
async def test_no_output_breaks_the_screen(seed: int) -> None:
    rng = random.Random(seed)

    def sequence() -> bytes:
        numbers = [str(rng.choice([0, 1, 3, 38, 47, 48, 1049, 9999, 10**8])).encode() for _ in range(rng.randint(0, 4))]
        mark = rng.choice([b"", b"", b"?", b">", b"!"])
        return b"\x1b[" + mark + b";".join(numbers) + bytes([rng.randint(64, 126)])

    words = ["漢字", "\u26a0\ufe0f", "a", "\r", "\n"]
    noise = b"".join(sequence() + rng.randbytes(3) + rng.choice(words).encode() for _ in range(300))
    screen = Screen(
        Drawing(*(noise[at : at + 7] for at in range(0, len(noise), 7)), b"\x18\x1b\\\x1bcfine"), columns=80, rows=24
    )
    for _ in range(100):
        assert len((await screen.read(timeout=0.001)).splitlines()) <= 24
    assert await screen.read() == "fine"
