"""Plays one task with JSON calls and with code; counts turns, calls and tokens.

    python -m benchmarks.code_forms

The task is "Which of twenty products sells most?". Each form plays the shortest right episode by a script, in a local
box. The tokens are those of SmolLM2's tokenizer (`make pretrained`), for the texts that the model writes and reads: a
JSON call stands between <tool_call> tags, as Hermes and Qwen write it. It writes the table of docs/tools_inside.md.
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from gymnast.envs import (
    CodeEnv,
    Episode,
    EpisodeLimits,
    Message,
    RolloutEngine,
    ScriptedPolicy,
    tool,
    tool_call,
    tool_calls,
)
from gymnast.envs.core import text_of
from gymnast.sandbox import ExecutorPool, LocalExecutor

from ..evidence import write_table
from ..pretrained import fetch, model_folder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tools_inside.md"
SALES = {f"product {number}": random.Random(number).randrange(10, 1000) for number in range(20)}
BEST = max(SALES, key=lambda name: SALES[name])
QUESTION = "Which of the products sells most?"
CODE = "from tools import final_answer, products, sold\nfinal_answer(max(products(), key=sold))"
BLOCK = "<code>\nfinal_answer(max(products(), key=sold))\n</code>"
LIMITS = EpisodeLimits(max_turns=30)
HEAD = ["Form", "Turns", "Calls of your tools", "Tokens written", "Tokens of results", "Tokens of tools and prompt"]


class Shop(CodeEnv):
    @tool
    def products(self) -> list[str]:
        """List the products."""
        return sorted(SALES)

    @tool
    def sold(self, product: str) -> int:
        """Return how many pieces of a product were sold.

        Args:
            product: The product's name.
        """
        return SALES[product]


def forms() -> dict[str, tuple[dict[str, Any], list[Message | str]]]:
    """The options of the environment and the model's turns, by the name of the form."""
    looks = [tool_call("sold", product=name) for name in sorted(SALES)]
    first, last = tool_call("products"), tool_call("final_answer", answer=BEST)
    together = tool_calls(*(("sold", {"product": name}) for name in sorted(SALES)))
    calls = {"tools_in": "calls"}
    return {
        '`tools_in="calls"`, one call a turn': (calls, [first, *looks, last]),
        '`tools_in="calls"`, the twenty calls in one turn': (calls, [first, together, last]),
        '`tools_in="python"`': ({}, [tool_call("python", code=CODE)]),
        "`code_actions=True`": ({"code_actions": True}, [BLOCK]),
    }


def written(message: Message) -> str:
    """The text of an assistant's turn, with its calls as Hermes writes them."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return text_of(message) + "".join(
        f"<tool_call>\n{json.dumps({key: call[key] for key in ('name', 'arguments')})}\n</tool_call>" for call in calls
    )


def row_of(name: str, episode: Episode, tokenizer: Any) -> list[str]:
    def tokens(*texts: str) -> str:
        return f"{sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts):,}"

    results = [text_of(message) for turn in episode.turns for message in turn.observation]
    asked = [*map(json.dumps, episode.tools), *map(text_of, episode.prompt)]
    mine = sum(record.name not in ("python", "block") for record in episode.tool_calls)
    counts = [str(len(episode.turns)), str(mine)]
    return [name, *counts, tokens(*(written(turn.message) for turn in episode.turns)), tokens(*results), tokens(*asked)]


def main() -> None:
    fetch(model_folder())
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    pool, rows = ExecutorPool(LocalExecutor(), max_boxes=1), [HEAD]
    for name, (options, turns) in forms().items():
        task = {"prompt": QUESTION, "answer": BEST}
        [episode] = RolloutEngine(Shop(pool, **options), ScriptedPolicy(turns), limits=LIMITS).play([task])
        if episode.reward != 1.0:
            raise RuntimeError(f"{name}: the reward of the script is {episode.reward}: {episode}")
        rows.append(row_of(name, episode, tokenizer))
        print(" | ".join(rows[-1]))
    asyncio.run(pool.close())
    write_table(PAGE, "forms", rows)


if __name__ == "__main__":
    main()
