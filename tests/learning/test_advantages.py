"""The advantages, against TRL's own trainers as the reference and by their properties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from trl.trainer.utils import add_fused_lm_head

from gymnast.trainer.learning.advantages import ESTIMATORS, Scale, grpo, max_rl, rloo, scale_advantages, whiten
from gymnast.trainer.learning.logprobs import token_logprobs
from gymnast.trainer.learning.ratios import kl_in_reward

from .beside_trl import make_trainer
from .rows import TEMPERATURE, make_model

SHAPE: dict[str, Any] = {"num_layers": 1, "initializer_range": 0.2}
GROUPS, MEMBERS = 3, 4
REWARDS = [0.0, 1.0, 0.25, -2.0, 3.0, 3.0, 3.0, 3.0, 0.1, 0.2, 0.9, 10.0]  # the second group has no spread
PROMPTS = [{"prompt": f"w{3 + group} w9"} for group in range(GROUPS) for _ in range(MEMBERS)]
RAGGED = [torch.tensor([0.0, 1.0]), torch.tensor([2.0, -1.0, 0.5, 7.0]), torch.tensor([1.0, 1.0, 1.0])]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CI", "1")  # TRL then sends no telemetry
    return tmp_path


def trl_trainer(kind: str, folder: Path, **options: Any) -> Any:
    """A TRL trainer that gives REWARDS to the GROUPS x MEMBERS completions that it samples."""
    options |= {"per_device_train_batch_size": GROUPS * MEMBERS, "max_completion_length": 6}
    trainer = make_trainer(kind, folder, make_model(0, **SHAPE), rewards=REWARDS, prompts=PROMPTS, **options)
    model: Any = trainer.model
    model.train()
    return trainer


def groups_of(rewards: Tensor) -> list[Tensor]:
    return list(rewards.view(GROUPS, MEMBERS))


@pytest.mark.parametrize("how", ["group", "batch", "none"])
def test_grpo_equals_trl(folder: Path, how: Scale) -> None:
    trainer = trl_trainer("grpo", folder, scale_rewards=how, temperature=1.0)
    theirs = trainer._generate_and_score_completions(PROMPTS)["advantages"]
    rewards = groups_of(torch.tensor(REWARDS))
    ours = scale_advantages([grpo(rewards_G) for rewards_G in rewards], rewards, how)
    torch.testing.assert_close(torch.cat(ours), theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_rloo_equals_trl(folder: Path, beta: float, normalize: bool) -> None:
    trainer = trl_trainer("rloo", folder, normalize_advantages=normalize)
    reference = make_model(1, **SHAPE)
    add_fused_lm_head(reference, temperature=TEMPERATURE)
    trainer.beta, trainer.ref_model = beta, reference  # TRL itself would download a reference by its name
    scored = trainer._generate_and_score_completions(PROMPTS)
    mask_BT = scored["completion_mask"]
    ids_BL = torch.cat([scored["prompt_ids"], scored["completion_ids"]], dim=1)  # prompts are of one length: no padding
    inputs = {"input_ids": ids_BL, "attention_mask": torch.cat([scored["prompt_mask"], mask_BT], dim=1)}

    def logprobs(model: Any) -> Tensor:
        with torch.no_grad():
            keep = mask_BT.shape[1]
            places_N = torch.arange(mask_BT.numel())
            return token_logprobs(model, inputs, places_N, keep=keep, temperature=TEMPERATURE)[0]

    kl_B = kl_in_reward(logprobs(trainer.model), logprobs(reference), mask_BT)
    assert kl_B.abs().max() > 0.1
    ours = [rloo(rewards_G) for rewards_G in groups_of(torch.tensor(REWARDS) - beta * kl_B)]
    ours = whiten(ours) if normalize else ours
    torch.testing.assert_close(torch.cat(ours), scored["advantages"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rewards_G", RAGGED)
def test_baselines_by_definition(rewards_G: Tensor) -> None:
    values = rewards_G.tolist()
    for g, value in enumerate(values):
        others = values[:g] + values[g + 1 :]
        assert grpo(rewards_G)[g].item() == pytest.approx(value - sum(values) / len(values), abs=1e-6)
        assert rloo(rewards_G)[g].item() == pytest.approx(value - sum(others) / len(others), abs=1e-6)


@pytest.mark.parametrize("rewards", [[0.0, 1.0, 0.0, 0.0], [0.5, 0.25, 3.0], [0.0, 0.0], [1.0, 1.0]])
def test_max_rl_divides_by_the_mean(rewards: list[float]) -> None:
    mean = sum(rewards) / len(rewards)
    expected = [(reward - mean) / mean if mean else 0.0 for reward in rewards]
    assert max_rl(torch.tensor(rewards, dtype=torch.float64)).tolist() == pytest.approx(expected)


def test_ragged_groups_are_scaled_by_unbiased_deviations() -> None:
    advantages = [grpo(rewards_G) for rewards_G in RAGGED]
    by_group = scale_advantages(advantages, RAGGED, "group")
    by_batch = scale_advantages(advantages, RAGGED, "batch")
    unscaled = scale_advantages(advantages, RAGGED, "none")
    std = torch.cat(RAGGED).std(correction=1)
    for g, (advantages_G, rewards_G) in enumerate(zip(advantages, RAGGED, strict=True)):
        torch.testing.assert_close(by_group[g], advantages_G / (rewards_G.std(correction=1) + 1e-4))
        torch.testing.assert_close(by_batch[g], advantages_G / (std + 1e-4))
        assert torch.equal(unscaled[g], advantages_G)
    assert torch.equal(by_group[2], torch.zeros(3))  # equal rewards: nothing to learn, and no NaN


def test_whitened_advantages_have_mean_zero_and_deviation_one() -> None:
    white = torch.cat(whiten([rloo(rewards_G) for rewards_G in RAGGED]))
    assert white.mean().item() == pytest.approx(0, abs=1e-6)
    assert white.std().item() == pytest.approx(1, abs=1e-3)
    assert torch.equal(torch.cat(whiten([torch.full((3,), 2.0)])), torch.zeros(3))


def in_processes(shares: list[list[Tensor]], compute: Any) -> list[Tensor]:
    """Run `compute(share, gather)` as if each share had its own process: collect the messages, then return all."""
    sent: list[Tensor] = []

    def listen(values: Tensor) -> Tensor:
        sent.append(values)
        return values

    for share in shares:
        compute(share, listen)
    assert len(sent) == len(shares)  # every process takes part, even one without groups
    assert len({values.shape for values in sent}) == 1  # collectives need equal shapes
    return [values for share in shares for values in compute(share, lambda _: torch.cat(sent))]


@pytest.mark.parametrize(
    "compute",
    [
        lambda share, gather: scale_advantages([grpo(r_G) for r_G in share], share, "batch", gather),
        lambda share, gather: whiten([rloo(r_G) for r_G in share], gather),
    ],
    ids=["batch", "whiten"],
)
def test_many_processes_compute_what_one_does(compute: Any) -> None:
    groups = [rewards_G + 1000.0 for rewards_G in RAGGED]  # far from 0, where raw sums of squares would cancel
    alone = torch.cat(compute(groups, lambda values: values))
    torch.testing.assert_close(torch.cat(in_processes([groups[:1], groups[1:], []], compute)), alone)


def test_scales_that_need_no_other_process_do_not_call_it() -> None:
    def gather(_: Tensor) -> Tensor:
        raise AssertionError

    for how in ("group", "none"):
        scale_advantages([grpo(r_G) for r_G in RAGGED], RAGGED, how, gather)


@pytest.mark.parametrize("reward", [0.7, 10.1, 100.1, 1000.3, -3e5 - 0.1])
@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_rewards_have_no_advantage(reward: float, name: str, scale: Scale) -> None:
    """Exactly 0: a rounding error divided by a deviation of almost 0 would be a large advantage."""
    estimator = ESTIMATORS[name]
    reward = abs(reward) if name == "max_rl" else reward
    for size in (2, 3, 5, 7, 8):
        rewards_G = torch.full((size,), reward, dtype=torch.float64)
        found = scale_advantages([estimator.advantage(rewards_G)], [rewards_G], scale)
        [advantages_G] = whiten(found) if estimator.whitens else found
        assert advantages_G.tolist() == [0.0] * size
