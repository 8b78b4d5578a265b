"""Checks of whole episodes: the contract, determinism, groups, and endings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.utils.env_checker import check_env

from ...envs.core import Environment, StopReason, ToolCall
from ...envs.episode import Episode
from ...envs.runtime.rows import own_copy
from ..terminal.output import one_line
from ..terminal.verdicts import Finding
from .subject import Subject, first_failure

SEEDS = (0, 1, 2)  # of random agents


def plays(subject: Subject) -> Finding:
    """Check that episodes of a silent and of a random agent do not fail, and that every environment closes."""
    episodes = subject.null_episodes + subject.random_episodes
    if failure := first_failure(episodes):
        return Finding("fail", f"an episode failed, in {failure}")
    for episode in episodes:
        if episode.close_failure is not None:
            return Finding("fail", f"the environment does not close: {episode.close_failure}")
    return Finding("pass", f"{len(episodes)} episodes of a silent and of a random agent")


class _WithTask(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Gymnasium's checker calls `reset` without a task."""

    def __init__(self, env: Any, row: Mapping[str, Any]) -> None:
        super().__init__(env)
        self._row = row

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.env.reset(seed=seed, options={"task": own_copy(self._row), **(options or {})})


def gymnasium_contract(subject: Subject) -> Finding:
    """Let Gymnasium's own checker try the environment."""
    with subject.made() as environment, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check_env(_WithTask(environment, subject.rows[0]), skip_render_check=True, skip_close_check=True)
        except Exception as error:
            said = f"gymnasium.utils.env_checker: {type(error).__name__}: {one_line(error, 200)}"
            return Finding("fail", said)
    return Finding("pass", "gymnasium.utils.env_checker has no objection")


def deterministic(subject: Subject) -> Finding:
    """Check that the same seed and the same answers give the same episode."""
    for seed in SEEDS:
        difference = _difference(subject.play(subject.random(seed)), subject.play(subject.random(seed)))
        if difference:
            advice = (
                f"{difference}; draw from self.np_random, which reset seeds, and from nothing else, and let reset undo "
                f"what an episode leaves in the class, in globals, in files and in servers"
            )
            return Finding("fail", advice)
    return Finding("pass", "the same seed and answers gave the same episodes")


def group_members_begin_alike(subject: Subject) -> Finding:
    """Check that the members of a group see the same prompt and tools: their rewards are compared."""
    episodes = subject.play(subject.random(), tasks=slice(4), members=2)
    for first, second in zip(episodes[::2], episodes[1::2], strict=True):
        if (first.first_messages, first.tools) != (second.first_messages, second.tools):
            what = "tools" if first.first_messages == second.first_messages else "prompts"
            task = first.spec.task.id
            return Finding(
                "fail", f"two episodes of {task} begin with different {what}; reset must depend on task and seed"
            )
    # Not the seed: it may decide only what comes later, such as the slips on a frozen lake.
    tasks = {str({column: value for column, value in row.items() if column != "seed"}) for row in subject.rows[:4]}
    if len({str(episode.first_messages) for episode in episodes}) == 1 and len(tasks) > 1:
        advice = (
            "different tasks begin with the same prompt: does reset read the row? Equal prompts are right if the model "
            "must find the task out, as in a guessing game"
        )
        return Finding("warn", advice)
    return Finding("pass", "the members of a group begin alike")


def episodes_are_apart(subject: Subject) -> Finding:
    """Check that episodes that are played at the same time do not change one another."""
    if len(subject.rows) < 2:
        return Finding("skip", "one task alone has no episode beside it: give more rows, or a larger --num-tasks")
    for seed in SEEDS:
        tasks = range(min(4, len(subject.rows)))
        alone = [subject.play(subject.random(seed), tasks=slice(task, task + 1))[0] for task in tasks]
        difference = _difference(alone, subject.play(subject.random(seed)))
        if difference:
            shared = "do episodes share a class attribute, a file, a server or a global?"
            return Finding("fail", f"{difference}, alone and beside others; {shared}")
    return Finding("pass", "an episode is the same alone and beside others")


def _difference(some: Sequence[Episode], others: Sequence[Episode]) -> str | None:
    for one, other in zip(some, others, strict=False):
        if one.failure is not None or other.failure is not None:
            continue  # `plays` names it
        for place, (first, second) in enumerate(zip(one.messages, other.messages, strict=False)):
            if first != second:
                contents = [one_line(repr(message.get("content")), 60) for message in (first, second)]
                return f"message {place} of {one.spec.task.id} differs: {' and '.join(contents)}"
        if (one.reward, one.stop, len(one.messages)) != (other.reward, other.stop, len(other.messages)):
            ends = [f"reward {episode.reward}, {episode.stop}" for episode in (one, other)]
            return f"the end of {one.spec.task.id} differs: {' and '.join(ends)}"
    return None


def has_an_end(subject: Subject) -> Finding:
    """Check that some answer of the model ends the episode by the environment's will."""
    for episode in subject.oracle_episodes:
        if not episode.stop.is_termination:
            return Finding("fail", f"the oracle's episode of {episode.spec.task.id} ended with {episode.stop}")
    own = {StopReason.FINAL_ANSWER, StopReason.ENV_TERMINATED}
    if any(episode.stop in own for episode in [*subject.oracle_episodes, *subject.random_episodes]):
        return Finding("pass", "an episode came to the environment's own end")
    calls: list[ToolCall] = [
        {"function": {"name": tool["function"]["name"], "arguments": {}}} for tool in subject.tools
    ]
    if subject.after_reset(lambda core: isinstance(core, Environment) and any(map(core.is_final, calls))):
        return Finding("pass", "a final tool ends the episode")
    advice = "no answer ended an episode: mark a tool with @tool(final=True), or name it in final_tools"
    return Finding("warn", f"{advice}, or set self.terminated")
