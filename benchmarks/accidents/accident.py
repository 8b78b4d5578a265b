"""An accident: the same training twice, once with the mistake and once with the remedy.

- `Accident`: its two arms, each a function that makes a trainer.
- `WatchedTrainer`: a `GRPOTrainer` that notes one number of each round.
- `Setting`: seed and lengths of one training, and the options that all accidents share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import PrinterCallback

from gymnast.envs import Episode
from gymnast.trainer import GRPOConfig, GRPOTrainer
from gymnast.trainer.testing.tiny import Conversation, make_tiny_model, tokenizer_for, warm_up

WORDS = ("river", "garden", "lamp", "castle", "forest", "piano", "bridge", "candle")

LEARNING_RATE = 5e-4
"""For a model of 0.1 M parameters: between the rate of its warm-up (3e-3) and that of examples/calculator.py (2e-4)."""

Measure = Callable[[Episode], float]


class WatchedTrainer(GRPOTrainer):
    """Notes the mean of a measure over the episodes of each round, failed ones included, in `curve`."""

    def __init__(self, measure: Measure, **options: Any) -> None:
        self._measure = measure
        self.curve: list[float] = []
        super().__init__(**options)
        self.remove_callback(PrinterCallback)

    def on_episodes(self, episodes: Sequence[Episode]) -> None:
        super().on_episodes(episodes)
        self.curve.append(fmean(map(self._measure, episodes)))


@dataclass(kw_only=True, frozen=True)
class Setting:
    """One training."""

    seed: int
    warm_up_steps: int
    steps: int
    folder: Path

    def config(self, **options: Any) -> GRPOConfig:
        """8 tasks x 8 episodes a step. The other options are defaults, or keep the run short and its output small."""
        return GRPOConfig(
            output_dir=str(self.folder),
            record_run=False,
            seed=self.seed,
            max_steps=self.steps,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=96,
            max_turns=4,
            use_cpu=True,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **options,
        )

    def model(self, demonstrations: Sequence[Conversation]) -> tuple[Any, Any]:
        """A model that has learned to imitate the demonstrations, and its tokenizer."""
        tokenizer = tokenizer_for(demonstrations)
        model = make_tiny_model(tokenizer, seed=self.seed, hidden_size=64)
        warm_up(model, tokenizer, demonstrations, steps=self.warm_up_steps, seed=self.seed)
        return model, tokenizer


@dataclass(kw_only=True, frozen=True)
class Accident:
    """`arms` has the mistake first and the remedy second, under the names that the picture shows."""

    title: str
    measured: str  # the label of the curve's axis
    warm_up_steps: int
    steps: int
    arms: Mapping[str, Callable[[Setting], WatchedTrainer]]

    def train(self, arm: str, setting: Setting) -> list[float]:
        """Train one arm and return the measure of each round."""
        trainer = self.arms[arm](setting)
        try:
            trainer.train()
        finally:
            trainer.player.generator.close()
        return trainer.curve
