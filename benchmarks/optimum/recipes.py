"""The settings of each game's training: everything that a run depends on, as plain numbers beside its result."""

from __future__ import annotations

from typing import Any

ROUNDS = {"number": 50, "mastermind": 80, "bandit": 50}
BATCHES = 4  # of a round
PASSES = 2  # passes over each round
# The reference plays at random, so the divergence from it keeps the policy exploring. GRPO divides rewards by their
# standard deviation, about a third here, and RLOO does not.
BETA = {"grpo": 0.05, "rloo": 0.015}
OPTIONS = {
    "learning_rate": 6e-4,
    "lr_scheduler_type": "linear",
    "warmup_steps": 8,  # Adam's first steps are equally large for the tokens of the format, which are right already
    "adam_beta2": 0.95,  # gradients shrink as the policy settles; a long memory of large ones would slow it down
    "per_device_train_batch_size": 112,
    "steps_per_generation": BATCHES,
    "num_iterations": PASSES,
    "num_generations": 16,
    "max_completion_length": 192,
    "logging_strategy": "no",
}


def settings_of(game: str, algorithm: str, seed: int, rounds: int | None = None) -> dict[str, Any]:
    """The settings of one run."""
    steps_of_round = BATCHES * PASSES
    rounds = ROUNDS[game] if rounds is None else rounds
    return {
        "game": game,
        "algorithm": algorithm,
        "seed": seed,
        "random_games": 1000,
        "warm_up": [[100, 3e-3], [60, 5e-4]],  # steps and learning rate; the second makes the format reliable
        "hidden_size": 128,
        "measured_every": 4 * steps_of_round,
        "curve_episodes": 112,
        "final_episodes": 768,
        "options": {**OPTIONS, "beta": BETA[algorithm], "max_steps": rounds * steps_of_round},
    }
