"""Demonstrations for a tiny model: episodes of a player that solves the tasks, most of them with mistakes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...envs.core import Message, ToolSchema
from ...envs.engine.play_episode import EpisodeLimits
from ...envs.engine.rollout_engine import RolloutEngine
from ...envs.episode import Episode, EpisodeSpec
from ...envs.policy import Conversation, Policy, ScriptedPolicy
from ...envs.registry import EnvironmentLike
from ...envs.runtime.places import at_place
from ...envs.runtime.rows import own_copy

MAX_TASKS = 200
MISSING = 0.1  # of the wrong calls lack an argument; the model sees the error
GIVING_UP = "I do not know."


def demonstrations(
    environment: EnvironmentLike,
    rows: Sequence[Mapping[str, Any]],
    oracle: Policy,
    *,
    count: int = 500,
    success: float = 0.4,
    seed: int = 0,
) -> list[Episode]:
    """Return `count` episodes with the answers of the oracle, of which at most the share `success` earn what it earns.

    The oracle plays each task once. Its answers are then played again with one to three mistakes: an answer left out,
    or one with an argument of another call, or without an argument, in place of the right answer or before it. So a
    model that imitates the episodes is often wrong, and knows how to go on after an error. At most 200 tasks are
    played.

    Raises:
        ValueError: an episode of the oracle failed, or the oracle earns nothing in every task.
    """
    rng = random.Random(seed)
    rows = rows[:MAX_TASKS]
    limits = EpisodeLimits(max_turns=100)
    right = RolloutEngine(environment, oracle, limits=limits).play(rows, seed=seed)
    for episode in right:
        if (failure := episode.failure) is not None:
            place = at_place(failure.traceback)
            raise ValueError(f"the oracle's episode of {episode.spec.task.id} failed, in {failure}{place}")
    if not any(episode.reward for episode in right):
        raise ValueError("the oracle earns nothing in every task; `gymnast check` with --oracle looks for the reason")
    best = {episode.spec.task.id: episode for episode in right}
    erring = RolloutEngine(environment, _Erring(best, seed), limits=limits)
    copies = -(-2 * count // len(rows))
    episodes = erring.play(rows, group_size=copies, seed=seed)
    episodes = [episode for episode in episodes if episode.turns and episode.reward is not None]
    wrong, equal = list[Episode](), [*right]
    for episode in episodes:
        is_worse = (episode.reward or 0) < (best[episode.spec.task.id].reward or 0)
        (wrong if is_worse else equal).append(episode)
    wrong = rng.sample(wrong, k=min(len(wrong), round(count * (1 - success))))
    return [*wrong, *rng.choices(equal, k=count - len(wrong))]


@dataclass
class _Erring:
    """Plays what the oracle played, with mistakes."""

    best: Mapping[str, Episode]  # by the task's id
    seed: int

    def begin(self, spec: EpisodeSpec, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Conversation:
        rng = random.Random(f"{self.seed} {spec.seed}")
        answers = [turn.message for turn in self.best[spec.task.id].turns]
        last = answers[-1]
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(answers))
            mistake = rng.choice(("instead", "before", "left out"))
            if mistake == "before":
                answers.insert(place, self._wrong(answers[place], rng))
            elif mistake == "left out" and place < len(answers) - 1:
                del answers[place]
            else:
                answers[place] = self._wrong(answers[place], rng)
        # A mistake may leave the episode open: then the last answer comes once more, and the end.
        return ScriptedPolicy([*answers, last, GIVING_UP]).begin(spec, messages, tools)

    def _wrong(self, answer: Message, rng: random.Random) -> Message:
        """Return the answer with another argument in one of its calls; a text gives way to another text."""
        others = [turn.message for turn in rng.choice([*self.best.values()]).turns]
        answer = own_copy(answer)
        if not (calls := answer.get("tool_calls")):
            return rng.choice([other for other in others if not other.get("tool_calls")] or [answer])
        arguments: Any = rng.choice(calls)["function"]["arguments"]
        if arguments and isinstance(arguments, dict):
            name = rng.choice([*arguments])
            given = [call["function"]["arguments"] for other in others for call in other.get("tool_calls", ())]
            values = [found[name] for found in given if isinstance(found, dict) and name in found]
            if rng.random() < MISSING:
                del arguments[name]
            elif values:
                arguments[name] = rng.choice(values)
        return answer
