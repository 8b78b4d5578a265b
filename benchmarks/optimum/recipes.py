"""The settings of each game's training: everything that a run depends on, as plain numbers beside its result."""

from __future__ import annotations

from typing import Any

ROUNDS = {"number": 20, "mastermind": 32, "bandit": 40}
# The reference plays at random, so the divergence from it keeps the policy exploring. Too much of it hides the best
# moves of Mastermind from GRPO, and too little lets the bandit take an arm at once.
BETA = {
    "grpo": {"number": 0.015, "mastermind": 0.015, "bandit": 0.03},
    "rloo": {"number": 0.02, "mastermind": 0.02, "bandit": 0.02},
}
# GRPO divides rewards by their standard deviation. It is the round's: in a group of the bandit, all episodes have the
# same luck, and often the rewards differ by nothing but the price of a look.
OF_ALGORITHM: dict[str, dict[str, Any]] = {"grpo": {"scale_rewards": "batch"}, "rloo": {}}
OPTIONS = {
    "learning_rate": 2e-3,
    "lr_scheduler_type": "linear",
    "warmup_steps": 8,  # Adam's first steps are equally large for the tokens of the format, which are right already
    "adam_beta2": 0.95,  # gradients shrink as the policy settles; a long memory of large ones would slow it down
    "adam_epsilon": 1e-5,  # or else the many tokens that are no moves, whose gradients are tiny, would move as far
    "per_device_train_batch_size": 56,
    "steps_per_generation": 4,
    "num_iterations": 4,
    "num_generations": 8,
    "max_completion_length": 64,
    "logging_strategy": "no",
}
OF_GAME: dict[str, dict[str, Any]] = {
    "number": {},
    "mastermind": {"num_generations": 16},
    # Rewards depend on luck more than on the policy, so larger batches.
    "bandit": {"per_device_train_batch_size": 112, "steps_per_generation": 2, "adam_epsilon": 3e-6},
}


def settings_of(game: str, algorithm: str, seed: int, rounds: int | None = None) -> dict[str, Any]:
    """The settings of one run."""
    options = OPTIONS | OF_ALGORITHM[algorithm] | OF_GAME[game] | {"beta": BETA[algorithm][game]}
    steps_of_round = options["steps_per_generation"] * options["num_iterations"]
    rounds = ROUNDS[game] if rounds is None else rounds
    return {
        "game": game,
        "algorithm": algorithm,
        "seed": seed,
        "random_games": 1000,
        "warm_up": [[200, 3e-3], [100, 5e-4]],  # steps and learning rate; the second makes the format reliable
        "hidden_size": 64,
        "measured_every": 4 * steps_of_round,
        "curve_episodes": 48,
        "final_episodes": 288,
        "options": {**options, "max_steps": rounds * steps_of_round},
    }
