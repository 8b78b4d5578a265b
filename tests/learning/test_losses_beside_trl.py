"""Losses and log-probabilities equal those of TRL's trainers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

from gymnast.trainer.learning.losses import LossInputs

from .beside_trl import assert_same, assert_same_stats, last_metrics, make_trainer, trl_logprobs, unpatched_copy
from .rows import EPSILON_HIGH, counts_of, gradients, loss_of, make_batch, make_model, our_logprobs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CI", "1")  # TRL then sends no telemetry
        yield tmp_path_factory.mktemp("trl")


@pytest.fixture(scope="module")
def trl_grpo(folder: Path) -> GRPOTrainer:
    trainer = make_trainer("grpo", folder, make_model())
    assert isinstance(trainer, GRPOTrainer)
    return trainer


@pytest.fixture(scope="module")
def trl_rloo(folder: Path) -> RLOOTrainer:
    trainer = make_trainer("rloo", folder, make_model())
    assert isinstance(trainer, RLOOTrainer)
    return trainer


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("beta", "bias_correction"), [(0.0, False), (0.04, False), (0.04, True)])
@pytest.mark.parametrize("on_policy", [False, True])
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "gspo", "sapo", "dual clip"])
def test_grpo_family_equals_trl(
    trl_grpo: GRPOTrainer,
    monkeypatch: pytest.MonkeyPatch,
    loss_type: str,
    on_policy: bool,
    beta: float,
    bias_correction: bool,
    steps: int,
) -> None:
    batch = make_batch()
    num_loss_tokens = 100.0  # of all micro-batches of the step; this one has fewer
    sampled_BT = trl_logprobs(trl_grpo, batch)
    batch.trl["num_items_in_batch"] = torch.tensor(num_loss_tokens)
    if not on_policy:
        batch.trl["old_per_token_logps"] = sampled_BT + 0.4 * torch.randn_like(sampled_BT)
    if beta:
        batch.trl["ref_per_token_logps"] = sampled_BT + 0.4 * torch.randn_like(sampled_BT)
    delta = 1.4 if loss_type == "dual clip" else None
    loss_type = "grpo" if loss_type == "dual clip" else loss_type
    monkeypatch.setattr(trl_grpo, "loss_type", "grpo" if loss_type == "gspo" else loss_type)
    monkeypatch.setattr(trl_grpo, "importance_sampling_level", "sequence" if loss_type == "gspo" else "token")
    if loss_type == "cispo":
        monkeypatch.setattr(trl_grpo, "epsilon_high", 1 + EPSILON_HIGH)  # in this loss it bounds the ratio itself
    monkeypatch.setattr(trl_grpo.args, "delta", delta)
    monkeypatch.setattr(trl_grpo, "beta", beta)
    monkeypatch.setattr(trl_grpo, "current_gradient_accumulation_steps", steps, raising=False)
    monkeypatch.setattr(trl_grpo.args, "steps_per_generation", steps)
    monkeypatch.setattr(trl_grpo.args, "use_bias_correction_kl", bias_correction)
    trl_model: Any = trl_grpo.model
    trl_model.train()
    their_loss = trl_grpo._compute_loss(trl_model, batch.trl)
    theirs = their_loss.detach(), gradients(trl_model, their_loss)

    model = unpatched_copy(trl_grpo)
    mask_BT = batch.to_ours(batch.trl["completion_mask"] * batch.trl["tool_mask"])
    our_loss, stats = loss_of(
        LossInputs(
            logprobs_BT=our_logprobs(model, batch),
            old_logprobs_BT=None if on_policy else batch.to_ours(batch.trl["old_per_token_logps"]),
            mask_BT=mask_BT,
            advantages_BT=batch.trl["advantages"][:, None].expand(mask_BT.shape),
            ref_logprobs_BT=batch.to_ours(batch.trl["ref_per_token_logps"]) if beta else None,
        ),
        loss_type,
        counts=counts_of(mask_BT, steps=steps, loss_tokens=num_loss_tokens),
        beta=beta,
        use_bias_correction_kl=bias_correction,
        delta=delta,
    )
    assert_same((our_loss.detach(), gradients(model, our_loss)), theirs)
    theirs_logged = last_metrics(trl_grpo)
    if loss_type == "cispo":
        theirs_logged["clip_ratio/high_mean"] = theirs_logged["cispo_clip_ratio"]
        stats = {name: stats[name] for name in ("kl", "clip_ratio/high_mean") if name in stats}
    assert_same_stats(stats, theirs_logged)
    assert ("kl" in stats) == (beta != 0)
    if not on_policy and loss_type not in ("cispo", "gspo", "sapo"):
        assert stats["clip_ratio/low_mean"] > 0
        assert stats["clip_ratio/high_mean"] > 0


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_rloo_equals_trl(trl_rloo: RLOOTrainer, shift: float, steps: int) -> None:
    batch = make_batch(with_tool_mask=False)
    mask_BT = batch.trl["completion_mask"]
    sampled_BT = trl_logprobs(trl_rloo, batch)
    old_BT = sampled_BT + shift * torch.randn_like(sampled_BT)
    batch.trl["old_logps"] = (old_BT * mask_BT).sum(dim=1)
    trl_model: Any = trl_rloo.model
    trl_model.train()
    # `transformers.Trainer` divides the loss by the number of micro-batches if a trainer asks for it.
    assert RLOOTrainer.loss_is_scaled_for_ga is False
    their_loss = trl_rloo._compute_loss(trl_model, batch.trl) / steps
    theirs = their_loss.detach(), gradients(trl_model, their_loss)

    model = unpatched_copy(trl_rloo)
    our_mask_BT = batch.to_ours(mask_BT)
    our_loss, stats = loss_of(
        LossInputs(
            logprobs_BT=our_logprobs(model, batch),
            old_logprobs_BT=batch.to_ours(old_BT),
            mask_BT=our_mask_BT,
            advantages_BT=batch.trl["advantages"][:, None].expand(our_mask_BT.shape),
        ),
        "rloo",
        counts=counts_of(our_mask_BT, steps=steps),
    )
    assert_same((our_loss.detach(), gradients(model, our_loss)), theirs)
    assert_same_stats(stats, last_metrics(trl_rloo))
    assert (stats["clip_ratio/region_mean"] > 0) == (shift > 0)


def test_token_logprobs_equal_trl(trl_grpo: GRPOTrainer) -> None:
    batch = make_batch()
    mask_BT = batch.to_ours(batch.trl["completion_mask"])
    ours_BT = our_logprobs(unpatched_copy(trl_grpo), batch)
    theirs_BT = batch.to_ours(trl_logprobs(trl_grpo, batch))
    torch.testing.assert_close(ours_BT * mask_BT, theirs_BT * mask_BT, atol=1e-5, rtol=0)
