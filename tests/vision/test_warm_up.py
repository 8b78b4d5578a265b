"""Demonstrations with pictures teach a tiny model what it cannot know without seeing."""

from __future__ import annotations

from typing import Any

import numpy as np

from gymnast.envs import Image, tool_call
from gymnast.trainer.testing.tiny import warm_up
from gymnast.trainer.testing.tiny_vision import make_tiny_vision_model, processor_for


def demonstration(shade: int, *, more: bool) -> Any:
    """A picture as the result of a tool, and its name; with `more`, a last picture that nobody names."""
    seen = [{"type": "image", "image": Image.of(np.full((16, 16, 3), shade, np.uint8))}]
    named = {"role": "assistant", "content": "dark" if shade < 128 else "light"}
    shown = [tool_call("look"), {"role": "tool", "name": "look", "content": seen}, named]
    return [{"role": "user", "content": "Look."}, *shown, *([{"role": "user", "content": seen}] * more)], None


def test_a_warm_up_learns_from_pictures_and_ends_early() -> None:
    shown = [demonstration(shade, more=more) for shade in (0, 255) for more in (False, True)]
    processor = processor_for(shown, 300)
    model = make_tiny_vision_model(processor, hidden_size=64, vision_size=32)
    modes = list[bool]()

    def is_enough() -> bool:
        modes.append(model.training)
        return len(modes) == 60

    loss = warm_up(model, processor, shown, steps=200, batch_size=4, learning_rate=3e-3, until=is_enough)
    assert modes == [False] * 60
    assert loss < 0.02  # who does not see names one picture wrong: at least log(2) over some 20 tokens
