"""Train a model to work at a computer: each task is a folder in Harbor's format, with hidden tests.

    python examples/task_agent.py --seed 1

writes thirty folders, makes a tiny Qwen3 model (0.5 M parameters), shows it some demonstrations, and trains it by
reinforcement learning on twenty of them. A task asks for a fact about a file, such as its largest number, and one line
of shell finds it. Each episode has a box of its own, and its tests run in another. The success on the ten other folders
rises from below 40 % to above 85 %, within ten minutes on two cores. With `--tasks FOLDER --model Qwen/Qwen3-0.6B` the
same file trains a model from the Hub on tasks of yours.

It needs a Docker engine, or else bubblewrap, and makes the sandbox's image from this machine's Python if the engine has
none. The run is left in `runs/task-agent-<algorithm>-seed<seed>/`.

    gymnast eval examples/task_agent.py:environment --tasks examples/task_agent.py:held_out --tool-format react \\
        --model "$(make --silent pretrained)"

works with SmolLM2-135M-Instruct, a pretrained model that runs on a laptop.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console

from gymnast.envs import TaskEnv, harbor_tasks, tool_call
from gymnast.sandbox import DEFAULT_IMAGE, Box, Limits, SandboxError, default_box
from gymnast.trainer import AgentTrainer, GRPOConfig, GRPOTrainer, RichProgress, RLOOConfig, RLOOTrainer, RunFolder
from gymnast.trainer.testing.tiny import make_tiny_model, tokenizer_for, warm_up

ALGORITHMS = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}
FILES = ["ages.txt", "prices.txt", "scores.txt", "sizes.txt", "years.txt"]
KINDS = {  # the instruction, the line of shell that follows it, and the answer
    "largest": ("Write the largest number in {} into answer.txt.", "sort -n {} | tail -n 1 > answer.txt", max),
    "smallest": ("Write the smallest number in {} into answer.txt.", "sort -n {} | head -n 1 > answer.txt", min),
    "first": ("Write the first line of {} into answer.txt.", "head -n 1 {} > answer.txt", lambda numbers: numbers[0]),
    "last": ("Write the last line of {} into answer.txt.", "tail -n 1 {} > answer.txt", lambda numbers: numbers[-1]),
    "lines": ("Write the number of lines in {} into answer.txt.", "wc -l < {} > answer.txt", len),
    "sum": (
        "Write the sum of all lines in {} into answer.txt.",
        "awk '{{s+=$1}} END {{print s}}' {} > answer.txt",
        sum,
    ),
}
TEST = """#!/bin/sh
if [ "$(tr -d ' ' < answer.txt)" = {} ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
LIMITS = Limits(memory="128m", pids=32)
EVALUATED = 6  # episodes of each held-out task


def write_tasks(folder: Path) -> None:
    """Write a folder for each kind of question and each file: two in three for training, the others are held out."""
    rng = random.Random(0)
    for kind, (instruction, command, answer) in KINDS.items():
        for file in FILES:
            numbers = rng.sample(range(100, 1000), 12)
            is_held_out = ([*KINDS].index(kind) + FILES.index(file)) % 3 == 0
            task = folder / ("held_out" if is_held_out else "train") / f"{kind}_{file.removesuffix('.txt')}"
            for path, text in {
                "task.toml": f'[environment]\ndocker_image = "{DEFAULT_IMAGE}"\nworkdir = "/app"\n',
                "instruction.md": instruction.format(file),
                f"environment/{file}": "".join(f"{number}\n" for number in numbers),
                "tests/test.sh": TEST.format(answer(numbers)),
                "solution/solve.sh": f"#!/bin/sh\n{command.format(file)}\n",
            }.items():
                (task / path).parent.mkdir(parents=True, exist_ok=True)
                (task / path).write_text(text)


def held_out() -> Sequence[Mapping[str, Any]]:
    write_tasks(Path("runs/tasks"))
    return harbor_tasks("runs/tasks/held_out")


def environment(box: Box | None = None) -> TaskEnv:
    return TaskEnv(box or default_box(limits=LIMITS), tools=("bash", "submit"))


def demonstration(rng: random.Random) -> list[dict[str, Any]]:
    """A conversation that shows how to work, but rarely does what was asked for: rewards teach that."""
    kind, file = rng.choice([*KINDS]), rng.choice(FILES)
    command = KINDS[kind if rng.random() < 0.22 else rng.choice([*KINDS])][1].format(file)
    result = {"role": "tool", "name": "bash", "content": "[no output]"}
    question = {"role": "user", "content": KINDS[kind][0].format(file)}
    return [question, dict(tool_call("bash", command=command)), result, dict(tool_call("submit"))]


def tiny_model(environment: TaskEnv, seed: int, console: Console) -> tuple[Any, Any]:
    """A model that has seen a few demonstrations, and its tokenizer."""
    rng = random.Random(seed)
    demonstrations = [(demonstration(rng), environment.tool_schemas()) for _ in range(2048)]
    # With more tokens a whole instruction would be one token, and what is learned of it would tell nothing of others.
    tokenizer = tokenizer_for(demonstrations, vocab_size=450)
    model = make_tiny_model(tokenizer, seed=seed)
    console.print("showing a tiny model how tools are called, in less than a minute ...")
    warm_up(model, tokenizer, demonstrations, steps=200, seed=seed)
    return model, tokenizer


def make_trainer(
    arguments: argparse.Namespace,
    rows: Sequence[Mapping[str, Any]],
    folder: Path,
    callbacks: list[Any],
    console: Console,
) -> AgentTrainer:
    trainer_class, config_class = ALGORITHMS[arguments.algorithm]
    box = default_box(limits=LIMITS)
    console.print(f"sandbox: {type(box).__name__}")
    trained = environment(box)
    if arguments.model is None:
        model, tokenizer = tiny_model(trained, arguments.seed, console)
        recipe = {"learning_rate": 1e-3, "max_completion_length": 160, "max_turns": 2, "use_cpu": True}
    else:
        model, tokenizer = arguments.model, None
        recipe = {"learning_rate": 1e-6, "max_completion_length": 4096, "max_turns": 20, "step_timeout": 3600.0}
        recipe |= {
            "bf16": torch.cuda.is_available(),
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 8,
        }
    config = config_class(
        output_dir=str(folder),
        seed=arguments.seed,
        max_steps=arguments.steps,
        num_generations=8,
        num_iterations=2,  # boxes cost more than updates, so each batch is used twice
        beta=0.0,
        lr_scheduler_type="linear",
        logging_steps=1,
        log_episodes_steps=8,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **{"per_device_train_batch_size": 64, **recipe},  # 8 tasks x 8 episodes
    )
    return trainer_class(
        model=model,
        environment=trained,
        args=config,
        train_dataset=list(rows),
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def evaluate(trainer: AgentTrainer, rows: Sequence[Mapping[str, Any]]) -> tuple[float, int]:
    """The share of tasks that were solved among the episodes that were played, and how many failed."""
    episodes = trainer.rollout([row for row in rows for _ in range(EVALUATED)])
    played = [episode.metrics["success"] for episode in episodes if episode.failure is None]
    if not played:
        raise SystemExit(f"error: all {len(episodes)} evaluation episodes failed, the first in {episodes[0].failure}")
    return fmean(played), len(episodes) - len(played)


def run(arguments: argparse.Namespace, console: Console) -> None:
    started = time.perf_counter()
    folder = arguments.output_dir / f"task-agent-{arguments.algorithm}-seed{arguments.seed}"
    if arguments.tasks is None:
        write_tasks(folder / "tasks")
        rows, unseen = harbor_tasks(folder / "tasks" / "train"), harbor_tasks(folder / "tasks" / "held_out")
    else:
        rows = unseen = harbor_tasks(arguments.tasks)
    records = RunFolder(folder)
    trainer = make_trainer(arguments, rows, folder, [records, RichProgress(console)], console)
    before, failed_before = evaluate(trainer, unseen)
    console.print(f"before: {before:.1%} of {len(unseen)} held-out tasks")
    trainer.train()
    trainer.save_model(str(folder / "model"))
    after, failed_after = evaluate(trainer, unseen)
    console.print(f"after:  {after:.1%} of {len(unseen)} held-out tasks")
    records.write_summary(
        {
            "algorithm": arguments.algorithm,
            "seed": arguments.seed,
            "tasks": len(rows),
            "success_before": before,
            "failed_before": failed_before,
            "success_after": after,
            "failed_after": failed_after,
            "seconds": round(time.perf_counter() - started, 1),
            "steps": trainer.state.global_step,
            "interrupted": trainer.was_interrupted,
            "episodes": int(records.totals["episodes/played"]),
            "drift_tokens": int(records.totals["tokens/drift"]),
        }
    )
    console.print(f"run folder: {folder}")
    console.print(f"gymnast view {folder} shows what the model did, and what the tests said")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=sorted(ALGORITHMS), default="grpo")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=16, help="optimiser steps (default: %(default)s)")
    parser.add_argument("--tasks", type=Path, help="a folder of tasks; by default twenty are written, and ten held out")
    parser.add_argument("--model", help="a model of the Hugging Face Hub; by default a tiny one is made")
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")
    try:
        run(arguments, Console())
    except SandboxError as error:  # for example no engine; the message says how to install one
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:  # during training, Ctrl-C leaves a checkpoint; before it, there is nothing to save
        raise SystemExit("interrupted outside training") from None


if __name__ == "__main__":
    main()
