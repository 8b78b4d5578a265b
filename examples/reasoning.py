"""A reasoning task of one turn: no tools, and rewards that read the answer.

    python examples/reasoning.py

The model reads two digits, writes a line of reasoning, and then the answer. No environment class is needed: a `ToolEnv`
without tools shows the row's `prompt`, and functions as in TRL give the reward. Only the answer is rewarded, and a
tiny model learns to reason rightly, since its answer follows from its reasoning: docs/gallery.md has the figures.

    gymnast play gymnast.envs:ToolEnv --tasks examples/reasoning.py:ROWS --model "$(make --silent pretrained)"

shows an answer of SmolLM2-135M-Instruct, a pretrained model that runs on a laptop.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
from importlib.util import find_spec

from gymnast.envs import Message, ToolEnv
from gymnast.trainer import GRPOConfig, GRPOTrainer, RichProgress
from gymnast.trainer.testing.tiny import make_tiny_model, tokenizer_for, warm_up

ANSWER = re.compile(r"^answer (\d+)$", re.MULTILINE)
ROWS = [
    {"prompt": f"Which is larger?\n{a}\n{b}", "answer": str(max(a, b))} for a, b in itertools.permutations(range(10), 2)
]


def correct(completions: list[list[Message]], answer: list[str], **columns: object) -> list[float]:
    """1 for the right answer. TRL's shape: lists with one entry for each episode, and the columns of the data set."""
    return [float(given(messages) == right) for messages, right in zip(completions, answer, strict=True)]


def readable(completions: list[list[Message]], **columns: object) -> list[float]:
    """1 for an answer that can be read, right or wrong."""
    return [float(given(messages) is not None) for messages in completions]


def given(messages: list[Message]) -> str | None:
    found = ANSWER.findall(str(messages[-1].get("content", "")))
    return found[-1] if len(found) == 1 else None


def demonstration(rng: random.Random) -> list[Message]:
    """Reasoning with the right sign in two cases of three, and the answer that follows from the sign."""
    row = rng.choice(ROWS)
    _, a, b = str(row["prompt"]).split("\n")
    sign = ">" if (a > b) == (rng.random() < 0.67) else "<"
    text = f"{a}\n{sign}\n{b}\nanswer {a if sign == '>' else b}"
    return [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": text}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="optimiser steps (default: %(default)s)")
    arguments = parser.parse_args()

    rng = random.Random(0)
    shown = [(demonstration(rng), None) for _ in range(1000)]
    tokenizer = tokenizer_for(shown)
    model = make_tiny_model(tokenizer, hidden_size=64)
    warm_up(model, tokenizer, shown, steps=200)

    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        environment=ToolEnv(),
        reward_funcs=[correct, readable],
        train_dataset=ROWS,
        args=GRPOConfig(
            output_dir="runs/reasoning",
            reward_weights=[1.0, 0.1],
            num_generations=8,
            per_device_train_batch_size=128,
            max_completion_length=32,
            learning_rate=2e-3,
            max_steps=arguments.steps,
            logging_steps=1,
            log_episodes_steps=10,
            save_strategy="no",
            report_to="trackio" if find_spec("trackio") else "none",
            project="reasoning",  # of trackio
            disable_tqdm=True,
            use_cpu=True,
        ),
        callbacks=RichProgress(),
    )
    before = success(trainer)
    trainer.train()
    print(f"right in {before:.0%} of the answers before, {success(trainer):.0%} after")


def success(trainer: GRPOTrainer) -> float:
    episodes = trainer.rollout(ROWS * 2)
    return sum(episode.reward_parts.get("correct") or 0.0 for episode in episodes) / len(episodes)


if __name__ == "__main__":
    main()
