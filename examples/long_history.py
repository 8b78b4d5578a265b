"""An agent whose history does not fit its context learns to take notes.

    python examples/long_history.py

The environment says a word once. Then it asks for the word six times, and rewards only the last answer. An episode has
59 tokens, and the context 28. So `compact` keeps the agent's last answer as its note and drops the rest: an agent that
notes down a wrong word has lost the right one. Each rewritten history begins a sample, with the exact tokens that the
model saw, and the samples of an episode share its reward. It takes about 20 seconds.

    gymnast eval examples/long_history.py:Courier --tasks examples/long_history.py:ROWS \\
        --model "$(make --silent pretrained)"

plays with SmolLM2-135M-Instruct, a pretrained model that runs on a laptop. It needs no notes for so short a history.
"""

from __future__ import annotations

import argparse
import random
from importlib.util import find_spec
from typing import Any

from gymnast.envs import Environment, Message, StepResult
from gymnast.trainer import GRPOConfig, GRPOTrainer
from gymnast.trainer.testing.tiny import make_tiny_model, tokenizer_for, warm_up

WORDS = ("amber", "birch", "cloud", "delta", "ember", "frost", "grove", "heath")
QUESTION = "What is the word? Answer with the word alone, as you noted it down."
ROWS = [{"word": word} for word in WORDS]
CONTEXT = 28  # tokens
TURNS = 6


class Courier(Environment):
    """Says a word, and asks for it `TURNS` times; the last answer is rewarded."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.word, self.turn = self.task_of(options)["word"], 0
        return [note(self.word), ask()], {}

    def step(self, action: Message) -> StepResult:
        self.turn += 1
        is_last = self.turn == TURNS
        right = float(action.get("content") == self.word)
        return StepResult([] if is_last else [ask()], right * is_last, is_last, False, {})


def note(word: Any) -> Message:
    return {"role": "user", "content": f"The word is {word}."}


def ask() -> Message:
    return {"role": "user", "content": QUESTION}


def compact(messages: list[Message]) -> list[Message]:
    """The agent's last answer as its note, and the question that it must answer now."""
    answers = [message.get("content") for message in messages if message["role"] == "assistant"]
    return [note(answers[-1]), messages[-1]]


def demonstrations(count: int, *, right: float) -> list[tuple[list[Message], None]]:
    """Conversations with an agent that says the right word with this probability, and otherwise a random one."""
    rng = random.Random(0)
    made: list[tuple[list[Message], None]] = []
    for _ in range(count):
        messages = [note(word := rng.choice(WORDS))]
        for _ in range(2):
            said = word if rng.random() < right else rng.choice(WORDS)
            messages += [ask(), {"role": "assistant", "content": said}]
        made.append((messages, None))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15, help="optimiser steps (default: %(default)s)")
    arguments = parser.parse_args()
    shown = demonstrations(500, right=0.6)
    tokenizer = tokenizer_for(shown)
    model = make_tiny_model(tokenizer, hidden_size=64)
    warm_up(model, tokenizer, shown, steps=200, batch_size=16, learning_rate=5e-3)

    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        environment=Courier(),
        compact=compact,
        train_dataset=ROWS,
        eval_dataset=ROWS,
        args=GRPOConfig(
            output_dir="runs/long-history",
            per_device_train_batch_size=64,
            num_generations=8,
            max_model_len=CONTEXT,
            max_turn_tokens=4,
            learning_rate=2e-3,
            lr_scheduler_type="constant",
            max_steps=arguments.steps,
            logging_steps=1,
            save_strategy="no",
            report_to="trackio" if find_spec("trackio") else "none",
            project="long-history",  # of trackio
            disable_tqdm=True,
            use_cpu=True,
        ),
    )
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    print(f"right in {before['eval_reward']:.0%} of the episodes before, {after['eval_reward']:.0%} after")
    name = "sampling/sampling_logp_difference/max"
    difference = max(logs[name] for logs in trainer.state.log_history if name in logs)
    print(f"{after['eval_samples/mean']:.0f} samples in an episode, {after['eval_tokens/drift']:.0f} tokens of drift")
    print(f"log-probabilities of sampler and trainer differ by at most {difference:.0e}")


if __name__ == "__main__":
    main()
