"""Trainings with pictures, in one process and in two: the programs of several processes import this module by name."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from transformers import TrainerCallback

from gymnast.envs import Image, Message, ToolEnv
from gymnast.trainer import GRPOTrainer, whole_weights
from gymnast.trainer.testing.tiny_vision import make_tiny_processor, make_tiny_vision_model

ROWS = [{"number": 0, "text": True}, {"number": 1}, {"number": 2, "text": True}, {"number": 3, "text": True}]
"""One process of two sees text alone in the first step, and both in the second one."""
SHARDED = {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": ["Qwen3VLTextDecoderLayer"]}}
SHARDED["fsdp_config"]["transformer_layer_cls_to_wrap"].append("Qwen3VLVisionBlock")  # type: ignore[index]


class Gallery(ToolEnv):
    """Shows two pictures after each answer, in every second row also one before the first; in some rows none."""

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        self.seen, self.number, self.is_text = 0, task["number"], task.get("text", False)
        shown = [self.part()] if self.number % 2 else []
        return [{"role": "user", "content": [{"type": "text", "text": "look"}, *shown]}]

    def part(self) -> dict[str, Any]:
        if self.is_text:
            return {"type": "text", "text": " there is none"}
        shape = (48, 32 + 16 * (self.number % 3), 3)
        pixels = np.random.default_rng(self.number).integers(0, 256, shape, dtype=np.uint8)
        return {"type": "image", "image": Image.of(pixels)}

    def reply(self, message: Message) -> list[Message] | None:
        self.reward += len(str(message.get("content"))) % 3
        self.seen += 1
        return [{"role": "user", "content": [self.part(), self.part()]}] if self.seen < 3 else None


def babble(request: Any) -> list[int]:
    """Answer with tokens that the seed chooses."""
    chosen = random.Random(request.seed)
    return [chosen.randrange(20, 250) for _ in range(chosen.randrange(1, 6))] + [min(request.stop_ids)]


class Weights(TrainerCallback):
    """Keeps the weights before the first step and after each one."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Tensor]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.kept:
            self.on_step_end(args, state, control, **kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.kept.append({name: weight.detach().clone() for name, weight in whole_weights(kwargs["model"])})


def seeing() -> tuple[Any, Any]:
    """The processor and a fresh model that sees, always with the same weights."""
    processor = make_tiny_processor(["look there is none"] * 3, 304)
    return processor, make_tiny_vision_model(processor, hidden_size=64, vision_size=32)


def gradients(folder: Path, config: Any, generator: Any, agent: Any = None, **options: Any) -> list[dict[str, Tensor]]:
    """Train two steps with plain SGD and return what each took from the weights: the gradients.

    `agent` names a folder with the model of `seeing` and its processor.
    """
    processor, agent = seeing() if agent is None else (None, agent)
    usual = {"optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 0.0, "scale_rewards": "none", "max_steps": 2}
    usual |= {"max_completion_length": 400, "shuffle_dataset": False, "max_tokens_per_batch": 150}
    args, weights = config(folder, **usual | options), Weights()
    parts = {"processing_class": processor, "generator": generator, "callbacks": [weights]}
    GRPOTrainer(agent, Gallery(), args, ROWS, **parts).train()
    return [{name: before[name] - after[name] for name in before} for before, after in pairwise(weights.kept)]
