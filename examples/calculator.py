"""Train a model to answer arithmetic questions with tools.

    python examples/calculator.py --algorithm grpo --seed 1

makes a tiny Qwen3 model (0.5 M parameters), shows it some demonstrations, and trains it by reinforcement learning. Its
success on new questions rises from below 50 % to above 90 %, in about three minutes on two cores.
With `--model Qwen/Qwen3-0.6B` the same file trains a model from the Hub. With `--hosts auto` the environments live on
the machines of a Ray cluster (docs/cluster.md).

The run is left in `runs/calculator-<algorithm>-seed<seed>/`: summary.json, metrics.jsonl, reward.png, episodes.jsonl
and the checkpoint in model/. If trackio is installed, `trackio show --project calculator` draws the metrics.

    gymnast eval gymnast/Calculator-v0 --tool-format react --model "$(make --silent pretrained)"

answers with SmolLM2-135M-Instruct, a pretrained model that runs on a laptop. examples/word_problems.py trains it.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import random
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console

from gymnast.cluster import RayEnvironments, WebSocketEnvironments
from gymnast.envs import Calculator, Episode, tool_call
from gymnast.envs.examples.calculator import random_tasks
from gymnast.trainer import AgentTrainer, GRPOConfig, GRPOTrainer, RichProgress, RLOOConfig, RLOOTrainer, RunFolder
from gymnast.trainer.testing.tiny import make_tiny_model, tokenizer_for, warm_up

ALGORITHMS = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}
HELD_OUT = 256


def training_tasks(seed: int) -> list[dict[str, Any]]:
    return random_tasks(2048, seed=seed)


def demonstrated_tasks(seed: int) -> list[dict[str, Any]]:
    return random_tasks(2048, seed=10_000 + seed)


def demonstration(task: dict[str, Any], rng: random.Random) -> list[Any]:
    """A conversation that shows how to call tools, but rarely the right one: the model learns that from rewards."""
    operations = {"add": task["a"] + task["b"], "subtract": task["a"] - task["b"], "multiply": task["a"] * task["b"]}
    tool = task["operation"] if rng.random() < 0.15 else rng.choice(list(operations))
    call = tool_call(tool, a=task["a"], b=task["b"])
    result = {"role": "tool", "name": tool, "content": str(operations[tool])}
    answer = tool_call("final_answer", answer=operations[tool])
    return [{"role": "user", "content": task["question"]}, call, result, answer]


def tiny_model(seed: int, console: Console) -> tuple[Any, Any]:
    """A model that has seen a few demonstrations, and its tokenizer."""
    environment = Calculator()
    tools = environment.tool_schemas()
    environment.close()
    rng = random.Random(seed)
    demonstrations = [(demonstration(task, rng), tools) for task in demonstrated_tasks(seed)]
    tokenizer = tokenizer_for(demonstrations)
    model = make_tiny_model(tokenizer, seed=seed)
    console.print("showing a tiny model how tools are called, in less than a minute ...")
    warm_up(model, tokenizer, demonstrations, steps=150, seed=seed)
    return model, tokenizer


def make_environment(hosts: list[str]) -> Any:
    """The calculator: in this process, on a Ray cluster, or on machines that serve it."""
    if not hosts:
        return Calculator()
    if "://" in hosts[0]:
        return WebSocketEnvironments(hosts)
    import ray

    ray.init(address=hosts[0], log_to_driver=False)
    return RayEnvironments(Calculator())


def make_trainer(arguments: argparse.Namespace, folder: Path, callbacks: list[Any], console: Console) -> AgentTrainer:
    trainer_class, config_class = ALGORITHMS[arguments.algorithm]
    if arguments.model is None:
        model, tokenizer = tiny_model(arguments.seed, console)
        recipe = {"learning_rate": 2e-4, "max_completion_length": 128, "use_cpu": True}
        recipe |= {"per_device_train_batch_size": 128}  # 16 tasks x 8 episodes
    else:
        model, tokenizer = arguments.model, None
        recipe = {"learning_rate": 1e-6, "max_completion_length": 1024, "bf16": torch.cuda.is_available()}
        recipe |= {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 16}
    config = config_class(
        output_dir=str(folder),
        seed=arguments.seed,
        max_steps=arguments.steps,
        max_staleness=arguments.max_staleness,
        num_generations=8,
        beta=0.0,
        max_turns=4,
        lr_scheduler_type="linear",
        logging_steps=1,
        log_episodes_steps=20,
        save_strategy="no",
        report_to="trackio" if find_spec("trackio") else "none",
        project="calculator",  # of trackio, which keeps its charts on this machine
        run_name=folder.name,
        disable_tqdm=True,
        **recipe,
    )
    return trainer_class(
        model=model,
        environment=make_environment(arguments.hosts),
        args=config,
        train_dataset=training_tasks(arguments.seed),
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def success(episodes: list[Episode]) -> float:
    return sum(episode.metrics.get("success", 0.0) for episode in episodes) / len(episodes)


def held_out_tasks(seed: int) -> list[dict[str, Any]]:
    """Tasks whose questions occur neither in training nor in the demonstrations."""
    seen = {task["question"] for task in training_tasks(seed) + demonstrated_tasks(seed)}
    fresh = (task for task in random_tasks(8 * HELD_OUT, seed=20_000 + seed) if task["question"] not in seen)
    return list(itertools.islice(fresh, HELD_OUT))


def evaluate(trainer: AgentTrainer, tasks: list[dict[str, Any]]) -> tuple[float, float, int]:
    """Success on these tasks at temperature 1 and 0, and the number of tokens that drifted."""
    sampled, greedy = (trainer.rollout(tasks, temperature=temperature) for temperature in (1.0, 0.0))
    drift = sum(trace.drift for episode in sampled + greedy for trace in episode.traces)
    return success(sampled), success(greedy), drift


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=sorted(ALGORITHMS), default="grpo")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=160, help="optimiser steps (default: %(default)s)")
    parser.add_argument("--max-staleness", type=int, default=0, help="play so many steps ahead, while the model trains")
    parser.add_argument("--resume", metavar="CHECKPOINT", help="the checkpoint of an interrupted run, to go on from")
    parser.add_argument("--model", help="a model of the Hugging Face Hub; by default a tiny one is made")
    hosts_help = "where the environments live: a Ray cluster, such as auto, or URLs such as ws://machine:8760"
    parser.add_argument("--hosts", nargs="+", default=[], metavar="ADDRESS", help=hosts_help)
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")
    try:
        run(arguments, Console())
    except KeyboardInterrupt:  # during training, Ctrl-C leaves a checkpoint; before it, there is nothing to save
        raise SystemExit("interrupted outside training") from None


def run(arguments: argparse.Namespace, console: Console) -> None:
    started = time.perf_counter()
    folder = arguments.output_dir / f"calculator-{arguments.algorithm}-seed{arguments.seed}"
    records = RunFolder(folder)
    trainer = make_trainer(arguments, folder, [records, RichProgress(console)], console)
    tasks = held_out_tasks(arguments.seed)
    before, before_greedy, drift_before = evaluate(trainer, tasks)
    console.print(f"before: {before:.1%} of {HELD_OUT} held-out tasks (greedy {before_greedy:.1%})")
    trainer.train(resume_from_checkpoint=arguments.resume)
    trainer.save_model(str(folder / "model"))
    summary = {
        "algorithm": arguments.algorithm,
        "seed": arguments.seed,
        "success_before": before,
        "success_before_greedy": before_greedy,
        "success_after": None,
        "success_after_greedy": None,
        "seconds": round(time.perf_counter() - started, 1),
        "steps": trainer.state.global_step,
        "interrupted": trainer.was_interrupted,
        "episodes": int(records.totals["episodes/played"]),
        "tool_calls": int(records.totals["tools/calls"]),
        "drift_tokens": int(records.totals["tokens/drift"]) + drift_before,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    records.write_summary(summary)  # now, so that a second Ctrl-C cannot lose it
    after, after_greedy, drift_after = evaluate(trainer, tasks)
    console.print(f"after:  {after:.1%} of {HELD_OUT} held-out tasks (greedy {after_greedy:.1%})")
    summary |= {
        "success_after": after,
        "success_after_greedy": after_greedy,
        "seconds": round(time.perf_counter() - started, 1),
        "drift_tokens": summary["drift_tokens"] + drift_after,
    }
    records.write_summary(summary)
    console.print(f"run folder: {folder}")
    console.print(f"gymnast why {folder} says why the reward is what it is, gymnast view {folder} shows the episodes")


if __name__ == "__main__":
    main()
