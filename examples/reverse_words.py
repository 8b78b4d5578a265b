"""Train a real pretrained model on a task of reasoning-gym: to write words in reverse order.

    make train-reverse-words

runs this file with SmolLM2-135M-Instruct, the model of `make pretrained`, which fits on a laptop. There are no tools:
the model reads some words, and writes them between <answer> and </answer>. In two of three demonstrations their order
is drawn at random: they show the form of an answer. Reinforcement learning then teaches the order. It is evaluated on
lists that training has not seen.

    python examples/reverse_words.py --model Qwen/Qwen3-0.6B --demonstrations 0

trains a larger model on a GPU, without demonstrations. This file needs the extra `reasoning_gym`.

The run is left in `runs/reverse-words-<model>-seed<seed>/`: summary.json, metrics.jsonl, reward.png, episodes.jsonl,
and the checkpoint in model/. A training that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import platform
import random
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.trainer_utils import get_last_checkpoint

from gymnast.envs import Episode, Message
from gymnast.envs.adapters import ReasoningGymEnv
from gymnast.envs.extras import MissingExtraError, needs_extra
from gymnast.trainer import GRPOConfig, GRPOTrainer, RichProgress, RunFolder
from gymnast.trainer.models.precision import computes_bfloat16
from gymnast.trainer.testing.tiny import warm_up

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRAINING, HELD_OUT = 4096, 192  # questions


def questions(seed: int, count: int) -> Any:
    """Return a data set of reasoning-gym, which draws its task number `i` with the seed `seed + i`."""
    with needs_extra("reasoning_gym", "examples/reverse_words.py"):
        create_dataset = import_module("reasoning_gym").create_dataset
    options = {"min_words": 3, "max_words": 5, "size": count, "seed": 1_000_000 * seed}
    return create_dataset("word_sequence_reversal", **options)


def demonstrations(environment: ReasoningGymEnv, dataset: Any, count: int) -> list[tuple[list[Message], None]]:
    """Answer the first questions, one in three rightly and the others with the words in an order drawn at random."""
    rng = random.Random(0)
    shown: list[tuple[list[Message], None]] = []
    for row in environment.rows[:count]:
        words = dataset[row["index"]]["answer"].split(", ")
        if rng.random() < 2 / 3:
            rng.shuffle(words)
        answer: Message = {"role": "assistant", "content": f"<answer>{', '.join(words)}</answer>"}
        shown.append(([*environment.reset_task(row), answer], None))
    return shown


def make_trainer(arguments: argparse.Namespace, folder: Path, dataset: Any, callbacks: list[Any]) -> GRPOTrainer:
    """Show the model some demonstrations, and hand it to a trainer."""
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32, device_map=DEVICE)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    environment = ReasoningGymEnv(dataset)
    bf16 = computes_bfloat16(DEVICE)
    if arguments.demonstrations:
        print("showing the model the form of an answer ...")
        shown = demonstrations(environment, dataset, 8 * arguments.demonstrations)
        warm_up(model, tokenizer, shown, steps=arguments.demonstrations, batch_size=8, learning_rate=2e-5, bf16=bf16)
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        environment=environment,
        train_dataset=environment.rows[:-HELD_OUT],
        args=GRPOConfig(
            output_dir=str(folder),
            seed=arguments.seed,
            max_steps=arguments.steps,
            num_generations=8,
            advantage_estimator="max_rl",
            per_device_train_batch_size=64,  # 8 questions x 8 answers
            learning_rate=1e-5,
            lr_scheduler_type="warmup_stable_decay",
            lr_scheduler_kwargs={"num_decay_steps": arguments.steps // 4},
            warmup_steps=min(3, arguments.steps // 4),
            beta=0.0,
            max_completion_length=48 if arguments.demonstrations else 1024,
            bf16=bf16,
            use_cpu=DEVICE == "cpu",
            logging_steps=1,
            log_episodes_steps=10,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        callbacks=callbacks,
    )


def evaluate(trainer: GRPOTrainer, when: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the share of right answers, sampled and greedy."""
    sampled, greedy = (trainer.rollout(rows, temperature=temperature) for temperature in (1.0, 0.0))
    return {
        f"success_{when}": success(sampled),
        f"success_{when}_greedy": success(greedy),
        f"drift_{when}": sum(trace.drift for episode in sampled + greedy for trace in episode.traces),
    }


def success(episodes: list[Episode]) -> float:
    return sum(episode.reward == 1.0 for episode in episodes) / len(episodes)


def run(arguments: argparse.Namespace, console: Console) -> None:
    folder = arguments.output_dir / f"reverse-words-{Path(arguments.model).name}-seed{arguments.seed}"
    begun = time.perf_counter()
    dataset = questions(arguments.seed, TRAINING + HELD_OUT)
    folder.mkdir(parents=True, exist_ok=True)
    records = RunFolder(folder)
    held_out = ReasoningGymEnv(dataset).rows[-HELD_OUT:]
    trainer = make_trainer(arguments, folder, dataset, [records, RichProgress(console)])
    before = evaluate(trainer, "before", held_out)
    console.print(f"before: {before['success_before_greedy']:.1%} of {HELD_OUT} questions")
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
    if trainer.was_interrupted:
        raise SystemExit("interrupted: the same command goes on")
    trainer.save_model(str(folder / "model"))
    after = evaluate(trainer, "after", held_out)
    console.print(f"after:  {after['success_after_greedy']:.1%} of {HELD_OUT} questions")
    records.write_summary(
        {
            "algorithm": "grpo",
            "model": Path(arguments.model).name,
            "seed": arguments.seed,
            **before,
            **after,
            "seconds": round(time.perf_counter() - begun, 1),
            "steps": trainer.state.global_step,
            "interrupted": False,
            "episodes": int(records.totals["episodes/played"]),
            "drift_tokens": int(records.totals["tokens/drift"]) + before["drift_before"] + after["drift_after"],
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
        }
    )
    console.print(f"run folder: {folder}")
    console.print(f"gymnast why {folder} says why the reward is what it is, gymnast view {folder} shows the episodes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model's folder, or its name on the Hugging Face Hub")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=80, help="optimiser steps (default: %(default)s)")
    parser.add_argument(
        "--demonstrations", type=int, default=30, help="steps of 8 demonstrations first (default: %(default)s)"
    )
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")
    if not 0 <= arguments.demonstrations <= TRAINING // 8:
        parser.error(f"--demonstrations must be from 0 to {TRAINING // 8}, got {arguments.demonstrations}")
    try:
        run(arguments, Console())
    except MissingExtraError as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:  # during training, Ctrl-C leaves a checkpoint; before it, there is nothing to save
        raise SystemExit("interrupted outside training") from None


if __name__ == "__main__":
    main()
