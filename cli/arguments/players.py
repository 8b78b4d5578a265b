"""The model of an evaluation: one that a server offers, one that is loaded here, or a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...envs.engine.play_episode import EpisodeLimits
from ...envs.engine.rollout_engine import RolloutEngine
from ...envs.episode import Episode, EpisodeSpec
from ...envs.policies.openai_policy import OpenAIPolicy
from ...envs.policy import Policy
from ...envs.registry import EnvironmentLike
from ...envs.runtime.threads import run_in_loop
from ..terminal.exits import CommandError
from .references import load_policy

Keep = Callable[[Episode], None]
PlayAll = Callable[[Sequence[EpisodeSpec], Keep], object]
"""Plays episodes, and calls the function with each as soon as it is over."""


class Player(NamedTuple):
    """The model of an evaluation, with its environment."""

    play: PlayAll
    describe: Callable[[], str]  # where the episodes in flight are


def choose_player(
    environment: EnvironmentLike,
    rows: Sequence[dict[str, Any]],
    *,
    model: str | None,
    url: str | None,
    policy: str | None,
    request: str | None,
    temperature: float | None,
    max_tokens: int | None,
    max_turns: int | None,
    concurrency: int,
    requests_per_minute: float | None,
) -> Player:
    """The player that the options of `gymnast eval` describe.

    Raises:
        CommandError: they describe several, or none.
    """
    if (model is None) == (policy is None) or (policy is not None and url is not None):
        raise CommandError("give --model NAME (and --url for a model of a server), or --policy SCRIPT")
    if url is None and (request is not None or requests_per_minute is not None):
        raise CommandError("--request and --requests-per-minute are for a server: give its --url")
    limits = EpisodeLimits(max_turns=max_turns)
    if policy is not None:
        return _player(load_policy(policy), environment, limits, concurrency)
    assert model is not None
    if url is None:
        from ...trainer.setup.local_player import local_player  # loads PyTorch

        player = local_player(
            model, environment, rows, limits=limits, max_turn_tokens=max_tokens, max_concurrency=concurrency
        )
        play: PlayAll = lambda specs, keep: player.run(specs, temperature=temperature, on_episode=keep)  # noqa: E731
        return Player(play, player.engine.whereabouts.describe)
    options = _json_object(request) | _given(temperature=temperature, max_tokens=max_tokens)
    served = OpenAIPolicy(model, base_url=url, requests_per_minute=requests_per_minute, **options)
    return _player(served, environment, limits, concurrency)


def _player(policy: Policy, environment: EnvironmentLike, limits: EpisodeLimits, concurrency: int) -> Player:
    engine = RolloutEngine(environment, policy, limits=limits, max_concurrency=concurrency)

    async def play(specs: Sequence[EpisodeSpec], keep: Keep) -> None:
        try:
            await engine.run(specs, keep)
        finally:
            if isinstance(policy, OpenAIPolicy):
                await policy.aclose()

    return Player(lambda specs, keep: run_in_loop(play(specs, keep)), engine.whereabouts.describe)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _json_object(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise CommandError(f"--request is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CommandError(f"--request must be a JSON object, got {text}")
    return value
