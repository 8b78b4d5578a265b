"""Train a real pretrained model on word problems, with a calculator.

    make train-pretrained

runs this file with SmolLM2-135M-Instruct, which fits on a laptop. The model reads problems of one to three steps that
also contain numbers of no use, writes an expression for the tool `calculate`, and gives the final answer. In two of
three demonstrations the signs are drawn at random: they show how tools are called. Reinforcement learning then teaches
the model to read. It is evaluated on problems whose sentences, names and ranges of numbers it has never seen. A run
that was interrupted goes on where it was.

    python examples/word_problems.py --model Qwen/Qwen3-0.6B --no-demonstrations

trains a larger model on a GPU, which knows how to call tools.

The run is left in `runs/word-problems-<model>-seed<seed>/`: summary.json, metrics.jsonl, reward.png, episodes.jsonl,
the transcripts before.txt and after.txt, and the checkpoint in model/.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.trainer_utils import get_last_checkpoint

from gymnast.envs import Episode, Message, ToolEnv, ToolSchema, tool
from gymnast.trainer import GRPOConfig, GRPOTrainer, RichProgress, RunFolder
from gymnast.trainer.models.precision import computes_bfloat16
from gymnast.trainer.testing.tiny import warm_up
from gymnast.trainer.tool_calls.react import ReActFormat

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HELD_OUT = 96


@dataclass(kw_only=True, frozen=True)
class World:
    """The sentences of problems, and their numbers: `n` is a number of things, `k` a small factor."""

    names: list[str]
    things: list[str]
    numbers: range
    factors: range
    start: dict[str, list[str]]  # by the sign of its operation, "" for none
    steps: dict[str, list[str]]
    distractors: list[str]
    questions: list[str]


SHOWN = World(
    names=["Mia", "Tom", "Anna", "Ben", "Lucy", "Sam"],
    things=["apples", "books", "coins", "stamps", "pencils", "cards"],
    numbers=range(11, 50),
    factors=range(2, 6),
    start={
        "": [
            "{name} has {n} {things}.",
            "There are {n} {things} on {name}'s table.",
            "{name} starts with {n} {things}.",
            "In the morning {name} counts {n} {things}.",
            "{n} {things} belong to {name}.",
            "{name}'s basket holds {n} {things}.",
            "{name} carries {n} {things} in a bag.",
            "A shelf of {name} has {n} {things} on it.",
            "At first {name} has {n} {things}.",
            "{name} keeps {n} {things} at home.",
        ],
        "*": [
            "{name} has {k} boxes with {n} {things} in each.",
            "{name} buys {k} packs of {n} {things}.",
            "There are {k} rows of {n} {things} in {name}'s room.",
            "In each of {k} baskets {name} has {n} {things}.",
            "{k} friends give {name} {n} {things} each.",
            "On {k} days {name} gets {n} {things} a day.",
            "{name} packs {k} boxes. Each has {n} {things}.",
            "Each of {name}'s {k} cupboards contains {n} {things}.",
            "{name} makes {k} piles of {n} {things} each.",
            "On each of {k} tables {name} puts {n} {things}.",
            "{name} loads {k} carts with {n} {things} each.",
            "{k} jars stand here, each with {n} {things} of {name}.",
        ],
    },
    steps={
        "+": [
            "{name} buys {n} more.",
            "A friend gives {name} another {n}.",
            "{name} finds {n} more.",
            "Then {name} wins {n}.",
            "{name}'s mother adds {n}.",
            "Later {n} more are delivered.",
            "{name} makes {n} new ones.",
            "{n} others come in a parcel.",
            "Then {name} gets {n} from a neighbour.",
            "{name}'s uncle sends {n} more.",
            "Then {name} picks up {n} more.",
            "{n} extra ones lie in a box, and {name} takes them home.",
            "{name} receives {n} as a present.",
            "{name} gathers another {n}.",
            "Grandmother has {n} more for {name}.",
            "Then {n} new ones come from the factory.",
        ],
        "-": [
            "{name} gives away {n}.",
            "{name} loses {n}.",
            "A thief takes {n} of them.",
            "{n} of them fall into a river.",
            "Then {name} uses {n}.",
            "{name}'s brother takes {n}.",
            "{n} of them get lost.",
            "Then {name} hands {n} to a friend.",
            "{name} drops {n} of them.",
            "{n} of them burn.",
            "{name} returns {n} to the shop.",
            "Then {name} puts {n} into the bin.",
            "A dog tears {n} of them.",
            "{name} gets rid of {n}.",
            "{name} pays with {n} of them.",
            "{n} of them turn out to be bad.",
        ],
    },
    distractors=[
        "{name} is {n} years old.",
        "It is {n} degrees outside.",
        "The bus has the number {n}.",
        "{name} lives on floor {n}.",
        "The film lasts {n} minutes.",
        "The next town is {n} miles away.",
        "{name}'s father is {n} years old.",
        "The train leaves in {n} minutes.",
        "{name} reads page {n} of a novel.",
        "The tower is {n} metres high.",
        "{name}'s room has the number {n}.",
        "It rains for {n} hours.",
    ],
    questions=[
        "How many {things} does {name} have now?",
        "How many {things} are there in the end?",
        "What is the total of {name}'s {things}?",
        "How many {things} remain?",
    ],
)
NEW = World(
    names=["Omar", "Ingrid", "Chen", "Paula", "Raj", "Edith"],
    things=["marbles", "shells", "tickets", "eggs", "stickers", "buttons"],
    numbers=range(51, 100),
    factors=range(6, 10),
    start={
        "": ["{name} owns {n} {things}.", "In {name}'s drawer lie {n} {things}."],
        "*": ["{name} fills {k} bags with {n} {things} each.", "On each of {k} shelves {name} keeps {n} {things}."],
    },
    steps={
        "+": ["Then {name} collects {n} more.", "{name}'s aunt brings {n} extra ones.", "{n} more arrive by post."],
        "-": ["Then {name} sells {n}.", "{name} throws {n} of them away.", "{n} of them break."],
    },
    distractors=[
        "{name}'s house has the number {n}.",
        "The shop is {n} metres away.",
        "The radio plays for {n} minutes.",
    ],
    questions=["What is the number of {things} that {name} has left?", "How many {things} does {name} own at last?"],
)


def problem(world: World, rng: random.Random) -> dict[str, Any]:
    """Return a problem of one to three steps, the short ones more often, in one case of two with a number of no use."""
    words = {"name": rng.choice(world.names), "things": rng.choice(world.things)}
    first = rng.choice(["", "*"])
    [length] = rng.choices((1, 2, 3), (5, 3, 2))
    steps = rng.choices("+-", k=length - len(first))
    number, factor = rng.choice(world.numbers), rng.choice(world.factors)
    counts = [rng.choice(world.numbers) for _ in steps]
    numbers, signs = [*([factor] if first else []), number, *counts], [*first, *steps]
    if any(value(numbers[: end + 1], signs[:end]) < 0 for end in range(len(numbers))):
        return problem(world, rng)  # one cannot give away more than one has
    sentences = [rng.choice(world.start[first]).format(k=factor, n=number, **words)]
    sentences += [rng.choice(world.steps[step]).format(n=n, **words) for step, n in zip(steps, counts, strict=True)]
    if rng.random() < 1 / 2:
        useless = rng.choice(world.distractors).format(n=rng.choice(world.numbers), **words)
        sentences.insert(rng.randint(1, len(sentences)), useless)
    sentences.append(rng.choice(world.questions).format(**words))
    return {"prompt": " ".join(sentences), "numbers": numbers, "signs": signs, "answer": value(numbers, signs)}


def expression(numbers: Sequence[int], signs: Sequence[str]) -> str:
    return str(numbers[0]) + "".join(f" {sign} {number}" for sign, number in zip(signs, numbers[1:], strict=True))


def value(numbers: Sequence[int], signs: Sequence[str]) -> int:
    return calculated(expression(numbers, signs))


def calculated(text: str) -> int:
    try:
        if re.fullmatch(r"[\d+*() -]{1,60}", text) and not re.search(r"\*\*|[\d)] *\(|\( *\)", text):
            return eval(text)  # of digits and three operations; without powers, calls and tuples
    except SyntaxError:
        pass
    raise ValueError(f"write whole numbers with +, - and *, got {text[:60]!r}")


class WordProblems(ToolEnv):
    """A word problem; the reward is 1 for the right final answer, else 0."""

    expected: int = 0

    def reset_task(self, task: Any) -> list[Message]:
        self.expected = task["answer"]
        self.metrics["success"] = 0.0
        return [{"role": "user", "content": task["prompt"]}]

    @tool
    def calculate(self, expression: str) -> int:
        """Calculate an expression.

        Args:
            expression: Whole numbers with +, - and *.
        """
        return calculated(expression)

    @tool(final=True)
    def final_answer(self, answer: int) -> str:
        """Give the answer.

        Args:
            answer: The answer.
        """
        self.reward = self.metrics["success"] = float(answer == self.expected)
        return ""


class BriefFormat(ReActFormat):
    """ReAct with two lines of instructions: a small model learns from examples, and reads fewer tokens."""

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        names = " or ".join(tool["function"]["name"] for tool in tools)
        return f"Solve the problem with a tool: {names}.\n{written('tool', key='value')}"


def written(tool: str, **arguments: Any) -> str:
    """Return a call as the model writes it."""
    return f"Action: {tool}\nAction Input: {json.dumps(arguments)}"


def demonstration(rng: random.Random) -> tuple[list[Message], None]:
    """A conversation as a rollout renders it. Its numbers are the problem's; in two of three, the signs are random."""
    task = problem(SHOWN, rng)
    numbers, signs = task["numbers"], task["signs"]
    if rng.random() < 2 / 3:
        signs = rng.choices("+-*", k=len(signs))
    environment = WordProblems()
    instructions = BriefFormat().instructions(environment.tool_schemas())
    environment.close()
    messages: list[Message] = [
        {"role": "system", "content": instructions},
        {"role": "user", "content": task["prompt"]},
        {"role": "assistant", "content": written("calculate", expression=expression(numbers, signs))},
        {"role": "user", "content": f"Observation: {value(numbers, signs)}"},
        {"role": "assistant", "content": written("final_answer", answer=value(numbers, signs))},
    ]
    return messages, None


def show(arguments: argparse.Namespace, folder: Path) -> None:
    """Leave a model that has seen demonstrations in a folder.

    It has seen enough when it solves two in five of 48 problems of training, so that all seeds begin alike.
    """
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32, device_map=DEVICE)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    rng = random.Random(10_000 + arguments.seed)
    demonstrations = [demonstration(rng) for _ in range(480)]
    tasks, steps = [problem(SHOWN, rng) for _ in range(48)], itertools.count(1)
    trainer = make_trainer(arguments, model, folder.parent, [], processing_class=tokenizer)  # it makes this folder

    def has_seen_enough() -> bool:
        step = next(steps)
        return step >= 24 and step % 2 == 0 and success(trainer.rollout(tasks, temperature=0.0)) >= 0.4

    how = {"steps": 60, "batch_size": 8, "learning_rate": 2e-5, "bf16": computes_bfloat16(DEVICE)}
    warm_up(model, tokenizer, demonstrations, seed=arguments.seed, until=has_seen_enough, **how)
    unfinished = folder.with_name("unfinished")  # a run that is interrupted here begins again
    model.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    unfinished.rename(folder)


def make_trainer(
    arguments: argparse.Namespace, model: Any, folder: Path, callbacks: list[Any], **parts: Any
) -> GRPOTrainer:
    rng = random.Random(arguments.seed)
    return GRPOTrainer(
        model=model,
        environment=WordProblems(),
        tool_format=None if arguments.no_demonstrations else BriefFormat(),
        train_dataset=[problem(SHOWN, rng) for _ in range(4096)],
        args=GRPOConfig(
            output_dir=str(folder),
            seed=arguments.seed,
            max_steps=arguments.steps,
            num_generations=8,
            advantage_estimator="max_rl",  # "grpo" ends with eight equal answers to most problems by step 10
            per_device_train_batch_size=64,  # 8 problems x 8 episodes
            learning_rate=arguments.learning_rate,
            lr_scheduler_type="warmup_stable_decay",
            lr_scheduler_kwargs={"num_decay_steps": arguments.steps // 4},
            warmup_steps=min(3, arguments.steps // 4),
            beta=0.0,
            max_turns=3,
            max_turn_tokens=48 if not arguments.no_demonstrations else None,
            max_completion_length=160 if not arguments.no_demonstrations else 1024,
            bf16=computes_bfloat16(DEVICE),
            use_cpu=DEVICE == "cpu",
            logging_steps=1,
            log_episodes_steps=10,
            save_steps=10,
            save_total_limit=1,
            report_to="none",
            disable_tqdm=True,
        ),
        callbacks=callbacks,
        **parts,
    )


def held_out(seed: int) -> list[dict[str, Any]]:
    rng = random.Random(20_000 + seed)
    return [problem(NEW, rng) for _ in range(HELD_OUT)]


def evaluate(trainer: GRPOTrainer, when: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return the success on held-out problems, sampled and greedy, and leave three transcripts in a file."""
    sampled, greedy = (trainer.rollout(held_out(seed), temperature=temperature) for temperature in (1.0, 0.0))
    tokenizer: Any = trainer.processing_class
    texts = [tokenizer.decode(episode.traces[-1].ids) for episode in greedy[:3]]
    (folder / f"{when}.txt").write_text("\n\n".join(texts) + "\n")
    return {
        f"success_{when}": success(sampled),
        f"success_{when}_greedy": success(greedy),
        f"drift_{when}": sum(trace.drift for episode in sampled + greedy for trace in episode.traces),
    }


def seconds_of_steps(metrics: Path) -> float:
    """The seconds of the steps that earlier processes have finished."""
    steps = map(json.loads, metrics.read_text().splitlines() if metrics.exists() else ())
    return sum(step.get("time/rollout", 0.0) + step.get("time/update", 0.0) for step in steps)


def success(episodes: list[Episode]) -> float:
    return sum(episode.metrics.get("success", 0.0) for episode in episodes) / len(episodes)


def run(arguments: argparse.Namespace, console: Console) -> None:
    folder = arguments.output_dir / f"word-problems-{Path(arguments.model).name}-seed{arguments.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    start, notes = folder / "start", folder / "before.json"
    begun = time.perf_counter()
    if arguments.no_demonstrations:
        start = arguments.model
    elif not start.exists():
        console.print("showing the model how tools are called, in about two minutes ...")
        show(arguments, start)
    records = RunFolder(folder)
    trainer = make_trainer(arguments, str(start), folder, [records, RichProgress(console)])
    if notes.exists():  # a run that was interrupted goes on, and so does its time
        begun -= json.loads(notes.read_text())["seconds_before"] + seconds_of_steps(folder / "metrics.jsonl")
    else:
        before = evaluate(trainer, "before", arguments.seed, folder)
        notes.write_text(json.dumps({**before, "seconds_before": time.perf_counter() - begun}))
    before = json.loads(notes.read_text())
    console.print(f"before: {before['success_before_greedy']:.1%} of {HELD_OUT} held-out problems")
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
    trainer.save_model(str(folder / "model"))
    after = evaluate(trainer, "after", arguments.seed, folder)
    console.print(f"after:  {after['success_after_greedy']:.1%} of {HELD_OUT} held-out problems")
    records.write_summary(
        {
            "algorithm": "grpo",
            "model": Path(arguments.model).name,
            "seed": arguments.seed,
            **before,
            **after,
            "seconds": round(time.perf_counter() - begun, 1),
            "steps": trainer.state.global_step,
            "interrupted": trainer.was_interrupted,
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
    parser.add_argument("--steps", type=int, default=110, help="optimiser steps (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=1.5e-5, help="(default: %(default)s)")
    parser.add_argument("--no-demonstrations", action="store_true", help="the model knows how to call tools")
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")
    try:
        run(arguments, Console())
    except KeyboardInterrupt:  # during training, Ctrl-C leaves a checkpoint; before it, there is nothing to save
        raise SystemExit("interrupted outside training") from None


if __name__ == "__main__":
    main()
