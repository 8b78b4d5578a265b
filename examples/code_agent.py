"""Train a model to answer questions by writing Python that runs in a sandbox.

    python examples/code_agent.py --seed 1

makes a tiny Qwen3 model (0.5 M parameters), shows it some demonstrations, and trains it by reinforcement learning. Each
question is about the numbers of a file, which a tool reads. The model's one tool is its code, and the code calls the
others: `from tools import final_answer, read`. Its success on new questions rises from below 50 % to above 75 %, in
some minutes on two cores. With `--tools-in calls` the model calls the tools itself, so it has to compute in its head.
With `--model Qwen/Qwen3-0.6B` the same file trains a model from the Hub.

It needs Docker, for which it makes an image of this machine's Python; or bubblewrap, where no engine answers. The run
is left in `runs/code-agent-<algorithm>-seed<seed>/`.

    gymnast eval examples/code_agent.py:Files --tasks examples/code_agent.py:held_out -n 32 --tool-format react \\
        --model "$(make --silent pretrained)"

answers with SmolLM2-135M-Instruct, a pretrained model that runs on a laptop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console

from gymnast.envs import CodeEnv, tool, tool_call
from gymnast.sandbox import ExecutorPool, Limits, SandboxError, default_executor
from gymnast.trainer import AgentTrainer, GRPOConfig, GRPOTrainer, RichProgress, RLOOConfig, RLOOTrainer, RunFolder
from gymnast.trainer.testing.tiny import make_tiny_model, tokenizer_for, warm_up

ALGORITHMS = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}
FUNCTIONS = {"largest": max, "smallest": min, "sum": sum}
FILES = ["ages.txt", "prices.txt", "scores.txt", "sizes.txt", "weights.txt", "years.txt"]
COUNTS = range(3, 10)
HELD_OUT = 256


class Files(CodeEnv):
    """Answer questions about files of numbers."""

    @tool
    def read(self, file: str) -> list[int]:
        """Return the numbers of a file.

        Args:
            file: The file's name.
        """
        if file != self.task["path"]:
            raise ValueError(f"there is no {file}")
        return self.task["numbers"]


def random_task(rng: random.Random, *, held_out: bool) -> dict[str, Any]:
    """A row for `Files`. One question in four is asked only when it is held out."""
    while True:
        word, count, file = rng.choice(list(FUNCTIONS)), rng.choice(COUNTS), rng.choice(FILES)
        if ((list(FUNCTIONS).index(word) + count + FILES.index(file)) % 4 == 0) is held_out:
            break
    numbers = [rng.randint(1, 99) for _ in range(10)]
    return {
        "prompt": f"What is the {word} of the first {count} numbers in {file}?",
        "answer": str(FUNCTIONS[word](numbers[:count])),
        "word": word,
        "count": count,
        "path": file,
        "numbers": numbers,
    }


def held_out(seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(2000 + seed)
    return [random_task(rng, held_out=True) for _ in range(HELD_OUT)]


def demonstration(task: dict[str, Any], rng: random.Random, *, in_code: bool) -> list[Any]:
    """A conversation that shows how to call the tools, but rarely gives the right answer: rewards teach that."""
    function = FUNCTIONS[task["word"]] if rng.random() < 0.15 else rng.choice(list(FUNCTIONS.values()))
    question = {"role": "user", "content": task["prompt"]}
    if in_code:
        code = f"numbers = read('{task['path']}')\nfinal_answer({function.__name__}(numbers[:{task['count']}]))"
        return [question, tool_call("python", code=f"from tools import final_answer, read\n{code}")]
    result = {"role": "tool", "name": "read", "content": json.dumps(task["numbers"], separators=(",", ":"))}
    answer = tool_call("final_answer", answer=str(function(task["numbers"][: task["count"]])))
    return [question, tool_call("read", file=task["path"]), result, answer]


def tiny_model(environment: CodeEnv, seed: int, console: Console) -> tuple[Any, Any]:
    """A model that has seen a few demonstrations, and its tokenizer."""
    rng = random.Random(seed)
    tools = environment.tool_schemas()
    tasks = [random_task(rng, held_out=False) for _ in range(2048)]
    in_code = environment.tools_in != "calls"
    demonstrations = [(demonstration(task, rng, in_code=in_code), tools) for task in tasks]
    tokenizer = tokenizer_for(demonstrations)
    model = make_tiny_model(tokenizer, seed=seed)
    console.print("showing a tiny model how tools are called, in less than a minute ...")
    warm_up(model, tokenizer, demonstrations, steps=300, seed=seed)
    return model, tokenizer


def make_trainer(
    arguments: argparse.Namespace, environment: CodeEnv, folder: Path, callbacks: list[Any], console: Console
) -> AgentTrainer:
    trainer_class, config_class = ALGORITHMS[arguments.algorithm]
    if arguments.model is None:
        model, tokenizer = tiny_model(environment, arguments.seed, console)
        recipe = {"learning_rate": 7e-4, "max_completion_length": 160, "use_cpu": True}
        recipe |= {"per_device_train_batch_size": 128}  # 16 tasks x 8 episodes
    else:
        model, tokenizer = arguments.model, None
        recipe = {"learning_rate": 1e-6, "max_completion_length": 1024, "bf16": torch.cuda.is_available()}
        recipe |= {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 16}
    rng = random.Random(1000 + arguments.seed)
    config = config_class(
        output_dir=str(folder),
        seed=arguments.seed,
        max_steps=arguments.steps,
        num_generations=8,
        num_iterations=2,  # running programs costs more than updates, so each batch is used twice
        beta=0.0,
        max_turns=4,
        lr_scheduler_type="linear",
        logging_steps=1,
        log_episodes_steps=20,
        save_strategy="no",
        report_to="trackio" if find_spec("trackio") else "none",
        project="code-agent",  # of trackio
        disable_tqdm=True,
        **recipe,
    )
    return trainer_class(
        model=model,
        environment=environment,
        args=config,
        train_dataset=[random_task(rng, held_out=False) for _ in range(2048)],
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def evaluate(trainer: AgentTrainer, tasks: list[dict[str, Any]], console: Console) -> tuple[float, int]:
    """The share of right answers among the episodes that were played, and how many failed: those have no answer."""
    episodes = trainer.rollout(tasks)
    failures = [episode.failure for episode in episodes if episode.failure is not None]
    if len(failures) == len(episodes):
        raise SystemExit(f"error: all {len(failures)} evaluation episodes failed, the first in {failures[0]}")
    if failures:
        console.print(f"{len(failures)} evaluation episodes failed, the first in {failures[0]}", markup=False)
    right = sum(episode.metrics["success"] for episode in episodes if episode.failure is None)
    played = [episode for episode in episodes if episode.failure is None]
    means = {
        "turns": fmean(len(episode.turns) for episode in played),
        "calls": fmean(len(episode.tool_calls) for episode in played),
        "sampled tokens": fmean(episode.num_sampled for episode in played),
        "tokens of the episode": fmean(len(episode.traces[0].ids) for episode in played),
    }
    console.print(", ".join(f"{value:.1f} {name}" for name, value in means.items()) + " an episode")
    return right / len(played), len(failures)


def run(arguments: argparse.Namespace, console: Console) -> None:
    started = time.perf_counter()
    executor = default_executor(limits=Limits(memory="128m", workspace="16m", tmp="16m", pids=32))
    console.print(f"sandbox: {type(executor).__name__}")
    folder = arguments.output_dir / f"code-agent-{arguments.algorithm}-seed{arguments.seed}"
    records = RunFolder(folder)
    pool = ExecutorPool(executor, max_boxes=arguments.boxes)
    try:
        environment = Files(code_executor=pool, code_timeout=5.0, tools_in=arguments.tools_in)
        trainer = make_trainer(arguments, environment, folder, [records, RichProgress(console)], console)
        tasks = held_out(arguments.seed)
        before, failed_before = evaluate(trainer, tasks, console)
        console.print(f"before: {before:.1%} of {HELD_OUT - failed_before} held-out tasks; {failed_before} failed")
        trainer.train()
        trainer.save_model(str(folder / "model"))
        after, failed_after = evaluate(trainer, tasks, console)
        console.print(f"after:  {after:.1%} of {HELD_OUT - failed_after} held-out tasks; {failed_after} failed")
        statistics = pool.statistics
    finally:
        asyncio.run(pool.close())
    summary = {
        "algorithm": arguments.algorithm,
        "seed": arguments.seed,
        "success_before": before,
        "failed_before": failed_before,
        "success_after": after,
        "failed_after": failed_after,
        "seconds": round(time.perf_counter() - started, 1),
        "steps": trainer.state.global_step,
        "interrupted": trainer.was_interrupted,
        "episodes": int(records.totals["episodes/played"]),
        "drift_tokens": int(records.totals["tokens/drift"]),
        "boxes": statistics.created,
        "leases": statistics.leases,
    }
    records.write_summary(summary)
    console.print(f"{statistics.leases} episodes had a clean sandbox each, from {statistics.created} boxes")
    console.print(f"run folder: {folder}")
    console.print(f"gymnast why {folder} says why the reward is what it is, gymnast view {folder} shows the episodes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=sorted(ALGORITHMS), default="grpo")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60, help="optimiser steps (default: %(default)s)")
    parser.add_argument("--tools-in", choices=("python", "calls"), default="python", help="who calls the tools")
    parser.add_argument("--boxes", type=int, default=64, help="boxes at a time (default: %(default)s)")
    parser.add_argument("--model", help="a model of the Hugging Face Hub; by default a tiny one is made")
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    for option in ("steps", "boxes"):
        if getattr(arguments, option) < 1:
            parser.error(f"--{option} must be at least 1, got {getattr(arguments, option)}")
    try:
        run(arguments, Console())
    except SandboxError as error:  # for example no engine; the message says how to install one
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:  # during training, Ctrl-C leaves a checkpoint; before it, there is nothing to save
        raise SystemExit("interrupted outside training") from None


if __name__ == "__main__":
    main()
