"""Checks of whole episodes: the contract, determinism, groups, and endings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.utils.env_checker import check_env

from ...envs.core import Environment, StopReason, ToolCall
from ...envs.engine.rollout_engine import episode_specs
from ...envs.episode import Episode
from ...envs.registry import EnvironmentSource
from ...envs.runtime.rows import own_copy
from ..terminal.verdicts import Verdict
from .subject import Subject, first_failure

SEEDS = (0, 1, 2)  # of random agents


def plays(subject: Subject) -> Verdict:
    """Episodes of a silent and of a random agent do not fail, and every environment closes."""
    episodes = subject.null_episodes + subject.random_episodes
    failure = first_failure(episodes)
    if failure is not None:
        return Verdict("plays", "fail", f"an episode failed, in {failure}")
    for episode in episodes:
        if episode.close_failure is not None:
            return Verdict("plays", "fail", f"the environment does not close: {episode.close_failure}")
    return Verdict("plays", "pass", f"{len(episodes)} episodes of a silent and of a random agent")


class _WithTask(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Gymnasium's checker calls `reset` without a task."""

    def __init__(self, env: Any, row: Mapping[str, Any]) -> None:
        super().__init__(env)
        self._row = row

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.env.reset(seed=seed, options={"task": own_copy(self._row), **(options or {})})


def gymnasium_contract(subject: Subject) -> Verdict:
    """Gymnasium's own checker passes."""
    name = "gymnasium contract"
    [spec] = episode_specs(subject.rows[:1], group_size=1, seed=0)
    environment = EnvironmentSource.of(subject.environment).create(spec)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check_env(_WithTask(environment, spec.task.row), skip_render_check=True, skip_close_check=True)
    except Exception as error:
        return Verdict(name, "fail", f"gymnasium.utils.env_checker: {type(error).__name__}: {_line(error)}")
    finally:
        environment.close()
    return Verdict(name, "pass", "gymnasium.utils.env_checker has no objection")


def _line(error: object) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:197] + "..."


def deterministic(subject: Subject) -> Verdict:
    """The same seed and the same answers give the same episode."""
    for seed in SEEDS:
        difference = _difference(subject.play(subject.random(seed)), subject.play(subject.random(seed)))
        if difference:
            advice = (
                f"{difference}; draw from self.np_random, which reset seeds, and from nothing else, and let reset undo "
                f"what an episode leaves in the class, in globals, in files and in servers"
            )
            return Verdict("deterministic", "fail", advice)
    return Verdict("deterministic", "pass", "the same seed and answers gave the same episodes")


def group_members_begin_alike(subject: Subject) -> Verdict:
    """Members of a group see the same prompt and tools: their rewards are compared."""
    name = "groups"
    episodes = subject.play(subject.random(), tasks=slice(4), members=2)
    for first, second in zip(episodes[::2], episodes[1::2], strict=True):
        if (first.first_messages, first.tools) != (second.first_messages, second.tools):
            what = "tools" if first.first_messages == second.first_messages else "prompts"
            advice = (
                f"two episodes of {first.spec.task.id} begin with different {what}; reset must depend on task and seed"
            )
            return Verdict(name, "fail", advice)
    # Not the seed: it may decide only what comes later, such as the slips on a frozen lake.
    tasks = {str({column: value for column, value in row.items() if column != "seed"}) for row in subject.rows[:4]}
    if len({str(each.first_messages) for each in episodes}) == 1 and len(tasks) > 1:
        advice = (
            "different tasks begin with the same prompt: does reset read the row? Equal prompts are right if the model "
            "must find the task out, as in a guessing game"
        )
        return Verdict(name, "warn", advice)
    return Verdict(name, "pass", "the members of a group begin alike")


def episodes_are_apart(subject: Subject) -> Verdict:
    """Episodes that are played at the same time do not change one another."""
    for seed in SEEDS:
        tasks = range(min(4, len(subject.rows)))
        alone = [subject.play(subject.random(seed), tasks=slice(each, each + 1))[0] for each in tasks]
        difference = _difference(alone, subject.play(subject.random(seed)))
        if difference:
            shared = "do episodes share a class attribute, a file, a server or a global?"
            advice = f"{difference}, alone and beside others; {shared}"
            return Verdict("episodes are apart", "fail", advice)
    return Verdict("episodes are apart", "pass", "an episode is the same alone and beside others")


def _difference(some: Sequence[Episode], others: Sequence[Episode]) -> str | None:
    for one, other in zip(some, others, strict=False):
        if one.failure is not None or other.failure is not None:
            continue  # `plays` names it
        for place, (first, second) in enumerate(zip(one.messages, other.messages, strict=False)):
            if first != second:
                return f"message {place} of {one.spec.task.id} differs: {_short(first)} and {_short(second)}"
        if (one.reward, one.stop, len(one.messages)) != (other.reward, other.stop, len(other.messages)):
            ends = [f"reward {each.reward}, {each.stop}" for each in (one, other)]
            return f"the end of {one.spec.task.id} differs: {' and '.join(ends)}"
    return None


def _short(message: Any) -> str:
    text = repr(message.get("content"))
    return text if len(text) <= 60 else text[:57] + "..."


def has_an_end(subject: Subject) -> Verdict:
    """Some answer of the model ends the episode by the environment's will."""
    name = "terminal signal"
    if subject.oracle_episodes:
        cut = [each for each in subject.oracle_episodes if not each.stop.is_termination]
        if cut:
            return Verdict(name, "fail", f"the oracle's episode of {cut[0].spec.task.id} ended with {cut[0].stop}")
    episodes = [*subject.oracle_episodes, *subject.random_episodes]
    own = {StopReason.FINAL_ANSWER, StopReason.ENV_TERMINATED}
    if any(each.stop in own for each in episodes):
        return Verdict(name, "pass", "an episode came to the environment's own end")
    calls: list[ToolCall] = [
        {"function": {"name": each["function"]["name"], "arguments": {}}} for each in subject.tools
    ]
    if subject.after_reset(lambda core: isinstance(core, Environment) and any(map(core.is_final, calls))):
        return Verdict(name, "pass", "a final tool ends the episode")
    advice = "no answer ended an episode: mark a tool with @tool(final=True), or name it in final_tools"
    return Verdict(name, "warn", f"{advice}, or set self.terminated")
