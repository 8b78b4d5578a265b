"""One run: a tiny model, trained on random games only, learns one of the games by reinforcement learning."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

from transformers import TrainerCallback

from gymnast.trainer import AgentTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from gymnast.trainer.testing.tiny import make_tiny_model, make_tiny_tokenizer, warm_up

from .games import Game

CHAT_TEMPLATE = r"""
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {{- '<|im_start|>assistant\n' ~ message.content ~ '<|im_end|>' -}}
    {%- else -%}
        {{- message.content ~ '\n' -}}
    {%- endif -%}
{%- endfor -%}
{{- '<|im_start|>assistant\n' if add_generation_prompt else '' -}}
"""
"""Five tokens for a move and its answer, so that an episode costs little."""

ALGORITHMS = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}


class Curve(TrainerCallback):
    """Measures the policy before the first step, and then at regular intervals."""

    def __init__(self, game: Game, every: int, episodes: int) -> None:
        self.trainer: AgentTrainer | None = None
        self.points: list[dict[str, Any]] = []
        self._game = game
        self._every = every
        self._episodes = episodes

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._measure(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self._every == 0:
            self._measure(state.global_step)

    def _measure(self, step: int) -> None:
        assert self.trainer is not None
        values = values_now(self.trainer, self._game, self._episodes)
        self.points.append({"step": step, **values})


def train(game: Game, settings: dict[str, Any]) -> dict[str, Any]:
    """Train as `settings_of` says; return the curve, and the values at the end at temperature 1 and 0."""
    used = time.process_time()
    model, tokenizer = _model_of_random_play(game, settings)
    trainer_class, config_class = ALGORITHMS[settings["algorithm"]]
    curve = Curve(game, settings["measured_every"], settings["curve_episodes"])
    with tempfile.TemporaryDirectory() as folder:
        curve.trainer = trainer = trainer_class(
            model=model,
            environment=game.environment(),
            args=config_class(
                output_dir=folder,
                record_run=False,
                seed=settings["seed"],
                use_cpu=True,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                **settings["options"],
            ),
            train_dataset=game.training_tasks(settings["seed"]),
            processing_class=tokenizer,
            callbacks=[curve],
        )
        trainer.train()
    if trainer.was_interrupted:  # by a signal; its values are not those of a whole run
        raise KeyboardInterrupt
    return {
        "settings": settings,
        "curve": curve.points,
        **values_now(trainer, game, settings["final_episodes"]),
        "parameters": model.num_parameters(),
        "processor_seconds": round(time.process_time() - used, 1),
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


def values_now(trainer: AgentTrainer, game: Game, episodes: int) -> dict[str, dict[str, float]]:
    """The values at temperature 1, from at least so many episodes, and at temperature 0."""
    return {"sampled": measure(trainer, game, episodes), "greedy": measure(trainer, game, 1, temperature=0.0)}


def measure(trainer: AgentTrainer, game: Game, episodes: int, temperature: float = 1.0) -> dict[str, float]:
    """The policy's mean reward, success and turns, from at least so many episodes.

    Each task is played equally often, and weighted by its probability. At temperature 0 the policy is deterministic,
    so the values are exact.
    """
    repeats = -(-episodes // len(game.tasks))
    played = trainer.rollout([task for task, _ in game.tasks], num_generations=repeats, temperature=temperature)
    weights = [probability / repeats for _, probability in game.tasks for _ in range(repeats)]
    values = {"reward": 0.0, "success": 0.0, "turns": 0.0}
    for episode, weight in zip(played, weights, strict=True):
        assert episode.reward is not None, episode.failure
        values["reward"] += weight * episode.reward
        values["success"] += weight * episode.metrics["success"]
        values["turns"] += weight * len(episode.turns)
    return values


def _model_of_random_play(game: Game, settings: dict[str, Any]) -> tuple[Any, Any]:
    """A model that writes legal moves, all equally often, and its tokenizer."""
    seed = settings["seed"]
    conversations = [(messages, None) for messages in game.random_games(settings["random_games"], seed)]
    render: Any = make_tiny_tokenizer([]).apply_chat_template
    texts = [render(messages, chat_template=CHAT_TEMPLATE, tokenize=False) for messages, _ in conversations]
    tokenizer = make_tiny_tokenizer(texts)
    tokenizer.chat_template = CHAT_TEMPLATE
    model = make_tiny_model(tokenizer, seed=seed, hidden_size=settings["hidden_size"])
    for steps, learning_rate in settings["warm_up"]:
        warm_up(model, tokenizer, conversations, steps=steps, learning_rate=learning_rate, seed=seed)
    return model, tokenizer
