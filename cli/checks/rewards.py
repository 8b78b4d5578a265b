"""Checks of rewards: their range and spread under scripted agents, and the agents that must not be rewarded."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...envs.episode import Episode
from ..terminal.verdicts import Finding
from .agents import reading_calls
from .subject import Subject


def _rewards(episodes: Sequence[Episode]) -> list[float]:
    return [episode.reward for episode in episodes if episode.reward is not None]


def null_agent_earns_nothing(subject: Subject) -> Finding:
    """Check that an agent that says nothing is not rewarded."""
    rewards = _rewards(subject.null_episodes)
    if rewards and max(rewards) > 0:
        row = next(episode.spec.task.id for episode in subject.null_episodes if (episode.reward or 0) > 0)
        advice = f"an agent that says nothing earns {np.mean(rewards):g} (in {row}): the model will learn silence"
        return Finding("fail", advice)
    return Finding("pass", "an agent that says nothing earns nothing")


def oracle_is_best(subject: Subject) -> Finding:
    """Check that the oracle earns more than the others, in every task."""
    if subject.oracle is None:
        return Finding("skip", "give a player that solves the tasks: --oracle file.py:name")
    oracle = _rewards(subject.oracle_episodes)
    if len(oracle) < len(subject.oracle_episodes):
        failed = next(episode for episode in subject.oracle_episodes if episode.reward is None)
        task, cause = failed.spec.task.id, failed.failure or failed.stop
        return Finding("fail", f"the oracle's episode of {task} has no reward: {cause}")
    others = _rewards(subject.null_episodes + subject.random_episodes)
    if not any(oracle) and not any(others):
        advice = "as scripted agents do: its answers are wrong, or no answer is rewarded"
        return Finding("fail", f"the oracle earns 0 in every task, {advice}")
    if others and np.mean(oracle) <= np.mean(others):
        means = f"{np.mean(oracle):g} on average, scripted agents {np.mean(others):g}"
        return Finding("fail", f"the oracle earns {means}: is the reward the right way up?")
    worst = min(range(len(oracle)), key=oracle.__getitem__)
    if oracle[worst] < max(oracle):
        task = subject.oracle_episodes[worst].spec.task.id
        return Finding("warn", f"the oracle earns {oracle[worst]:g} in {task}, and up to {max(oracle):g} elsewhere")
    return Finding("pass", f"the oracle earns {np.mean(oracle):g} in every task")


def rewards_differ(subject: Subject) -> Finding:
    """Check that different play earns different rewards: groups of equal rewards teach nothing."""
    again = subject.play(subject.random(1)) if len(set(_rewards(subject.random_episodes))) < 2 else []
    rewards = _rewards([*subject.null_episodes, *subject.random_episodes, *subject.oracle_episodes, *again])
    if not rewards:
        return Finding("warn", "the environment gives no reward: training needs reward functions")
    span = f"rewards from {min(rewards):g} to {max(rewards):g}, standard deviation {np.std(rewards):.3g}"
    if min(rewards) == max(rewards):
        advice = f"every scripted agent earns {rewards[0]:g}: if the model's episodes all do, it learns nothing"
        hint = "; does anything set self.reward, or does grade return one?" if rewards[0] == 0 else ""
        return Finding("warn", advice + hint)
    if max(map(abs, rewards)) > 100:
        return Finding("warn", f"{span}: so large a reward drowns others; scale it to about 1")
    return Finding("pass", span)


def files_are_out_of_reach(subject: Subject) -> Finding:
    """Check that no tool shows a file of this machine, or rewards the attempt."""
    secret = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="gymnast-check-") as folder:
        path = Path(folder, "secret.txt")
        path.write_text(secret)
        for call in [call for tool in subject.tools for call in reading_calls(str(path), tool)]:
            episode = subject.call(call)
            function: Any = call.get("tool_calls", [{}])[0].get("function")
            said = f"{function['name']}({function['arguments']})"
            if secret in str(episode.completion):
                advice = f"{said} shows a file of this machine: run code in a sandbox, and keep paths in a folder"
                return Finding("fail", advice)
            if (episode.reward or 0) > 0:
                return Finding("fail", f"{said} earns {episode.reward:g}, and nothing else was done")
    return Finding("pass", "no tool shows a file of this machine")
