"""A dialogue with a simulated user, who knows more than the first message says.

    python examples/user_simulator.py

A guest orders coffee. The agent should ask about the size and the milk before it takes the order, and not ask again and
again: the guest leaves after three questions. `reply` is the user: here a script, and it could as well ask another
model (it may be `async def`). A tiny model learns from rewards alone to ask first: docs/gallery.md has the figures.

    gymnast eval examples/user_simulator.py:CoffeeBar --tasks examples/user_simulator.py:ROWS --tool-format react \\
        --model "$(make --silent pretrained)"

takes orders with SmolLM2-135M-Instruct, a pretrained model that runs on a laptop.
"""

from __future__ import annotations

import argparse
import random
from importlib.util import find_spec

from gymnast.envs import Message, ToolEnv, tool, tool_call
from gymnast.trainer import GRPOConfig, GRPOTrainer, RichProgress
from gymnast.trainer.testing.tiny import make_tiny_model, tokenizer_for, warm_up

SIZES, MILK = ("small", "medium", "large"), {"with milk": True, "no milk": False}
ROWS = [{"size": size, "milk": milk} for size in SIZES for milk in MILK]
QUESTIONS = {"size": "Which size?", "milk": "With milk?"}
PATIENCE = 3  # questions


class CoffeeBar(ToolEnv):
    """Take the order of a guest."""

    def reset_task(self, task) -> list[Message]:
        self.wish, self.asked = task, 0
        self.metrics["success"] = 0.0
        return [{"role": "user", "content": "A coffee, please."}]

    def reply(self, message: Message) -> list[Message] | None:
        """The guest's answer to a message without a tool call. None ends the episode: the guest leaves."""
        self.asked += 1
        if self.asked > PATIENCE:
            return None
        text = str(message.get("content", "")).lower()
        answers = [self.wish[topic] for topic in QUESTIONS if topic in text]
        return [{"role": "user", "content": ", ".join(answers) or "Just my coffee, please."}]

    @tool(final=True)
    def order(self, size: str, milk: bool) -> str:
        """Send the order to the kitchen, which ends the dialogue.

        Args:
            size: small, medium or large.
            milk: Whether the guest wants milk.
        """
        right = (size, milk) == (self.wish["size"], MILK[self.wish["milk"]])
        self.reward = self.metrics["success"] = float(right)
        return "thank you"


def demonstration(rng: random.Random) -> list[Message]:
    """A dialogue with random questions; the order guesses what was not asked."""
    bar, wish = CoffeeBar(), {"size": rng.choice(SIZES), "milk": rng.choice(list(MILK))}
    known = {"size": rng.choice(SIZES), "milk": rng.choice(list(MILK))}
    messages: list[Message] = [*bar.reset(options={"task": wish})[0]]
    for topic in rng.sample(list(QUESTIONS), k=rng.randint(0, 2)):
        known[topic] = wish[topic]
        question: Message = {"role": "assistant", "content": QUESTIONS[topic]}
        messages += [question, *bar.step(question)[0]]
    bar.close()
    return [*messages, tool_call("order", size=known["size"], milk=MILK[known["milk"]])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="optimiser steps (default: %(default)s)")
    arguments = parser.parse_args()

    rng, tools = random.Random(0), CoffeeBar().tool_schemas()
    shown = [(demonstration(rng), tools) for _ in range(1000)]
    tokenizer = tokenizer_for(shown)
    model = make_tiny_model(tokenizer, hidden_size=64)
    warm_up(model, tokenizer, shown, steps=150)

    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        environment=CoffeeBar(),
        train_dataset=ROWS,
        args=GRPOConfig(
            output_dir="runs/user-simulator",
            num_generations=8,
            per_device_train_batch_size=8 * len(ROWS),
            learning_rate=2e-3,
            max_turns=PATIENCE + 2,
            max_steps=arguments.steps,
            logging_steps=1,
            log_episodes_steps=10,
            save_strategy="no",
            report_to="trackio" if find_spec("trackio") else "none",
            project="user-simulator",  # of trackio
            disable_tqdm=True,
            use_cpu=True,
        ),
        callbacks=RichProgress(),
    )
    before = success(trainer)
    trainer.train()
    print(f"right in {before:.0%} of the orders before, {success(trainer):.0%} after")


def success(trainer: GRPOTrainer) -> float:
    dialogues = trainer.rollout(ROWS * 16)
    return sum(dialogue.metrics.get("success", 0.0) for dialogue in dialogues) / len(dialogues)


if __name__ == "__main__":
    main()
