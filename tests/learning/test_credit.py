"""Credit: the advantages of tokens, from the rewards of turns and of whole episodes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gymnast.envs.core import StopReason
from gymnast.envs.engine.rollout_engine import episode_specs
from gymnast.envs.episode import Episode, Turn
from gymnast.envs.tokens import Tokens, TokenTrace
from gymnast.trainer.learning.advantages import this_process_only
from gymnast.trainer.learning.comparison import Comparison
from gymnast.trainer.learning.scoring import Scorer

from .rows import SETTINGS

GROUP = [  # (sampled tokens, reward) of each turn
    [(2, 0.0), (3, 1.0), (1, 0.5)],
    [(1, 0.25), (2, 0.0)],
    [(4, 1.0)],
]


def episodes(group: list[list[tuple[int, float]]], extra: float = 0.0) -> list[Episode]:
    """One group; a tool result of two tokens comes after each turn but the last, and `extra` after the end."""
    made = []
    for spec, turns in zip(episode_specs([{"n": 0}], group_size=len(group), seed=0), group, strict=True):
        trace, reward = TokenTrace(prompt_ids=[3, 4]), extra
        episode = Episode(spec=spec, stop=StopReason.FINAL_ANSWER, traces=[trace])
        for number, (tokens, step_reward) in enumerate(turns, start=1):
            trace.append_sampled([5] * tokens, [-1.0] * tokens)
            if number < len(turns):
                trace.append_observation(Tokens([6, 6]))
            message: Any = {"role": "assistant", "content": ""}
            episode.turns.append(Turn(message=message, reward=step_reward, num_tokens=tokens))
            reward += step_reward
        episode.reward = reward
        made.append(episode)
    return made


def advantages(group: list[Episode], **changes: Any) -> list[list[float]]:
    """The advantages of each member's tokens, those of all its samples in a row."""
    settings = SETTINGS.changed(**changes)
    scorer = Scorer(model=nn.Linear(1, 1), settings=settings, reference=None, gather=this_process_only)
    samples, _ = scorer([group])
    found: list[list[Any]] = [[sample.advantages for sample in samples_of_one] for samples_of_one in samples]
    return [torch.cat(answer).tolist() for answer in found]


def test_an_episode_is_judged_by_its_reward() -> None:
    first, second, third = (1.5, 0.25, 1.0)
    mean = (first + second + third) / 3
    found = advantages(episodes(GROUP))
    assert found[0] == pytest.approx([first - mean] * 2 + [0, 0] + [first - mean] * 3 + [0, 0] + [first - mean])
    assert found[1] == pytest.approx([second - mean] + [0, 0] + [second - mean] * 2)
    assert found[2] == pytest.approx([third - mean] * 4)


def test_a_turn_is_judged_by_its_discounted_return() -> None:
    """A turn is compared with the same turn of the members that have one; only the first member has a third turn."""
    returns = [[0 + 0.5 * (1 + 0.5 * 0.5), 1 + 0.5 * 0.5], [0.25, 0.0], [1.0]]
    first, second = sum(pair[0] for pair in returns) / 3, (returns[0][1] + returns[1][1]) / 2
    found = advantages(episodes(GROUP), credit="turn", discount=0.5)
    assert found[0] == pytest.approx([returns[0][0] - first] * 2 + [0, 0] + [returns[0][1] - second] * 3 + [0, 0] + [0])
    assert found[1] == pytest.approx([returns[1][0] - first] + [0, 0] + [returns[1][1] - second] * 2)
    assert found[2] == pytest.approx([returns[2][0] - first] * 4)


def test_each_turn_is_judged_in_its_own_sample() -> None:
    """The second turn is one of another line, and the third goes on with the first line."""
    whole, cut = episodes(GROUP), episodes(GROUP)
    first = TokenTrace(prompt_ids=[3, 4])
    first.append_sampled([5, 5], [-1.0, -1.0])
    first.append_observation(Tokens([6, 6]))
    first.append_sampled([5], [-1.0])
    second = TokenTrace(prompt_ids=[3])
    second.append_sampled([5, 5, 5], [-1.0, -1.0, -1.0])
    cut[0].traces = [first, second]
    cut[0].turns[1].sample = 1
    expected = advantages(whole, credit="turn")[0]
    assert advantages(cut, credit="turn")[0] == expected[:4] + expected[9:] + expected[4:7]


def test_a_turn_without_another_is_compared_where_the_baseline_is_that_of_the_batch() -> None:
    """No other member of its group has the last turns of the longest episode, which lost."""
    group = episodes([[(1, 0.0), (1, 0.0), (1, -1.0)], [(1, 1.0)], [(1, 1.0)]])
    options = {"advantage_estimator": "reinforce++", "normalize_advantages": True}
    found = advantages(group, credit="turn", **options)
    returns = torch.tensor([-1.0, -1.0, -1.0, 1.0, 1.0])
    expected = (returns - returns.mean()) / returns.std()
    assert [found[0][place] for place in (0, 3, 6)] == pytest.approx(expected[:3].tolist(), abs=1e-3)
    assert found[1] == pytest.approx([expected[3].item()], abs=1e-3)


def test_a_reward_at_the_end_reaches_every_turn() -> None:
    """Grades, reward functions and penalties count in the last turn; discounted, they are worth less earlier."""
    group = episodes([[(1, 0.0), (1, 0.0)], [(1, 0.0), (1, 0.0)]])
    group[0].reward = 1.0
    assert advantages(group, credit="turn") == [[0.5, 0, 0, 0.5], [-0.5, 0, 0, -0.5]]
    assert advantages(group, credit="turn", discount=0.5) == [[0.25, 0, 0, 0.5], [-0.25, 0, 0, -0.5]]


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "max_rl"])
@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_with_one_turn_each_both_ways_are_the_same(estimator: str, scale: str) -> None:
    group = episodes([[(2, 0.5)], [(3, 0.0)], [(1, 2.0)]], extra=1.0)
    options = {"advantage_estimator": estimator, "scale_rewards": scale}
    assert advantages(group, **options) == advantages(group, credit="turn", discount=0.5, **options)


@pytest.mark.parametrize(
    ("turns", "reward", "message"),
    [
        ([(1, 0.0)], -0.5, r"the mean reward, .*: \S+\[0\] has -0.5; change the rewards"),
        ([(1, 1.0), (1, 0.0)], 0.0, r"the mean return of a turn, .*: \S+\[0\] has -1; set credit='episode'"),
    ],
)
def test_max_rl_names_the_task_of_a_negative_return(turns: Any, reward: float, message: str) -> None:
    [episode] = episodes([turns])
    episode.reward = reward
    with pytest.raises(ValueError, match=message):
        Comparison(advantage_estimator="max_rl", credit="turn").check([episode])


def test_equal_turns_of_unequal_episodes_have_no_advantage() -> None:
    found = advantages(episodes([[(1, 0.0), (1, 0.7)], [(1, 1.0), (1, 0.7)]]), credit="turn", scale_rewards="group")
    assert [answer[3] for answer in found] == [0, 0]
    assert found[0][0] < 0 < found[1][0]


def test_tokens_of_a_failure_without_a_turn_have_the_advantage_of_the_last() -> None:
    """With on_failure="zero" an episode counts, even if its policy failed after it had sampled."""
    group = episodes([[(1, 1.0)], [(1, 1.0)], [(1, 0.0)]])
    for failed in group[1:]:
        failed.traces[0].append_sampled([7, 7], [-1.0, -1.0])
        failed.reward = 0.0
    group[2].turns.clear()
    assert advantages(group, credit="turn")[1:] == [pytest.approx([-1 / 3] * 3)] * 2
