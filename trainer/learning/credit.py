"""Credit: the reward that judges each token of an episode.

With "episode" every token has the advantage of the episode's reward. With "turn" the tokens of a turn have the
advantage of the turn's return, which is compared with the same turn of the other members of the group.

Axes: K, the turns of an episode (1 with "episode"); N, its loss tokens.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ...envs.episode import Episode

Credit = Literal["episode", "turn"]
"""The part of an episode that has one advantage."""


def returns_of(episode: Episode, reward: float, credit: Credit, discount: float) -> Tensor:
    """Compute the return of each turn, (K,) in float64: R_k = r_k + discount * R_(k+1), where r_k is the turn's reward.

    The part of `reward` that no step gave counts in the last turn: grade, reward functions, penalties, the KL. So with
    `discount=1` the first return is `reward`.
    """
    if credit == "episode":
        return torch.tensor([reward], dtype=torch.float64)
    rewards = [turn.reward for turn in episode.turns] or [0.0]
    rewards[-1] += reward - episode.environment_reward
    for turn in reversed(range(len(rewards) - 1)):
        rewards[turn] += discount * rewards[turn + 1]
    return torch.tensor(rewards, dtype=torch.float64)


def at_loss_tokens(advantages_K: Tensor, episode: Episode, credit: Credit) -> list[Tensor]:
    """Return the advantage of each loss token, (N,), for each trace that has some.

    Tokens without a turn have the advantage of the last turn. They belong to an answer that failed, with
    `on_failure="zero"`.
    """
    found: list[Tensor] = []
    for sample, trace in enumerate(episode.traces):
        turns = [place for place, turn in enumerate(episode.turns) if turn.sample == sample and credit == "turn"]
        counts = [episode.turns[place].num_tokens for place in turns]
        rest = trace.num_sampled - sum(counts)
        if trace.num_sampled:
            found.append(advantages_K[[*turns, -1]].repeat_interleave(torch.tensor([*counts, rest])))
    return found
