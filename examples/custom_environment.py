"""An environment of your own, and the trainer that learns from it, in one short file.

    python examples/custom_environment.py

makes a tiny model, shows it how the game is played but rarely the right answer, and trains it for 15 steps: under a
minute on two cores. The last line says how many of 64 games it wins before (about a quarter) and after (above 80 %).
With `--model Qwen/Qwen3-0.6B` the same environment trains a model from the Hub.

    gymnast eval examples/custom_environment.py:GuessNumber --tasks examples/custom_environment.py:ROWS \\
        --tool-format react --model "$(make --silent pretrained)"

plays with SmolLM2-135M-Instruct, a pretrained model that runs on a laptop.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from typing import Any

from gymnast.envs import Message, ToolEnv, tool, tool_call
from gymnast.trainer import GRPOConfig, GRPOTrainer, RichProgress
from gymnast.trainer.testing.tiny import make_tiny_model, tokenizer_for, warm_up

ROWS = [{"secret": number} for number in range(1, 8)]


class GuessNumber(ToolEnv):
    """Find a number from 1 to 7 by asking about it."""

    def reset_task(self, task) -> list[Message]:
        self.secret = task["secret"]
        return [{"role": "user", "content": "Which number from 1 to 7 is it?"}]

    @tool
    def is_even(self) -> bool:
        """Ask whether the number is even."""
        return self.secret % 2 == 0

    @tool
    def compare(self, guess: int) -> str:
        """Ask how a guess compares with the number.

        Args:
            guess: The guess.
        """
        return "right" if guess == self.secret else "too low" if guess < self.secret else "too high"

    @tool(final=True)
    def final_answer(self, number: int) -> str:
        """Say which number it is, which ends the game.

        Args:
            number: The number.
        """
        self.reward = float(number == self.secret)
        return "the game is over"


def make_trainer(model, **options):
    return GRPOTrainer(
        model=model,
        environment=GuessNumber(),
        train_dataset=ROWS,
        args=GRPOConfig(output_dir="runs/guess-number", num_generations=8, max_turns=6, **options),
        callbacks=[RichProgress()],
    )


# The rest makes a tiny model, so that the example needs no download.


def demonstration(rng: random.Random) -> list[Message]:
    """A game with the right answer every fourth time and a random one otherwise."""
    secret, low, high = rng.randint(1, 7), 1, 7
    messages: list[Message] = [{"role": "user", "content": "Which number from 1 to 7 is it?"}]
    guess = 0
    while guess != secret:
        guess = (low + high) // 2
        low, high = (guess + 1, high) if guess < secret else (low, guess - 1)
        said = "right" if guess == secret else "too low" if guess < secret else "too high"
        messages += [tool_call("compare", guess=guess), {"role": "tool", "name": "compare", "content": said}]
    answer = secret if rng.random() < 0.25 else rng.randint(1, 7)
    return [*messages, tool_call("final_answer", number=answer)]


def save_tiny_model(folder: str) -> None:
    """Save a tiny model after a few demonstrations, and its tokenizer, as a folder that loads like a Hub model."""
    game = GuessNumber()
    tools = game.tool_schemas()
    game.close()
    rng = random.Random(0)
    shown = [(demonstration(rng), tools) for _ in range(500)]
    tokenizer = tokenizer_for(shown)
    model = make_tiny_model(tokenizer)
    warm_up(model, tokenizer, shown, steps=80)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def success(trainer: GRPOTrainer) -> float:
    """How often the model is right in 64 games."""
    games = trainer.rollout([{"secret": 1 + number % 7} for number in range(64)])
    # A reward is None if the game failed; a failed game does not count as zero.
    rewards = [game.reward for game in games if game.reward is not None]
    return sum(rewards) / len(rewards)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model of the Hugging Face Hub; by default a tiny one is made")
    parser.add_argument("--steps", type=int, default=15)
    arguments = parser.parse_args()

    options: dict[str, Any] = {"max_steps": arguments.steps, "logging_steps": 1, "save_strategy": "no"}
    if arguments.model is None:
        with tempfile.TemporaryDirectory() as folder:
            save_tiny_model(folder)
            trainer = make_trainer(folder, per_device_train_batch_size=56, learning_rate=1e-3, use_cpu=True, **options)
    else:
        trainer = make_trainer(arguments.model, max_completion_length=1024, **options)
    before = success(trainer)
    trainer.train()
    print(f"right in {before:.0%} of the games before, {success(trainer):.0%} after")


if __name__ == "__main__":
    main()
