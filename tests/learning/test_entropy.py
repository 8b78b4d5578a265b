"""The entropy bonus, and learning from the tokens of highest entropy alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer

from gymnast.envs.core import StopReason
from gymnast.envs.engine.rollout_engine import episode_specs
from gymnast.envs.episode import Episode
from gymnast.envs.tokens import Tokens, TokenTrace
from gymnast.trainer.learning.advantages import quantile, this_process_only
from gymnast.trainer.learning.logprobs import token_logprobs
from gymnast.trainer.learning.losses import LossInputs
from gymnast.trainer.learning.scoring import Scorer
from gymnast.trainer.models.output_head import OutputHead

from .beside_trl import assert_same, make_trainer, unpatched_copy
from .rows import SETTINGS, TEMPERATURE, Batch, counts_of, gradients, loss_of, make_batch, make_model


@pytest.fixture(scope="module")
def trl_grpo(tmp_path_factory: pytest.TempPathFactory) -> GRPOTrainer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CI", "1")  # TRL then sends no telemetry
        trainer = make_trainer("grpo", tmp_path_factory.mktemp("trl"), make_model())
    assert isinstance(trainer, GRPOTrainer)
    return trainer


def with_entropies(model: Any, batch: Batch, head: OutputHead | None) -> tuple[Tensor, Tensor]:
    places_N = torch.arange(len(batch.rows) * batch.keep)
    options: Any = {"keep": batch.keep, "temperature": TEMPERATURE, "head": head, "entropy": "differentiable"}
    logprobs_BT, entropies_BT = token_logprobs(model, batch.inputs, places_N, **options)
    assert entropies_BT is not None
    return logprobs_BT, entropies_BT


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
@pytest.mark.parametrize("is_apart", [False, True], ids=["whole model", "head apart"])
def test_the_bonus_is_that_of_trl(
    trl_grpo: GRPOTrainer, monkeypatch: pytest.MonkeyPatch, loss_type: str, is_apart: bool
) -> None:
    batch = make_batch()
    mask_BT = batch.to_ours(batch.trl["completion_mask"] * batch.trl["tool_mask"])
    batch.trl["num_items_in_batch"] = mask_BT.sum()
    for name, value in {"loss_type": loss_type, "entropy_coef": 0.7, "_entropy_bonus_enabled": True}.items():
        monkeypatch.setattr(trl_grpo, name, value)
    monkeypatch.setattr(trl_grpo, "current_gradient_accumulation_steps", 1, raising=False)
    monkeypatch.setattr(trl_grpo.args, "steps_per_generation", 1)
    trl_model: Any = trl_grpo.model
    trl_model.train()
    their_loss = trl_grpo._compute_loss(trl_model, batch.trl)
    theirs = their_loss.detach(), gradients(trl_model, their_loss)

    model = unpatched_copy(trl_grpo)
    logprobs_BT, entropies_BT = with_entropies(model, batch, OutputHead.of(model) if is_apart else None)
    inputs = LossInputs(
        logprobs_BT=logprobs_BT,
        entropies_BT=entropies_BT,
        mask_BT=mask_BT,
        advantages_BT=batch.trl["advantages"][:, None].expand(mask_BT.shape),
    )
    ours, _ = loss_of(inputs, loss_type, entropy_coef=0.7)
    assert_same((ours.detach(), gradients(model, ours)), theirs)


def test_the_bonus_does_not_depend_on_how_rows_are_cut() -> None:
    model, batch = make_model(), make_batch()
    mask_BT = batch.to_ours(batch.trl["completion_mask"] * batch.trl["tool_mask"])

    def share(rows: slice) -> Tensor:
        logprobs_BT, entropies_BT = with_entropies(model, batch, None)
        inputs = LossInputs(
            logprobs_BT=logprobs_BT[rows],
            entropies_BT=entropies_BT[rows],
            mask_BT=mask_BT[rows],
            advantages_BT=torch.zeros_like(mask_BT[rows]),
        )
        return loss_of(inputs, "grpo", counts=counts_of(mask_BT), entropy_coef=0.7)[0]

    whole = gradients(model, share(slice(None)))
    parts = [gradients(model, share(rows)) for rows in (slice(0, 1), slice(1, 5))]
    for name, expected in whole.items():
        torch.testing.assert_close(parts[0][name] + parts[1][name], expected, rtol=1e-4, atol=1e-6)


def episodes_of(batch: Batch) -> list[Episode]:
    """A group of the batch's sequences, with different rewards."""
    made = []
    for (prompt, completion), ids_L, mask_T, spec in zip(
        batch.rows,
        batch.inputs["input_ids"].tolist(),
        (batch.trl["completion_mask"] * batch.trl["tool_mask"]).tolist(),
        episode_specs([{}], group_size=len(batch.rows), seed=0),
        strict=True,
    ):
        trace = TokenTrace(prompt_ids=ids_L[:prompt])
        for token, mask in zip(ids_L[prompt : prompt + completion], mask_T, strict=False):
            trace.append_sampled([token], [-1.0]) if mask else trace.append_observation(Tokens([token]))
        made.append(Episode(spec=spec, stop=StopReason.FINAL_ANSWER, reward=float(spec.member**2), traces=[trace]))
    return made


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
def test_the_tokens_of_highest_entropy_are_those_of_trl(trl_grpo: GRPOTrainer, share: float) -> None:
    batch, model = make_batch(), unpatched_copy(trl_grpo)
    mask_BT = batch.to_ours(batch.trl["completion_mask"] * batch.trl["tool_mask"]).bool()
    with torch.no_grad():
        entropies_BT = with_entropies(model, batch, None)[1]
    expected_BT = trl_grpo.get_high_entropy_mask(entropies_BT, mask_BT, 1 - share)
    assert 0 < expected_BT.sum() < mask_BT.sum()

    settings = SETTINGS.changed(top_entropy_quantile=share)
    scorer = Scorer(model=model, settings=settings, reference=None, gather=this_process_only)
    samples, _ = scorer([episodes_of(batch)])
    for (prompt, _), [sample], row_T in zip(batch.rows, samples, expected_BT, strict=True):
        assert sample.advantages is not None
        start = prompt - (batch.inputs["input_ids"].shape[1] - batch.keep)
        kept_T = row_T[start : start + len(sample.completion_ids)]
        assert torch.equal(sample.advantages != 0, kept_T)


@pytest.mark.parametrize(("own", "others"), [(5, 3), (3, 5), (0, 4), (4, 0), (0, 0)])
def test_the_quantile_is_over_all_processes(own: int, others: int) -> None:
    """Gathers values with those of another process, which has more or fewer; one answer for each call in turn."""
    values = torch.rand(own + others, generator=torch.Generator().manual_seed(0))
    mine, theirs = values[:own], values[own:]
    calls: list[Tensor] = []

    def gather(sent: Tensor) -> Tensor:
        calls.append(sent)
        if len(calls) == 1:
            return torch.cat([sent, torch.tensor([[float(others)]])])
        padded = torch.full_like(sent, torch.nan)
        padded[0, :others] = theirs
        return torch.cat([sent, padded])

    expected = torch.quantile(values, 0.7).item() if own + others else 0.0
    assert quantile(mine, 0.7, gather) == pytest.approx(expected)
    assert len(calls) == (2 if own + others else 1)  # every process takes part, also one without values
