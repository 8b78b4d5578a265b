"""Episodes and token traces made by hand."""

from __future__ import annotations

import random

from gymnast.envs.core import StopReason
from gymnast.envs.engine.rollout_engine import episode_specs
from gymnast.envs.episode import Episode, EpisodeSpec, Failure
from gymnast.envs.tokens import Tokens, TokenTrace

PAD = 0


def trace_of(rng: random.Random, *, sampled: int | None = None) -> TokenTrace:
    """A trace of some turns. Sampled tokens have ids from 1000 on, all others below."""
    trace = TokenTrace(prompt_ids=[rng.randrange(1, 500) for _ in range(rng.randrange(1, 12))])
    for _ in range(rng.randrange(1, 4)):
        count = rng.randrange(1, 9) if sampled is None else sampled
        trace.append_sampled([rng.randrange(1000, 2000) for _ in range(count)], [-rng.random() for _ in range(count)])
        trace.append_observation(Tokens([rng.randrange(500, 900) for _ in range(rng.randrange(5))]))
    return trace


def episode(spec: EpisodeSpec, *, reward: float | None = 1.0, sampled: int = 3) -> Episode:
    trace = trace_of(random.Random(spec.member), sampled=sampled)
    return Episode(spec=spec, stop=StopReason.FINAL_ANSWER, reward=reward, traces=[trace])


def failed(spec: EpisodeSpec, error: BaseException | None = None) -> Episode:
    try:
        raise error or ValueError("the tool broke")
    except BaseException as caught:
        return Episode(spec=spec, failure=Failure.of("step", caught), traces=[trace_of(random.Random(0))])


def specs(groups: int = 2, members: int = 3) -> list[EpisodeSpec]:
    return episode_specs([{"n": n} for n in range(groups)], group_size=members, seed=0)
