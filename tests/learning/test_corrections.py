"""Corrections of the mismatch between sampler and trainer, compared with TRL's and with their formulas."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gymnast.envs.core import StopReason
from gymnast.envs.engine.rollout_engine import episode_specs
from gymnast.envs.episode import Episode
from gymnast.envs.tokens import TokenTrace
from gymnast.trainer import GRPOConfig, RLOOConfig
from gymnast.trainer.learning.advantages import this_process_only
from gymnast.trainer.learning.corrections import CORRECTIONS, mismatch_metrics
from gymnast.trainer.learning.losses import LossInputs
from gymnast.trainer.learning.samples import samples_of
from gymnast.trainer.learning.scoring import Scorer
from gymnast.trainer.options.derived import learning_settings
from gymnast.trainer.run_log.metrics import Metrics

from . import rows
from .rows import SETTINGS, VOCABULARY, make_model

MASK_BT = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0, 1, 0, 1, 0]])
ADVANTAGES_BT = torch.tensor([[1.0], [-2.0], [0.5]]).expand(3, 5)


def inputs_with_mismatch(**changes: Any) -> LossInputs:
    numbers = torch.Generator().manual_seed(0)
    logprobs_BT = -torch.rand(3, 5, generator=numbers) - 0.1
    inputs = LossInputs(
        logprobs_BT=logprobs_BT.requires_grad_(),
        old_logprobs_BT=logprobs_BT.detach() + 0.1 * torch.randn(3, 5, generator=numbers),
        mask_BT=MASK_BT,
        advantages_BT=ADVANTAGES_BT,
        sampling_logprobs_BT=logprobs_BT.detach() - 3 * torch.randn(3, 5, generator=numbers),
    )
    return replace(inputs, **changes)


def loss_of(inputs: LossInputs, correction: str, loss_type: str = "dapo") -> tuple[Tensor, dict[str, Tensor]]:
    bounds = CORRECTIONS[correction].bounds
    return rows.loss_of(inputs, loss_type, correction=correction, correction_bounds=bounds)


def weighted_gradient(inputs: LossInputs, weights_BT: Tensor) -> Tensor:
    """The gradient of the uncorrected loss, with a weight for each token: terms of `dapo` are independent."""
    loss, _ = loss_of(inputs, "none")
    (gradient_BT,) = torch.autograd.grad(loss, inputs.logprobs_BT)
    return gradient_BT * weights_BT


def ratios(inputs: LossInputs) -> Tensor:
    assert inputs.old_logprobs_BT is not None
    assert inputs.sampling_logprobs_BT is not None
    return (inputs.old_logprobs_BT - inputs.sampling_logprobs_BT).exp()


def sequence_ratios(inputs: LossInputs) -> Tensor:
    return (ratios(inputs).log() * MASK_BT).sum(dim=1, keepdim=True).exp()


FORMULAS = {
    "tis": lambda inputs: ratios(inputs).clamp(max=2.0),
    "sequence_tis": lambda inputs: sequence_ratios(inputs).clamp(max=5.0),
    "icepop": lambda inputs: ratios(inputs) * ((ratios(inputs) >= 0.5) & (ratios(inputs) <= 5.0)),
    "decoupled": ratios,
    "behaviour_clip": lambda inputs: (
        ratios(inputs)
        * ((inputs.logprobs_BT.detach().exp() - inputs.sampling_logprobs_BT.exp()) * ADVANTAGES_BT.sign() <= 0.2)
    ),
}


@pytest.mark.parametrize("correction", FORMULAS)
def test_terms_are_weighed_by_the_formula(correction: str) -> None:
    inputs = inputs_with_mismatch()
    weights_BT = FORMULAS[correction](inputs)
    loss, stats = loss_of(inputs, correction)
    (gradient_BT,) = torch.autograd.grad(loss, inputs.logprobs_BT)
    torch.testing.assert_close(gradient_BT, weighted_gradient(inputs, weights_BT))
    on = MASK_BT.bool()
    raw_BT = sequence_ratios(inputs) if correction == "sequence_tis" else ratios(inputs)
    is_cut = ~torch.isclose(weights_BT, raw_BT).expand(on.shape)[on]
    assert stats["mismatch/cut"] == pytest.approx(is_cut.float().mean().item())
    assert is_cut.any() == (correction != "decoupled")


@pytest.mark.parametrize("old", [None, 0.25])
def test_behaviour_clip_multiplies_by_the_ratio_to_the_sampler_once(old: float | None) -> None:
    """mu = 0.2 and pi = 0.3: the gradient is 1.5 times the advantage, on-policy and in the second step of a round."""
    logprobs_BT = torch.full((3, 5), 0.3).log().requires_grad_()
    inputs = LossInputs(
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=None if old is None else torch.full((3, 5), old).log(),
        mask_BT=MASK_BT,
        advantages_BT=ADVANTAGES_BT.abs(),
        sampling_logprobs_BT=torch.full((3, 5), 0.2).log(),
    )
    (gradient_BT,) = torch.autograd.grad(loss_of(inputs, "behaviour_clip")[0], logprobs_BT)
    torch.testing.assert_close(gradient_BT, -1.5 * inputs.advantages_BT * MASK_BT / MASK_BT.sum())


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_masked_tokens_and_no_mismatch_change_nothing(correction: str) -> None:
    inputs = inputs_with_mismatch()
    same = replace(inputs, old_logprobs_BT=None, sampling_logprobs_BT=inputs.logprobs_BT.detach())
    loss, _ = loss_of(same, correction)
    plain, _ = loss_of(replace(same, sampling_logprobs_BT=None), correction)
    torch.testing.assert_close(loss, plain)
    assert same.sampling_logprobs_BT is not None
    junk = replace(same, sampling_logprobs_BT=same.sampling_logprobs_BT.masked_fill(MASK_BT == 0, math.nan))
    assert torch.equal(loss_of(junk, correction)[0], loss)


def test_a_huge_mismatch_stays_finite() -> None:
    inputs = inputs_with_mismatch(sampling_logprobs_BT=torch.full((3, 5), -500.0))
    for correction in CORRECTIONS:
        loss, stats = loss_of(inputs, correction)
        assert loss.isfinite(), correction
        assert all(value.isfinite() for value in stats.values()), correction


def flushed(*processes: list[list[float]]) -> dict[str, float]:
    """The metrics of pi/mu of some tokens: those of each micro-batch of each process."""
    metrics = [Metrics() for _ in processes]
    for process, parts in zip(metrics, processes, strict=True):
        for part in parts:
            process.add(mismatch_metrics(torch.tensor(part).log()), weight=len(part))
        process.finish_step()
    first, *others = metrics
    return first.flush(lambda mine: [*mine, *(other.pending() for other in others)])


def test_mismatch_metrics() -> None:
    assert flushed([[1.0] * 7]) == {"mismatch/kl": 0, "mismatch/ess": 1}
    assert flushed([[1.0, 3.0]]) == {
        "mismatch/ess": pytest.approx((1 + 3) ** 2 / (2 * (1 + 9))),
        "mismatch/kl": pytest.approx((0 + (3 - 1 - math.log(3.0))) / 2),
    }
    assert flushed([[0.0]])["mismatch/ess"] == 0


@pytest.mark.parametrize("parts", [([[1.0], [3.0, 3.0]],), ([[1.0, 3.0]], [[3.0]]), ([[3.0]], [[3.0], [1.0]])], ids=str)
def test_mismatch_metrics_do_not_depend_on_micro_batches_and_processes(parts: Any) -> None:
    assert flushed(*parts) == pytest.approx(flushed([[1.0, 3.0, 3.0]]), rel=1e-6)


# Sequences that leave.


def episodes(members: int) -> list[Episode]:
    numbers = torch.Generator().manual_seed(3)
    made = []
    for spec in episode_specs([{"n": 0}], group_size=members, seed=0):
        trace = TokenTrace(prompt_ids=[3, 4])
        ids = torch.randint(3, VOCABULARY, (4,), generator=numbers).tolist()
        trace.append_sampled(ids, [0.0] * 4)
        made.append(Episode(spec=spec, stop=StopReason.FINAL_ANSWER, reward=float(spec.member**2), traces=[trace]))
    return made


def scorer(correction: str) -> Scorer:
    settings = SETTINGS.changed(correction=correction, correction_bounds=CORRECTIONS[correction].bounds)
    return Scorer(model=make_model(), settings=settings, reference=None, gather=this_process_only)


def with_exact_logprobs(group: list[Episode]) -> list[Episode]:
    """The episodes with log-probabilities as if the trainer's own model had sampled them."""
    made = scorer("none")
    for episode in group:
        [(logprobs_T, _)] = made._logprobs(made.model, None, samples_of(episode))
        episode.traces[0].logprobs[:] = logprobs_T.tolist()
    return group


def test_a_rejected_episode_does_not_count_in_the_baseline() -> None:
    group = with_exact_logprobs(episodes(4))
    group[3].traces[0].logprobs[:] = [value - 0.5 for value in group[3].traces[0].logprobs]
    kept, metrics = scorer("geometric_mask")([group])
    without, _ = scorer("geometric_mask")([group[:3]])
    assert metrics["mismatch/rejected"] == (0.25, 4)
    assert [sample.completion_ids for [sample] in kept] == [sample.completion_ids for [sample] in without]
    for [sample], [other] in zip(kept, without, strict=True):
        assert sample.advantages is not None
        assert other.advantages is not None
        assert torch.equal(sample.advantages, other.advantages)


def test_a_group_of_one_goes_with_those_that_were_rejected() -> None:
    group = with_exact_logprobs(episodes(2))
    group[0].traces[0].logprobs[:] = [value + 0.5 for value in group[0].traces[0].logprobs]
    assert scorer("geometric_mask")([group])[0] == []


# Options.


def test_vllm_is_corrected_by_default_where_log_probabilities_are_comparable(tmp_path: Path) -> None:
    def chosen(kind: Any = GRPOConfig, **options: Any) -> str:
        args = kind(output_dir=str(tmp_path), use_cpu=True, report_to=[], **options)
        return learning_settings(args).correction

    assert chosen() == "none"
    assert chosen(generator="vllm-server") == "tis"
    assert chosen(RLOOConfig, generator="vllm-server") == "sequence_tis"
    assert chosen(generator="vllm-server", top_p=0.9) == "none"
    assert chosen(generator="vllm-server", correction="icepop") == "icepop"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"correction": "tiss"}, "one of none, tis,.*'tiss'"),
        ({"correction": "tis", "top_p": 0.9}, "got 0.9, 0 and 0.0"),
        ({"correction": "tis", "top_k": 5}, "correction='tis' needs top_p=1, top_k=0 and min_p=0, got 1.0, 5 and 0.0"),
        ({"correction": "icepop", "loss_type": "rloo"}, "'icepop' needs a term for each token, .*'rloo'"),
        ({"correction": "icepop", "correction_min": 6.0}, "correction_min.*6.0 and 5.0"),
        ({"correction_max": 3.0}, "correction_max=3.0 needs a correction, and there is none"),
    ],
)
def test_options_that_do_not_go_together_are_errors(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, report_to=[], **options)
