"""The model of an evaluation: one that a server offers, one that is loaded here, or a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...envs.engine.play_episode import EpisodeLimits
from ...envs.engine.rollout_engine import RolloutEngine
from ...envs.episode import Episode, EpisodeSpec
from ...envs.policies.openai_policy import OpenAIPolicy
from ...envs.registry import EnvironmentLike
from ...envs.runtime.threads import run_in_loop
from ..terminal.exits import CommandError
from .references import load_policy

Keep = Callable[[Episode], None]


class Evaluator(NamedTuple):
    """Plays the episodes of an evaluation."""

    play: Callable[[Sequence[EpisodeSpec], Keep], object]  # calls `Keep` with an episode as soon as it is over
    describe: Callable[[], str]  # returns where the episodes in flight are
    decode: Callable[[int], str] = str  # returns the text of a token id, where the model's tokens are known


def choose_evaluator(
    environment: EnvironmentLike,
    rows: Sequence[dict[str, Any]],
    *,
    model: str | None,
    url: str | None,
    policy: str | None,
    request: str | None,
    tool_format: str | None,
    temperature: float | None,
    max_tokens: int | None,
    max_turns: int | None,
    concurrency: int,
    requests_per_minute: float | None,
) -> Evaluator:
    """Return the evaluator that the options of `gymnast eval` describe."""
    if (model is None) == (policy is None) or (policy is not None and url is not None):
        raise CommandError("give --model NAME (and --url for a model of a server), or --policy SCRIPT, and not both")
    if url is None and (request is not None or requests_per_minute is not None):
        raise CommandError("--request and --requests-per-minute are for a server: give its --url")
    if policy is not None and (temperature is not None or max_tokens is not None):
        raise CommandError("--temperature and --max-tokens are for a model: a script of --policy has no tokens")
    if tool_format is not None and (model is None or url is not None):
        raise CommandError("--tool-format is for a model that is loaded here: a server reads calls itself")
    limits = EpisodeLimits(max_turns=max_turns)
    if policy is not None:
        answers = load_policy(policy)
    else:
        assert model is not None
        if url is None:
            from ...trainer.setup.local_player import local_player  # loads PyTorch

            player = local_player(
                model,
                environment,
                rows,
                limits=limits,
                max_turn_tokens=max_tokens,
                max_concurrency=concurrency,
                tool_format=tool_format,
            )
            return Evaluator(
                lambda specs, keep: player.run(specs, temperature=temperature, on_episode=keep),
                player.engine.whereabouts.describe,
                lambda token: str(player.policy.chat.tokenizer.decode([token])),
            )
        options = {"temperature": temperature, "max_tokens": max_tokens}
        given = _json_object(request) | {name: value for name, value in options.items() if value is not None}
        answers = OpenAIPolicy(model, base_url=url, requests_per_minute=requests_per_minute, **given)
    engine = RolloutEngine(environment, answers, limits=limits, max_concurrency=concurrency)

    async def play(specs: Sequence[EpisodeSpec], keep: Keep) -> None:
        try:
            await engine.run(specs, keep)
        finally:
            if isinstance(answers, OpenAIPolicy):
                await answers.aclose()

    return Evaluator(lambda specs, keep: run_in_loop(play(specs, keep)), engine.whereabouts.describe)


def _json_object(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise CommandError(f"--request is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CommandError(f"--request must be a JSON object, got {text}")
    return value
