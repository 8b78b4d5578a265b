"""An episode of several samples counts once: it has the same gradient as in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gymnast.envs.core import StopReason
from gymnast.envs.engine.rollout_engine import episode_specs
from gymnast.envs.episode import Episode
from gymnast.envs.tokens import Tokens, TokenTrace
from gymnast.trainer.learning.advantages import this_process_only
from gymnast.trainer.learning.corrections import CORRECTIONS
from gymnast.trainer.learning.losses import LOSSES, StepCounts
from gymnast.trainer.learning.objective import objective
from gymnast.trainer.learning.samples import Batch, EpisodeSamples, samples_of
from gymnast.trainer.learning.scoring import Scorer
from gymnast.trainer.models.reference import Reference

from .rows import SETTINGS, VOCABULARY, make_model

OF_SEQUENCES = ("gspo", "gspo_token", "rloo")


def whole(members: int = 4) -> list[Episode]:
    """A group of episodes of one trace each: three answers of different lengths, and two observations."""
    numbers = torch.Generator().manual_seed(5)

    def tokens(count: int) -> list[int]:
        return torch.randint(3, VOCABULARY, (count,), generator=numbers).tolist()

    made = []
    for spec in episode_specs([{"n": 0}], group_size=members, seed=0):
        trace = TokenTrace(prompt_ids=tokens(3))
        for turn in range(3):
            length = 1 + (spec.member + 2 * turn) % 4
            trace.append_sampled(tokens(length), [-1.0 - turn / 8] * length)
            if turn < 2:
                trace.append_observation(Tokens(tokens(2)))
        made.append(Episode(spec=spec, stop=StopReason.FINAL_ANSWER, reward=float(spec.member**2), traces=[trace]))
    return made


def cut(episode: Episode) -> Episode:
    """The same tokens, with a trace for each answer; its prompt is everything before the answer."""
    [trace] = episode.traces
    parts: list[TokenTrace] = []
    for place, (token, logprob) in enumerate(zip(trace.completion_ids, trace.logprobs, strict=True)):
        if not trace.mask[place]:
            continue
        if not place or not trace.mask[place - 1]:
            parts.append(TokenTrace(prompt_ids=trace.prompt_ids + trace.completion_ids[:place]))
        parts[-1].append_sampled([token], [logprob])
    assert len(parts) == 3
    return replace(episode, traces=parts)


def score(episodes: list[Episode], **changes: Any) -> list[EpisodeSamples]:
    settings = SETTINGS.changed(**changes)
    reference = Reference(make_model(1)) if settings.beta else None
    scorer = Scorer(model=make_model(), settings=settings, reference=reference, gather=this_process_only)
    return scorer([episodes])[0]


def gradient(episodes: list[Episode], *, weights: int = 0, **changes: Any) -> dict[str, Tensor]:
    """The gradient of a step on these episodes; `weights` other than 0 differ from those that sampled."""
    batch = Batch.of(score(episodes, **changes), settings := SETTINGS.changed(**changes))
    counts = StepCounts(
        loss_tokens=batch.loss_tokens, sequences=batch.sequences, batch_loss_tokens=0, batches=1, processes=1
    )
    model: nn.Module = make_model(weights)
    for micro_batch in batch.micro_batches:
        objective(model, micro_batch, settings, counts)[0].backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_equal(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert max(tensor.abs().max().item() for tensor in expected.values()) > 1e-3
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("max_tokens", [None, 30])
@pytest.mark.parametrize("loss_type", LOSSES)
def test_a_cut_episode_has_the_gradient_of_the_whole_one(loss_type: str, max_tokens: int | None) -> None:
    options = {"loss_type": loss_type, "max_tokens_per_batch": max_tokens}
    mixed = [cut(episode) if episode.spec.member % 2 else episode for episode in whole()]
    assert_equal(gradient(mixed, **options), gradient(whole(), **options))


@pytest.mark.parametrize("loss_type", sorted({*LOSSES} - {*OF_SEQUENCES, "reinforce"}))
def test_that_also_holds_off_policy_where_each_token_has_a_ratio(loss_type: str) -> None:
    options = {"loss_type": loss_type, "is_on_policy": False, "weights": 2}
    assert_equal(gradient([*map(cut, whole())], **options), gradient(whole(), **options))


def test_the_divergence_from_the_reference_is_charged_once_for_an_episode() -> None:
    options = {"advantage_estimator": "rloo", "loss_type": "rloo", "kl_in": "reward", "beta": 0.1}
    found = [
        [first_advantage(episode) for episode in score(made, **options)] for made in (whole(), [*map(cut, whole())])
    ]
    assert found[0] != [first_advantage(item) for item in score(whole(), advantage_estimator="rloo")]
    assert found[1] == pytest.approx(found[0])


def test_a_correction_rejects_all_samples_of_an_episode() -> None:
    """The last answer alone is within the bounds of the correction; the episode is not."""
    episodes = whole(3)
    for episode, samples in zip(episodes, score(episodes, is_on_policy=False), strict=True):
        assert samples[0].old_logprobs is not None
        episode.traces[0].logprobs[: len(samples[0].mask)] = samples[0].old_logprobs.tolist()
    trace = episodes[1].traces[0]
    trace.logprobs[0] += 1.0
    options = {"correction": "geometric_mask", "correction_bounds": CORRECTIONS["geometric_mask"].bounds}
    kept = score([*map(cut, episodes)], **options)
    assert [ids_of(samples) for samples in kept] == [ids_of(samples_of(cut(episodes[place]))) for place in (0, 2)]


def first_advantage(samples: EpisodeSamples) -> float:
    [value] = {
        round(sample.advantages.max().item() or sample.advantages.min().item(), 6)
        for sample in samples
        if sample.advantages is not None
    }
    return value


def ids_of(samples: Sequence[Any]) -> list[list[int]]:
    return [sample.completion_ids for sample in samples]
