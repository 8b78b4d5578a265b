"""One side of the comparison of whole trainings, in a process of its own.

    python benchmarks/beside_trl/one_side.py warm|ours|trl --seed N --steps N --checkpoint FOLDER

`warm` makes the checkpoint. `ours` and `trl` train it, and print one line of JSON: the mean reward of each step, the
seconds from the start to its end, and the processor seconds of the training.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from gymnast.envs import Message, ToolEnv, tool_call
from gymnast.envs.examples.calculator import random_tasks
from gymnast.trainer import GRPOConfig, GRPOTrainer
from gymnast.trainer.testing.tiny import make_tiny_model, tokenizer_for, warm_up

WARM_UP_STEPS = 150
TURNS = 4
SHARED: dict[str, Any] = {  # options with the same name in both trainers
    "learning_rate": 4e-4,
    "lr_scheduler_type": "constant",
    "per_device_train_batch_size": 64,
    "num_generations": 8,
    "max_completion_length": 96,
    "loss_type": "dapo",
    "epsilon": 0.2,
    "epsilon_high": 0.28,
    "beta": 0.0,
    "bf16": False,
    "gradient_checkpointing": False,
    "use_cpu": True,
    "logging_steps": 1,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
}


# The environment: tools, rows and a reward function. The answer is the model's last message, in text.


def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: The first integer.
        b: The second integer.
    """
    return a + b


def subtract(a: int, b: int) -> int:
    """Subtract the second integer from the first.

    Args:
        a: The first integer.
        b: The second integer.
    """
    return a - b


def multiply(a: int, b: int) -> int:
    """Multiply two integers.

    Args:
        a: The first integer.
        b: The second integer.
    """
    return a * b


def right(completions: list[list[Message]], answer: list[int], **_: Any) -> list[float]:
    """1 if the last message is the right number, else 0."""
    return [
        float(messages[-1]["role"] == "assistant" and messages[-1].get("content") == str(expected))
        for messages, expected in zip(completions, answer, strict=True)
    ]


class CalculatorOfTRL:
    """The tools, as `environment_factory` takes them: methods of an object that can be reset."""

    add = staticmethod(add)
    subtract = staticmethod(subtract)
    multiply = staticmethod(multiply)

    def reset(self, **row: Any) -> None:
        """There is no state; the question is in the row's prompt."""


def calculator() -> ToolEnv:
    """The tools for gymnast, in TRL's order, so that the prompts are equal; a malformed call ends an episode."""
    return ToolEnv([add, multiply, subtract], on_malformed="text")


def rows(seed: int) -> list[dict[str, Any]]:
    return [
        {"prompt": [{"role": "user", "content": task["question"]}], "answer": task["answer"]}
        for task in random_tasks(2048, seed=seed)
    ]


def make_checkpoint(folder: Path, seed: int) -> None:
    """A model that knows the form of calls and answers, and calls the right tool in 43 % of its demonstrations."""
    rng = random.Random(seed)
    schemas = calculator().tool_schemas()
    demonstrations = [(demonstration(task, rng), schemas) for task in random_tasks(2048, seed=10_000 + seed)]
    tokenizer = tokenizer_for(demonstrations)
    model = make_tiny_model(tokenizer, seed=seed)
    warm_up(model, tokenizer, demonstrations, steps=WARM_UP_STEPS, seed=seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def demonstration(task: dict[str, Any], rng: random.Random) -> list[Message]:
    results = {"add": task["a"] + task["b"], "subtract": task["a"] - task["b"], "multiply": task["a"] * task["b"]}
    name = task["operation"] if rng.random() < 0.15 else rng.choice(list(results))
    return [
        {"role": "user", "content": task["question"]},
        tool_call(name, a=task["a"], b=task["b"]),
        {"role": "tool", "name": name, "content": str(results[name])},
        {"role": "assistant", "content": str(results[name])},
    ]


# The two sides.


class Clock(TrainerCallback):
    """Notes the reward of each step, and the seconds since the training began."""

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.seconds: list[float] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._started = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "reward" in logs:
            self.rewards.append(float(logs["reward"]))
            self.seconds.append(time.perf_counter() - self._started)


def ours(model: Any, tokenizer: Any, data: list[dict[str, Any]], clock: Clock, **options: Any) -> Any:
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        environment=calculator(),
        reward_funcs=right,
        train_dataset=data,
        args=GRPOConfig(max_turns=TURNS, record_run=False, **SHARED, **options),
        callbacks=[clock],
    )


def trl(model: Any, tokenizer: Any, data: list[dict[str, Any]], clock: Clock, **options: Any) -> Any:
    import datasets
    import trl
    from trl.chat_template_utils import qwen3_template

    tokenizer.response_template = qwen3_template  # the syntax of calls, which TRL knows only for its own templates
    return trl.GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        environment_factory=CalculatorOfTRL,
        reward_funcs=cast(Any, right),  # TRL's types do not declare columns
        train_dataset=datasets.Dataset.from_list(data),
        args=trl.GRPOConfig(max_tool_calling_iterations=TURNS - 1, **SHARED, **options),
        callbacks=[clock],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="One side of the comparison of whole trainings.")
    parser.add_argument("who", choices=["warm", "ours", "trl"])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path, required=True)
    arguments = parser.parse_args()
    os.environ["CI"] = "1"  # TRL then sends no telemetry
    torch.set_num_threads(1)  # for both sides: two threads are slower with so small a model
    if arguments.who == "warm":
        make_checkpoint(arguments.checkpoint, arguments.seed)
        return
    model = AutoModelForCausalLM.from_pretrained(arguments.checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(arguments.checkpoint)
    clock = Clock()
    make = {"ours": ours, "trl": trl}[arguments.who]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"output_dir": folder, "seed": arguments.seed, "max_steps": arguments.steps}
        trainer = make(model, tokenizer, rows(arguments.seed), clock, **options)
        used = time.process_time()
        trainer.train()
    processor_seconds = time.process_time() - used
    result = {"rewards": clock.rewards, "seconds": clock.seconds, "processor_seconds": processor_seconds}
    print(json.dumps(result), file=sys.stdout)


if __name__ == "__main__":
    main()
