"""Train a model that sees: it leads a blue square to a red one, and the result of every tool is a picture.

    python examples/walk.py --seed 1

makes a tiny Qwen3-VL (0.8 M parameters) and shows it how to walk until it succeeds on a third of the boards.
Reinforcement learning then brings it above 90 %. Beside it a second process trains a control, from the same weights
and with the same options, but all of its pictures are grey: on average, a walk without sight succeeds on at most
23.6 % of the boards.

The run is left in `runs/walk-grpo-seed<seed>/`: summary.json, metrics.jsonl, reward.png, episodes.jsonl with its
pictures in images/, and the checkpoint in model/. That of the control is in `runs/walk-grpo-seed<seed>-blind/`.

    gymnast eval examples/walk.py:Walk --tasks examples/walk.py:BOARDS --model Qwen/Qwen2.5-VL-3B-Instruct

lets a pretrained model walk. The model of `make pretrained` reads only text.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import platform
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from rich.console import Console
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gymnast.envs import Image, Message, ToolEnv, tool, tool_call
from gymnast.trainer import GRPOConfig, GRPOTrainer, RichProgress, RunFolder
from gymnast.trainer.testing.tiny import warm_up
from gymnast.trainer.testing.tiny_vision import make_tiny_vision_model, processor_for

Place = tuple[int, int]  # row and column
Direction = Literal["left", "right", "up", "down"]
STEPS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
SIDE, PIXELS = 3, 16  # places in a row, pixels of a place
BLUE, RED, BOARD, GREY = (40, 60, 220), (220, 50, 40), (235, 235, 225), (128, 128, 128)
PLACES: list[Place] = [(row, column) for row in range(SIDE) for column in range(SIDE)]
BOARDS = [{"blue": blue, "red": red} for blue, red in itertools.permutations(PLACES, 2)]


def after(place: Place, to: str) -> Place:
    """The place after a step; a step over the edge leads nowhere."""
    row, column = (min(max(at + by, 0), SIDE - 1) for at, by in zip(place, STEPS[to], strict=True))
    return row, column


def distance(one: Place, other: Place) -> int:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


class Walk(ToolEnv):
    """Lead the blue square to the red one, with at most one step too many. The reward is 1 for an arrival, else 0.

    Args:
        blind: Whether all pictures are grey.
    """

    def __init__(self, *, blind: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.blind = blind

    def reset_task(self, task: Any) -> list[Message]:
        self.blue, self.red = tuple(task["blue"]), tuple(task["red"])
        self.left = distance(self.blue, self.red) + 1
        self.metrics["success"] = 0.0
        return [{"role": "user", "content": "Lead blue to red."}]

    @tool
    def look(self) -> Image:
        """Look at the board."""
        pixels = np.full((SIDE * PIXELS, SIDE * PIXELS, 3), GREY if self.blind else BOARD, np.uint8)
        for (row, column), colour in () if self.blind else ((self.red, RED), (self.blue, BLUE)):
            pixels[row * PIXELS : (row + 1) * PIXELS, column * PIXELS : (column + 1) * PIXELS] = colour
        return Image.of(pixels)

    @tool
    def move(self, to: Direction) -> Image:
        """Move the blue square by one place.

        Args:
            to: The direction.
        """
        self.blue, self.left = after(self.blue, to), self.left - 1
        self.reward = self.metrics["success"] = float(self.blue == self.red)
        self.terminated = self.blue == self.red or self.left == 0
        return self.look()


def demonstration(rng: random.Random) -> list[Message]:
    """A look, and a shortest walk."""
    game, terminated = Walk(), False
    messages: list[Message] = [*game.reset(options={"task": rng.choice(BOARDS)})[0]]
    while not terminated:
        nearer = [to for to in STEPS if distance(after(game.blue, to), game.red) < distance(game.blue, game.red)]
        messages.append(tool_call("move", to=rng.choice(nearer)) if len(messages) > 1 else tool_call("look"))
        answer, _, terminated, _, _ = game.step(messages[-1])
        messages += answer
    game.close()
    return messages


def chance() -> dict[str, float]:
    """The success of those who see nothing, over all boards: of random steps, and of the best sequence of steps."""
    sequences = list(itertools.product(STEPS, repeat=2 * SIDE - 1))
    arrivals = [sum(arrives(sequence, **board) for board in BOARDS) / len(BOARDS) for sequence in sequences]
    return {"random": sum(arrivals) / len(arrivals), "best": max(arrivals)}


def arrives(steps: tuple[str, ...], blue: Place, red: Place) -> bool:
    places = itertools.accumulate(steps[: distance(blue, red) + 1], after, initial=blue)
    return red in places


def make_trainer(model: Any, processor: Any, arguments: argparse.Namespace, folder: Path, *, blind: bool = False):
    return GRPOTrainer(
        model=model,
        processing_class=processor,
        environment=Walk(blind=blind),
        train_dataset=BOARDS,
        args=GRPOConfig(
            output_dir=str(folder),
            seed=arguments.seed,
            max_steps=arguments.steps,
            num_generations=8,
            per_device_train_batch_size=128,  # 16 boards x 8 episodes
            learning_rate=3e-4,
            warmup_steps=10,
            lr_scheduler_type="linear",
            beta=0.0,
            max_turns=2 * SIDE + 1,
            max_completion_length=256,
            max_turn_tokens=16,  # a turn that does not end would outweigh all others in the loss
            logging_steps=1,
            log_episodes_steps=20,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
    )


def success(trainer: GRPOTrainer, temperature: float, walks: int = 1) -> float:
    """Return the share of walks that succeed, with this many on every board."""
    episodes = trainer.rollout(BOARDS * walks, temperature=temperature)
    return sum(episode.metrics.get("success", 0.0) for episode in episodes) / len(episodes)


def warm_up_until_some_succeed(arguments: argparse.Namespace, folder: Path) -> int:
    """Leave a model that has seen demonstrations, and its processor, in a folder; return the steps that it took.

    One step may lead from hardly any success to too much of it. The weights are then taken from between its two ends.
    """
    rng, tools = random.Random(arguments.seed), Walk().tool_schemas()
    shown = [(demonstration(rng), tools) for _ in range(1000)]
    processor = processor_for(shown)
    model = make_tiny_vision_model(processor, seed=arguments.seed)
    trainer = make_trainer(model, processor, arguments, folder)
    weights = [parameters_to_vector(model.parameters()).detach()]

    def enough_succeed() -> bool:
        weights.append(parameters_to_vector(model.parameters()).detach())
        return success(trainer, temperature=1) >= 0.3

    options = {"steps": 150, "batch_size": 48, "learning_rate": 1e-3, "seed": arguments.seed}
    warm_up(model, processor, shown, **options, until=enough_succeed)
    start, end = weights[-2:]
    while success(trainer, temperature=1, walks=4) > 0.37:
        end = torch.lerp(start, end, 0.5)
        vector_to_parameters(end, model.parameters())
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return len(weights) - 1


def train(start: str, arguments: argparse.Namespace, *, blind: bool) -> dict[str, Any]:
    """Train from the model in the folder `start`, and return what came of it."""
    torch.set_num_threads(1)
    begun = time.process_time()
    folder = run_folder(arguments, blind=blind)
    records = RunFolder(folder)
    trainer = make_trainer(start, None, arguments, folder, blind=blind)
    trainer.add_callback(records)
    if not blind:
        trainer.add_callback(RichProgress())
    before = {"success_before": success(trainer, 1.0, walks=4), "success_before_greedy": success(trainer, 0.0)}
    trainer.train()
    trainer.save_model(str(folder / "model"))
    after = {"success_after": success(trainer, 1.0, walks=4), "success_after_greedy": success(trainer, 0.0)}
    return {
        "algorithm": "grpo",
        "seed": arguments.seed,
        **before,
        **after,
        "processor_seconds": round(time.process_time() - begun, 1),
        "steps": trainer.state.global_step,
        "interrupted": trainer.was_interrupted,
        "episodes": int(records.totals["episodes/played"]),
        "tool_calls": int(records.totals["tools/calls"]),
        "drift_tokens": int(records.totals["tokens/drift"]),
    }


def run_folder(arguments: argparse.Namespace, *, blind: bool) -> Path:
    return arguments.output_dir / f"walk-grpo-seed{arguments.seed}{'-blind' if blind else ''}"


@contextmanager
def second_process() -> Iterator[ProcessPoolExecutor]:
    """Open a process for the control, which does not outlive this one if that is interrupted or terminated."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # else it would end this process at once
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        try:
            yield processes
        except BaseException:
            for process in multiprocessing.active_children():
                process.kill()
            raise


def run(arguments: argparse.Namespace, console: Console) -> None:
    begun = time.perf_counter()
    torch.set_num_threads(1)  # there are two trainings soon
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as start, second_process() as processes:
        console.print("showing a tiny model how to walk, in about a minute ...")
        warm_up_steps = warm_up_until_some_succeed(arguments, Path(start))
        control = processes.submit(train, start, arguments, blind=True)
        summary = train(start, arguments, blind=False)
        if summary["interrupted"]:
            sys.exit("interrupted: the control ends, too, and there is no summary")
        summary |= {"control": control.result(), "chance": chance(), "warm_up_steps": warm_up_steps}
    summary["seconds"] = round(time.perf_counter() - begun, 1)
    summary["versions"] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    RunFolder(run_folder(arguments, blind=True)).write_summary(summary["control"])
    folder = run_folder(arguments, blind=False)
    RunFolder(folder).write_summary(summary)  # at last: a run that was interrupted has none
    for name, found in (("sees", summary), ("sees nothing", summary["control"])):
        before, after = (found[f"success_{when}"] for when in ("before", "after"))
        console.print(f"the model that {name} succeeds on {before:.1%} of the boards before, on {after:.1%} after")
    console.print(f"a walk without sight succeeds on at most {summary['chance']['best']:.1%} on average")
    console.print(f"run folder: {folder}")
    console.print(f"gymnast view {folder} --open shows the episodes with their pictures")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60, help="optimiser steps (default: %(default)s)")
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
