"""Checks of rewards: their range and spread under scripted agents, and the agents that must not be rewarded."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...envs.episode import Episode
from ...envs.policy import ScriptedPolicy
from ..terminal.verdicts import Verdict
from .agents import reading_agent
from .subject import Subject


def _rewards(episodes: Sequence[Episode]) -> list[float]:
    return [episode.reward for episode in episodes if episode.reward is not None]


def null_agent_earns_nothing(subject: Subject) -> Verdict:
    """An agent that says nothing is not rewarded."""
    rewards = _rewards(subject.null_episodes)
    if rewards and max(rewards) > 0:
        row = next(episode.spec.task.id for episode in subject.null_episodes if (episode.reward or 0) > 0)
        advice = f"an agent that says nothing earns {np.mean(rewards):g} (in {row}): the model will learn silence"
        return Verdict("null agent", "fail", advice)
    return Verdict("null agent", "pass", "an agent that says nothing earns nothing")


def oracle_is_best(subject: Subject) -> Verdict:
    """The oracle earns more than the others, in every task."""
    if subject.oracle is None:
        return Verdict("oracle", "skip", "give a player that solves the tasks: --oracle file.py:name")
    oracle = _rewards(subject.oracle_episodes)
    if len(oracle) < len(subject.oracle_episodes):
        failed = next(episode for episode in subject.oracle_episodes if episode.reward is None)
        return Verdict(
            "oracle",
            "fail",
            f"the oracle's episode of {failed.spec.task.id} has no reward: {failed.failure or failed.stop}",
        )
    others = _rewards(subject.null_episodes + subject.random_episodes)
    if not any(oracle) and not any(others):
        advice = "as scripted agents do: its answers are wrong, or no answer is rewarded"
        return Verdict("oracle", "fail", f"the oracle earns 0 in every task, {advice}")
    if others and np.mean(oracle) <= np.mean(others):
        means = f"{np.mean(oracle):g} on average, scripted agents {np.mean(others):g}"
        advice = f"the oracle earns {means}: is the reward the right way up?"
        return Verdict("oracle", "fail", advice)
    worst = min(range(len(oracle)), key=oracle.__getitem__)
    if oracle[worst] < max(oracle):
        task = subject.oracle_episodes[worst].spec.task.id
        advice = f"the oracle earns {oracle[worst]:g} in {task}, and up to {max(oracle):g} elsewhere"
        return Verdict("oracle", "warn", advice)
    return Verdict("oracle", "pass", f"the oracle earns {np.mean(oracle):g} in every task")


def rewards_differ(subject: Subject) -> Verdict:
    """Different play earns different rewards: groups of equal rewards teach nothing."""
    again = subject.play(subject.random(1)) if len(set(_rewards(subject.random_episodes))) < 2 else []
    rewards = _rewards([*subject.null_episodes, *subject.random_episodes, *subject.oracle_episodes, *again])
    if not rewards:
        return Verdict("rewards", "warn", "the environment gives no reward: training needs reward functions")
    span = f"rewards from {min(rewards):g} to {max(rewards):g}, standard deviation {np.std(rewards):.3g}"
    if min(rewards) == max(rewards):
        advice = f"every scripted agent earns {rewards[0]:g}: if the model's episodes all do, it learns nothing"
        hint = "; does anything set self.reward, or does grade return one?" if rewards[0] == 0 else ""
        return Verdict("rewards", "warn", advice + hint)
    if max(map(abs, rewards)) > 100:
        return Verdict("rewards", "warn", f"{span}: so large a reward drowns others; scale it to about 1")
    return Verdict("rewards", "pass", span)


def files_are_out_of_reach(subject: Subject) -> Verdict:
    """No tool shows a file of this machine, or rewards the attempt."""
    secret = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="gymnast-check-") as folder:
        path = Path(folder, "secret.txt")
        path.write_text(secret)
        for call in [call for tool in subject.tools for call in reading_agent(str(path), tool)]:
            answers = iter([call])
            [episode] = subject.play(ScriptedPolicy(lambda messages, left=answers: next(left, "")), tasks=slice(1))
            function: Any = call.get("tool_calls", [{}])[0].get("function")
            said = f"{function['name']}({function['arguments']})"
            if secret in str(episode.completion):
                advice = f"{said} shows a file of this machine: run code in a sandbox, and keep paths in a folder"
                return Verdict("files", "fail", advice)
            if (episode.reward or 0) > 0:
                return Verdict("files", "fail", f"{said} earns {episode.reward:g}, and nothing else was done")
    return Verdict("files", "pass", "no tool shows a file of this machine")
