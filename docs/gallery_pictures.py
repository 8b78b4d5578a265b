"""Draws the pictures of the gallery: an episode of a run, and the curve of its reward.

    python docs/gallery_pictures.py runs/wordle runs/reasoning ...

writes docs/gallery/wordle.svg and so on. Runs whose folder has another name than their example: NAME=FOLDER.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from gymnast.envs import Episode
from gymnast.envs.runtime.message_text import named_text
from gymnast.records import Run

FOLDER = Path(__file__).with_name("gallery")
WIDTH, HEIGHT, LINE, LETTERS, LINES = 480, 190, 22, 40, 7
COLOURS = {"user": "#9a9fab", "model": "#e3e4e8", "tool": "#4fb98a"}


def transcript(episode: Episode) -> Iterator[tuple[str, str]]:
    """Yield who speaks, and a line of text, for each message and each call."""
    for message in episode.messages:
        if message["role"] != "assistant":
            yield ("tool" if message["role"] == "tool" else "user"), _one_line(named_text(message))
        elif message.get("content"):
            yield "model", _one_line(named_text(message))
        for call in message.get("tool_calls", ()):
            arguments: dict[str, Any] = call["function"]["arguments"]
            if "code" in arguments:
                yield from (("model", _one_line(line)) for line in arguments["code"].splitlines())
                continue
            values = ", ".join(f"{name}={json.dumps(value)}" for name, value in arguments.items())
            yield "model", _one_line(f"{call['function']['name']}({values})")


def _one_line(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= LETTERS else line[: LETTERS - 1] + "…"


def picture(episode: Episode, rewards: Sequence[float]) -> str:
    lines = "".join(
        f'<text x="22" y="{34 + LINE * row}" fill="{COLOURS[who]}">{escape(text)}</text>\n'
        for row, (who, text) in enumerate([*transcript(episode)][:LINES])
    )
    low, high = min(rewards), max(rewards)
    points = [
        (356 + 100 * step / (len(rewards) - 1), 140 - 90 * (reward - low) / (high - low))
        for step, reward in enumerate(rewards)
    ]
    curve = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="12"
  font-family="ui-monospace, 'SF Mono', 'Cascadia Code', 'DejaVu Sans Mono', Menlo, monospace">
<rect width="{WIDTH}" height="{HEIGHT}" fill="#1c1f26"/>
{lines}<path d="M336 22V{HEIGHT - 22}" stroke="#31363f"/>
<polyline points="{curve}" fill="none" stroke="#8795f5" stroke-width="2.5" stroke-linejoin="round"/>
<circle cx="{points[-1][0]:.1f}" cy="{points[-1][1]:.1f}" r="4" fill="#8795f5"/>
<text x="356" y="30" fill="#9a9fab">reward</text>
<text x="356" y="{HEIGHT - 20}" fill="#9a9fab">{rewards[0]:.2f}</text>
<text x="456" y="{HEIGHT - 20}" fill="#e3e4e8" text-anchor="end">{rewards[-1]:.2f}</text>
</svg>
"""


def main() -> None:
    for argument in sys.argv[1:]:
        name, _, folder = argument.rpartition("=")
        run = Run(folder)
        best = max(reversed(list(run.episodes)), key=lambda row: row.reward or 0.0)
        rewards = [line["reward"] for line in run.metrics if "reward" in line]
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{name or Path(folder).name}.svg").write_text(picture(run.episode(best), rewards))


if __name__ == "__main__":
    main()
