"""Random texts made of a format's own pieces, and a check that reading them never raises an error."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

from gymnast.envs import Message


def mutated(rng: random.Random, wholes: Sequence[str], pieces: Sequence[str], separator: str) -> str:
    """An answer of up to four whole parts, with pieces put in, taken out and swapped."""
    parts = [rng.choice(pieces if rng.random() < 0.2 else wholes) for _ in range(rng.randrange(1, 5))]
    text = separator.join(parts)
    for _ in range(rng.randrange(3)):
        start = rng.randrange(len(text) + 1)
        text = text[:start] + rng.choice([*pieces, ""]) + text[start + rng.randrange(6) :]
    return text


def check_that_no_text_raises(read: Callable[[random.Random], Message]) -> None:
    """Read 5,000 random texts; among them must be enough calls, malformed calls and thoughts."""
    rng = random.Random(0)
    seen = {"tool_calls": 0, "malformed": 0, "reasoning_content": 0}
    for _ in range(5_000):
        message = read(rng)
        assert message["role"] == "assistant"
        assert isinstance(message.get("content"), str)
        json.dumps(message.get("tool_calls", []), ensure_ascii=False).encode()
        for key in seen:
            seen[key] += key in message
    assert min(seen.values()) > 250, seen
