"""Wordle with a reward for every guess: each turn gets credit of its own.

    python examples/wordle.py

Three guesses find one of eight words. A guess earns 0.1 for each letter that it is the first to place, and 1 if it is
the word. With `credit="turn"` a guess is judged by its own reward and those of later guesses, so a lucky start does not
excuse a bad end. A tiny model learns it from rewards alone: docs/gallery.md has the figures.
`gymnast view runs/wordle --open` shows the reward and the advantage of every turn.

    gymnast eval examples/wordle.py:Wordle --tasks examples/wordle.py:ROWS --tool-format react \\
        --model "$(make --silent pretrained)"

plays with SmolLM2-135M-Instruct, a pretrained model that runs on a laptop.
"""

from __future__ import annotations

import argparse
import random
from importlib.util import find_spec

from gymnast.envs import Message, ToolEnv, tool, tool_call
from gymnast.trainer import GRPOConfig, GRPOTrainer, RichProgress
from gymnast.trainer.testing.tiny import make_tiny_model, tokenizer_for, warm_up

WORDS = ("amber", "birch", "cloud", "dwelt", "heart", "movie", "plumb", "stone")
ROWS = [{"word": word} for word in WORDS]
GUESSES = 3


def marks(guess: str, word: str) -> str:
    """`=` for a letter in its place, `+` for one elsewhere in the word, `.` for any other; no word repeats a letter."""
    return "".join("=" if a == b else "+" if a in word else "." for a, b in zip(guess, word, strict=True))


class Wordle(ToolEnv):
    """Find a word of five letters in three guesses."""

    def reset_task(self, task) -> list[Message]:
        self.word, self.guesses, self.placed = task["word"], 0, set()
        self.metrics["success"] = 0.0
        return [{"role": "user", "content": f"Guess the word, one of: {' '.join(WORDS)}"}]

    @tool
    def guess(self, word: str) -> str:
        """Guess the word. The answer marks each letter: = in its place, + elsewhere in the word, . not in it.

        Args:
            word: One of the words.
        """
        if word not in WORDS:
            raise ValueError(f"{word!r} is not one of the words")
        placed = {place for place, mark in enumerate(marks(word, self.word)) if mark == "="}
        self.reward = 0.1 * len(placed - self.placed)  # the reward of this turn; the episode's is their sum
        self.placed |= placed
        self.guesses += 1
        if word == self.word:
            self.reward += 1.0
            self.metrics["success"] = 1.0
        self.terminated = word == self.word or self.guesses == GUESSES
        return f"{word} {marks(word, self.word)}"


def demonstration(rng: random.Random) -> list[Message]:
    """A game in which two guesses in five agree with the marks so far, and the others are random."""
    game, word, possible = Wordle(), rng.choice(WORDS), list(WORDS)
    messages: list[Message] = [*game.reset(options={"task": {"word": word}})[0]]
    terminated = False
    while not terminated:
        guess = rng.choice(possible if rng.random() < 0.4 else WORDS)
        possible = [other for other in possible if marks(guess, other) == marks(guess, word)]
        messages.append(tool_call("guess", word=guess))
        answer, _, terminated, _, _ = game.step(messages[-1])
        messages += answer
    game.close()
    return messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="optimiser steps (default: %(default)s)")
    arguments = parser.parse_args()

    rng, tools = random.Random(0), Wordle().tool_schemas()
    shown = [(demonstration(rng), tools) for _ in range(1000)]
    tokenizer = tokenizer_for(shown)
    model = make_tiny_model(tokenizer, hidden_size=64)
    warm_up(model, tokenizer, shown, steps=200, learning_rate=3e-3)

    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        environment=Wordle(),
        train_dataset=ROWS,
        args=GRPOConfig(
            output_dir="runs/wordle",
            credit="turn",
            num_generations=8,
            per_device_train_batch_size=8 * len(WORDS),
            learning_rate=2e-3,
            max_turns=GUESSES + 2,
            max_steps=arguments.steps,
            logging_steps=1,
            log_episodes_steps=10,
            save_strategy="no",
            report_to="trackio" if find_spec("trackio") else "none",
            project="wordle",  # of trackio
            disable_tqdm=True,
            use_cpu=True,
        ),
        callbacks=RichProgress(),
    )
    before = success(trainer)
    trainer.train()
    print(f"found {before:.0%} of the words before, {success(trainer):.0%} after")


def success(trainer: GRPOTrainer) -> float:
    games = trainer.rollout(ROWS * 16)
    return sum(game.metrics.get("success", 0.0) for game in games) / len(games)


if __name__ == "__main__":
    main()
