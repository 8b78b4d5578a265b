"""The losses, against TRL's own trainers as the reference and by their properties."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_config import RLOOConfig
from trl.trainer.rloo_trainer import RLOOTrainer

from gymnast.trainer.learning.losses import LOSSES, LossInputs, StepCounts, clipped, kl_in_reward, policy_loss

from .rows import (
    EPSILON_HIGH,
    EPSILON_LOW,
    MAX_COMPLETION,
    SETTINGS,
    TEMPERATURE,
    VOCABULARY,
    Batch,
    gradients,
    make_batch,
    make_model,
    our_logprobs,
)


def counts_of(mask_BT: Tensor, *, steps: int = 1, processes: int = 1, loss_tokens: float | None = None) -> StepCounts:
    """The counts of a step of `steps` micro-batches like this one."""
    return StepCounts(
        loss_tokens=steps * mask_BT.sum() if loss_tokens is None else loss_tokens,
        sequences=steps * mask_BT.any(dim=1).sum(),
        batch_loss_tokens=mask_BT.sum(),
        batches=steps,
        processes=processes,
    )


def loss_of(
    inputs: LossInputs, loss_type: str = "grpo", *, counts: StepCounts | None = None, **changes: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    settings = replace(SETTINGS, loss_type=loss_type, **changes)
    return policy_loss(inputs, settings, counts_of(inputs.mask_BT) if counts is None else counts)


def make_trainer(kind: str, folder: Path, model: Qwen3ForCausalLM) -> GRPOTrainer | RLOOTrainer:
    words = {f"w{i}": i for i in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w2")), pad_token="w0", eos_token="w1", unk_token="w2"
    )
    options: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "report_to": [],
        "bf16": False,
        "gradient_checkpointing": False,
        "temperature": TEMPERATURE,
        "epsilon": EPSILON_LOW,
        "epsilon_high": EPSILON_HIGH,
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        "max_completion_length": MAX_COMPLETION,
        "beta": 0.0,
    }
    common: dict[str, Any] = {
        "model": model,
        "reward_funcs": lambda completions, **_: [0.0] * len(completions),
        "train_dataset": Dataset.from_list([{"prompt": "w3 w4"}]),
        "processing_class": tokenizer,
    }
    if kind == "grpo":
        return GRPOTrainer(args=GRPOConfig(**options), **common)
    return RLOOTrainer(args=RLOOConfig(**options), **common)


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


def trl_logprobs(trainer: GRPOTrainer | RLOOTrainer, batch: Batch) -> Tensor:
    ids_BL = torch.cat([batch.trl["prompt_ids"], batch.trl["completion_ids"]], dim=1)
    mask_BL = torch.cat([batch.trl["prompt_mask"], batch.trl["completion_mask"]], dim=1)
    model: Any = trainer.model
    with torch.no_grad():
        logprobs_BT, _, _ = trainer._get_per_token_logps_and_entropies(
            model, ids_BL, mask_BL, batch.trl["completion_ids"].shape[1]
        )
    return logprobs_BT


def unpatched_copy(trainer: GRPOTrainer | RLOOTrainer) -> Qwen3ForCausalLM:
    """A model with the trainer's weights, but without the forward that TRL puts in."""
    model = make_model()
    source: Any = trainer.model
    model.load_state_dict(source.state_dict())
    return model.train()


def assert_same(ours: tuple[Tensor, dict[str, Tensor]], theirs: tuple[Tensor, dict[str, Tensor]]) -> None:
    """Loss and all parameters' gradients agree to 1e-5, and the gradients are large enough to make this meaningful."""
    (our_loss, our_grads), (their_loss, their_grads) = ours, theirs
    assert our_grads.keys() == their_grads.keys()
    loss_difference = (our_loss - their_loss).abs().item()
    grad_difference = max((our_grads[name] - their_grads[name]).abs().max().item() for name in their_grads)
    largest = max(grad.abs().max().item() for grad in their_grads.values())
    assert loss_difference < 1e-5
    assert grad_difference < 1e-5
    assert largest > 1e-2


def last_metrics(trainer: GRPOTrainer | RLOOTrainer) -> dict[str, float]:
    return {name: values[-1] for name, values in trainer._metrics["train"].items()}


def assert_same_stats(stats: dict[str, Tensor], metrics: dict[str, float]) -> None:
    for name, value in stats.items():
        assert value.item() == pytest.approx(metrics[name], abs=1e-5), name


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


def test_token_logprobs_equal_trl(trl_grpo: GRPOTrainer) -> None:
    batch = make_batch()
    mask_BT = batch.to_ours(batch.trl["completion_mask"])
    ours_BT = our_logprobs(unpatched_copy(trl_grpo), batch)
    theirs_BT = batch.to_ours(trl_logprobs(trl_grpo, batch))
    torch.testing.assert_close(ours_BT * mask_BT, theirs_BT * mask_BT, atol=1e-5, rtol=0)


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
    if not LOSSES[loss_type].takes_kl:
        return inputs
    return replace(inputs, ref_logprobs_BT=inputs.logprobs_BT.detach() + 0.1)


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
