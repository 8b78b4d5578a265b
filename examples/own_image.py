"""A sandbox with an image of your own: a program and data that the agent may use.

    python examples/own_image.py

examples/own_image/ has a Dockerfile that adds the command `stock` and its data to the default image. The image is built
when the first box starts, and again when a file of the folder has changed. The agent answers questions by calling the
command in Bash. A tiny model learns from rewards alone where to look: docs/gallery.md has the figures.
It needs a Docker engine.

    gymnast sandbox build
    gymnast eval examples/own_image.py:environment --tasks examples/own_image.py:ROWS --tool-format react \\
        --model "$(make --silent pretrained)"

answers with SmolLM2-135M-Instruct, a pretrained model that runs on a laptop.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gymnast.envs import CodeEnv, Message, tool_call
from gymnast.sandbox import DockerExecutor, ExecutorPool, Limits, SandboxError, build_image
from gymnast.trainer import GRPOConfig, GRPOTrainer, RichProgress
from gymnast.trainer.testing.tiny import make_tiny_model, tokenizer_for, warm_up

FOLDER = Path(__file__).with_name("own_image")
STOCK = [line.split(",") for line in (FOLDER / "stock.csv").read_text().split()]
ROWS = [{"prompt": f"How many {thing} are in the {place}?", "answer": count} for place, thing, count in STOCK]


def demonstration(rng: random.Random) -> list[Message]:
    """A question, and the answer of an agent that looks in the right place in half of the cases."""
    place, thing, _ = rng.choice(STOCK)
    looked, _, count = rng.choice([row for row in STOCK if row[1] == thing and (row[0] == place or rng.random() < 0.5)])
    return [
        {"role": "user", "content": f"How many {thing} are in the {place}?"},
        tool_call("bash", command=f"stock {looked} {thing}"),
        {"role": "tool", "name": "bash", "content": count},
        tool_call("final_answer", answer=count),
    ]


def executor() -> DockerExecutor:
    return DockerExecutor(image=FOLDER, limits=Limits(memory="128m", pids=32))


def environment() -> CodeEnv:
    return CodeEnv(executor())


def tiny_model(tools: list[Any]) -> tuple[Any, Any]:
    rng = random.Random(0)
    shown = [(demonstration(rng), tools) for _ in range(1000)]
    tokenizer = tokenizer_for(shown)
    model = make_tiny_model(tokenizer, hidden_size=64)
    warm_up(model, tokenizer, shown, steps=150)
    return model, tokenizer


def train(pool: ExecutorPool, steps: int) -> None:
    environment = CodeEnv(pool, code_timeout=5.0)
    model, tokenizer = tiny_model(environment.tool_schemas())
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        environment=environment,
        train_dataset=ROWS,
        args=GRPOConfig(
            output_dir="runs/own-image",
            num_generations=8,
            per_device_train_batch_size=8 * len(ROWS),
            learning_rate=2e-3,
            max_turns=4,
            max_steps=steps,
            logging_steps=1,
            log_episodes_steps=10,
            save_strategy="no",
            report_to="trackio" if find_spec("trackio") else "none",
            project="own-image",  # of trackio
            disable_tqdm=True,
            use_cpu=True,
        ),
        callbacks=RichProgress(),
    )
    before = success(trainer)
    trainer.train()
    print(f"right in {before:.0%} of the answers before, {success(trainer):.0%} after")


def success(trainer: GRPOTrainer) -> float:
    """The share of right answers; a failed episode has no reward, and does not count."""
    rewards = [episode.reward for episode in trainer.rollout(ROWS * 8) if episode.reward is not None]
    return sum(rewards) / len(rewards)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="optimiser steps (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        asyncio.run(build_image())  # the base, made of this machine's Python
        pool = ExecutorPool(executor(), max_boxes=16)
        try:
            train(pool, arguments.steps)
        finally:
            asyncio.run(pool.close())
    except SandboxError as error:  # for example no engine; the message says how to install one
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
