"""The losses by their formulas and their properties."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gymnast.trainer import LOSSES, LearningSettings, losses
from gymnast.trainer.learning.losses import LossInputs, StepCounts, clipped
from gymnast.trainer.learning.ratios import k3, kl_in_reward

from .rows import EPSILON_HIGH, EPSILON_LOW, MAX_COMPLETION, counts_of, loss_of


def random_inputs(seed: int = 0, **changes: Any) -> LossInputs:
    torch.manual_seed(seed)
    mask_BT = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0, 1, 0, 1, 0]])
    logprobs_BT = -torch.rand(3, 5)
    inputs = LossInputs(
        logprobs_BT=logprobs_BT.requires_grad_(),
        old_logprobs_BT=logprobs_BT.detach() + 0.4 * torch.randn(3, 5),
        mask_BT=mask_BT,
        advantages_BT=torch.tensor([[1.0], [-2.0], [0.5]]).expand(3, 5),
    )
    return replace(inputs, **changes)


def gradient_of_logprobs(loss: Tensor, inputs: LossInputs) -> Tensor:
    (gradient_BT,) = torch.autograd.grad(loss, inputs.logprobs_BT)
    return gradient_BT


def with_reference(loss_type: str, inputs: LossInputs) -> LossInputs:
    if LOSSES[loss_type].is_of_sequence:
        return inputs
    return replace(inputs, ref_logprobs_BT=inputs.logprobs_BT.detach() + 0.1)


def test_gspo_token_is_its_papers_formula() -> None:
    """Zheng et al. 2025, arXiv 2507.18071, equations 13 to 15: sg[s_i] * pi / sg[pi], clipped at each token."""
    inputs = random_inputs()
    assert inputs.old_logprobs_BT is not None
    total = torch.zeros(())
    for row in range(3):
        on = inputs.mask_BT[row].bool()
        logprobs_N, old_N = inputs.logprobs_BT[row, on], inputs.old_logprobs_BT[row, on]
        sequence_ratio = (logprobs_N - old_N).mean().exp().detach()
        ratio_N = sequence_ratio * (logprobs_N - logprobs_N.detach()).exp()
        clipped_N = ratio_N.clamp(1 - EPSILON_LOW, 1 + EPSILON_HIGH)
        advantage = inputs.advantages_BT[row, 0]
        total = total - torch.minimum(ratio_N * advantage, clipped_N * advantage).mean() / 3
    loss, _ = loss_of(inputs, "gspo_token")
    gradient_BT = gradient_of_logprobs(loss, inputs)
    torch.testing.assert_close(loss, total)
    torch.testing.assert_close(gradient_BT, gradient_of_logprobs(total, inputs))
    gspo, _ = loss_of(inputs, "gspo")  # one advantage for all tokens of a sequence: the same loss and gradient
    torch.testing.assert_close(gspo, loss)
    torch.testing.assert_close(gradient_of_logprobs(gspo, inputs), gradient_BT)


def test_reinforce_is_the_score_of_the_sequence_times_its_advantage() -> None:
    inputs = random_inputs()
    mask_BT = inputs.mask_BT.float()
    loss, stats = loss_of(inputs, "reinforce")
    torch.testing.assert_close(loss, -(inputs.logprobs_BT * mask_BT).sum(dim=1) @ inputs.advantages_BT[:, 0] / 3)
    torch.testing.assert_close(gradient_of_logprobs(loss, inputs), -inputs.advantages_BT * mask_BT / 3)
    assert stats == {}


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("junk", [0.0, -1e9, math.inf, math.nan])
def test_masked_positions_have_no_influence(loss_type: str, junk: float) -> None:
    clean = with_reference(loss_type, random_inputs())
    loss, stats = loss_of(clean, loss_type, beta=0.1)
    gradient_BT = gradient_of_logprobs(loss, clean)
    masked_BT = clean.mask_BT == 0
    assert torch.all(gradient_BT[masked_BT] == 0)
    assert torch.any(gradient_BT[~masked_BT] != 0)

    def spoil(values_BT: Tensor | None) -> Tensor | None:
        return None if values_BT is None else values_BT.detach().masked_fill(masked_BT, junk)

    logprobs_BT = spoil(clean.logprobs_BT)
    assert logprobs_BT is not None
    dirty = replace(
        clean,
        logprobs_BT=logprobs_BT.requires_grad_(),
        old_logprobs_BT=spoil(clean.old_logprobs_BT),
        ref_logprobs_BT=spoil(clean.ref_logprobs_BT),
    )
    dirty_loss, dirty_stats = loss_of(dirty, loss_type, beta=0.1)
    assert torch.equal(dirty_loss, loss)
    assert torch.equal(gradient_of_logprobs(dirty_loss, dirty), gradient_BT)
    assert dirty_stats == stats


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("tokens", [0.0, 20.0])
def test_nothing_to_learn_is_zero_not_nan(loss_type: str, tokens: float) -> None:
    inputs = with_reference(loss_type, random_inputs(mask_BT=torch.zeros(3, 5)))
    counts = StepCounts(loss_tokens=tokens, sequences=tokens and 4.0, batch_loss_tokens=0, batches=2, processes=1)
    loss, stats = loss_of(inputs, loss_type, counts=counts, beta=0.1)
    assert loss.item() == 0
    assert torch.all(gradient_of_logprobs(loss, inputs) == 0)
    assert {name: value.item() for name, value in stats.items()} == dict.fromkeys(stats, 0.0)


@pytest.mark.parametrize("loss_type", [name for name, loss in LOSSES.items() if loss.surrogate is clipped])
def test_sequences_without_loss_tokens_do_not_count_as_clipped_or_not(loss_type: str) -> None:
    inputs = random_inputs(advantages_BT=torch.full((3, 5), -1.0))
    inputs = replace(
        inputs,
        old_logprobs_BT=inputs.logprobs_BT.detach() + 1.0,  # all ratios are below 1 - epsilon_low
        mask_BT=inputs.mask_BT * torch.tensor([[1], [0], [1]]),
    )
    _, stats = loss_of(inputs, loss_type)
    assert stats["clip_ratio/low_mean"] == stats["clip_ratio/region_mean"] == stats["clip_ratio/low_min"] == 1
    assert stats["clip_ratio/high_mean"] == stats["clip_ratio/high_max"] == 0


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("sign", [1, -1])
def test_huge_ratios_stay_finite(loss_type: str, sign: int) -> None:
    inputs = random_inputs(advantages_BT=torch.full((3, 5), float(sign)))
    inputs = replace(inputs, old_logprobs_BT=inputs.logprobs_BT.detach() - 200.0)  # exp(200) is inf in float32
    loss, _ = loss_of(inputs, loss_type)
    assert torch.isfinite(loss)
    assert torch.all(torch.isfinite(gradient_of_logprobs(loss, inputs)))


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "rloo"])
@pytest.mark.parametrize("rows", [[3], [2, 1], [1, 2], [1, 1, 1], [1, 0, 1, 0, 1]])
@pytest.mark.parametrize("across", ["batches", "processes"])
def test_the_gradient_does_not_depend_on_how_rows_are_cut(loss_type: str, rows: list[int], across: str) -> None:
    """The loss is added up over micro-batches and averaged over processes; parts may be ragged or empty."""
    whole = random_inputs()
    assert whole.old_logprobs_BT is not None
    expected_BT = gradient_of_logprobs(loss_of(whole, loss_type)[0], whole)
    parts = len(rows)
    counts = replace(counts_of(whole.mask_BT), **{across: parts})
    total, end = torch.zeros(()), 0
    for size in rows:
        start, end = end, end + size
        own = slice(start, end) if size else slice(0, 1)  # an empty part is a row without loss tokens
        part = LossInputs(
            logprobs_BT=whole.logprobs_BT[own],
            old_logprobs_BT=whole.old_logprobs_BT[own],
            mask_BT=whole.mask_BT[own] * bool(size),
            advantages_BT=whole.advantages_BT[own],
        )
        total = total + loss_of(part, loss_type, counts=counts)[0] / counts.processes
    torch.testing.assert_close(gradient_of_logprobs(total, whole), expected_BT)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_on_policy_gradient_is_that_of_log_probability_times_advantage(loss_type: str) -> None:
    """Each token has its own advantage, unless the loss has one ratio for a whole sequence."""
    inputs = random_inputs(old_logprobs_BT=None)
    if LOSSES[loss_type].is_of_tokens:
        inputs = replace(inputs, advantages_BT=torch.randn(3, 5).masked_fill(inputs.mask_BT == 0, math.nan))
    loss, _ = loss_of(inputs, loss_type)
    mask_BT = inputs.mask_BT.float()
    weights_BT = {
        "grpo": mask_BT / mask_BT.sum(1, keepdim=True) / 3,
        "bnpo": mask_BT / mask_BT.sum(),
        "dr_grpo": mask_BT / (3 * MAX_COMPLETION),
        "dapo": mask_BT / mask_BT.sum(),
        "cispo": mask_BT / mask_BT.sum(),
        "gspo": mask_BT / mask_BT.sum(1, keepdim=True) / 3,
        "gspo_token": mask_BT / mask_BT.sum(1, keepdim=True) / 3,
        "sapo": mask_BT / mask_BT.sum(1, keepdim=True) / 3,
        "rloo": mask_BT / 3,
        "reinforce": mask_BT / 3,
    }[loss_type]
    expected_BT = torch.where(inputs.mask_BT == 1, -inputs.advantages_BT * weights_BT, 0.0)
    torch.testing.assert_close(gradient_of_logprobs(loss, inputs), expected_BT)


def test_a_reference_without_beta_is_measured_and_not_trained_on() -> None:
    plain = random_inputs()
    watched = with_reference("grpo", plain)
    plain_loss, plain_stats = loss_of(plain)
    watched_loss, watched_stats = loss_of(watched)
    assert torch.equal(plain_loss, watched_loss)
    assert "kl" not in plain_stats
    assert watched_stats["kl"].item() == pytest.approx(math.exp(0.1) - 0.1 - 1, abs=1e-6)
    far_off = replace(plain, ref_logprobs_BT=plain.logprobs_BT.detach() + 200.0)  # a KL of inf, and 0 * inf is NaN
    assert torch.equal(loss_of(far_off)[0], plain_loss)


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("loss_type", ["grpo", "gspo"])
def test_a_token_far_from_the_reference_has_no_gradient_from_the_kl(loss_type: str, bias_correction: bool) -> None:
    """k3 of 119 nats is infinite in float32. Beyond 20 nats it is constant."""
    plain = random_inputs()
    ref_BT = plain.logprobs_BT.detach().clone()  # the KL of equal models has no gradient
    ref_BT[0, 1] += 119
    inputs = replace(plain, ref_logprobs_BT=ref_BT)
    loss, stats = loss_of(inputs, loss_type, beta=0.1, use_bias_correction_kl=bias_correction)
    assert loss.isfinite()
    assert stats["kl"].isfinite()
    assert torch.equal(gradient_of_logprobs(loss, inputs), gradient_of_logprobs(loss_of(plain, loss_type)[0], plain))


def test_k3_within_20_nats_is_its_formula_to_the_last_bit() -> None:
    log_ratio = torch.linspace(-300, 20, 10_001, requires_grad=True)
    formula = log_ratio.exp() - log_ratio - 1
    gradients = [torch.autograd.grad(tensor.sum(), log_ratio)[0] for tensor in (k3(log_ratio), formula)]
    assert torch.equal(k3(log_ratio), formula)
    assert torch.equal(*gradients)
    assert k3(torch.tensor(119.0)) == k3(torch.tensor(20.0))


@pytest.mark.parametrize("name", ["grpo", "gspo", "gspo_token", "rloo"])
def test_a_ratio_of_ones_own_is_known_by_its_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = LOSSES[name]
    own = replace(known, ratio=lambda log_ratio_BT, mask_BT: known.ratio(log_ratio_BT, mask_BT))
    monkeypatch.setitem(LOSSES, "own", own)
    assert own.is_of_sequence == (name == "rloo")
    inputs = random_inputs(shares_B=torch.tensor([0.5, 0.5, 1.0]))
    gradients = [gradient_of_logprobs(loss_of(inputs, item)[0], inputs) for item in (name, "own")]
    assert torch.equal(*gradients)


def test_a_loss_of_ones_own_has_the_clip_metrics_that_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = random_inputs()

    def stats_of(**parts: Any) -> dict[str, Tensor]:
        monkeypatch.setitem(LOSSES, "own", replace(LOSSES["dapo"], **parts))
        return {name: value for name, value in loss_of(inputs, "own")[1].items() if name.startswith("clip_ratio/")}

    def own(*arguments: Any) -> Tensor:
        return 2 * losses.clipped(*arguments)

    def all_high(ratio_BR: Tensor, advantages_BR: Tensor, settings: LearningSettings) -> tuple[Tensor, Tensor]:
        return ratio_BR < 0, ratio_BR > 0

    assert stats_of(surrogate=own) == stats_of() != {}
    assert {name for name, value in stats_of(surrogate=own, clips=all_high).items() if value == 1} == {
        *("clip_ratio/high_mean", "clip_ratio/high_max", "clip_ratio/region_mean")
    }
    assert stats_of(clips=None) == {}


def test_unknown_loss_type_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'gpro'.*grpo, bnpo, dr_grpo, dapo, .*rloo"):
        loss_of(random_inputs(), "gpro")


def test_rloo_refuses_a_kl_in_the_loss() -> None:
    inputs = random_inputs()
    with pytest.raises(ValueError, match="kl_in_reward"):
        loss_of(replace(inputs, ref_logprobs_BT=inputs.logprobs_BT.detach()), "rloo")


def test_kl_in_reward_sums_the_log_ratio_of_loss_tokens() -> None:
    old_BT = torch.tensor([[-1.0, -2.0, math.nan], [-0.5, -1.0, -3.0]])
    ref_BT = torch.tensor([[-1.5, -1.0, -9.0], [-0.5, -4.0, -3.5]])
    mask_BT = torch.tensor([[1, 1, 0], [0, 1, 1]])
    torch.testing.assert_close(kl_in_reward(old_BT, ref_BT, mask_BT), torch.tensor([-0.5, 3.5]))
