"""The batches that a step learns from: which tokens have loss, which episodes count, and their advantages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gymnast.envs import Episode, Message

from .buttons import Buttons, ScriptedGenerator, ids, make_trainer, model, tokenizer
from .inspecting import KeepsBatches, step_logs


def test_only_sampled_tokens_have_loss(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, KeepsBatches, agent=model(), loss_type="dapo")
    trainer.train()
    [batch] = trainer.batches  # type: ignore[attr-defined]
    fresh = model()
    keep = batch["mask"].shape[1]
    logits = fresh(**batch["inputs"]).logits[:, -keep - 1 : -1]
    labels = batch["inputs"]["input_ids"][:, -keep:]
    logprobs = logits.log_softmax(-1).gather(2, labels[..., None])[..., 0]
    # On-policy, the gradient of the objective is that of -advantage * log-probability, over sampled tokens alone.
    loss = -(batch["advantages"] * logprobs * batch["mask"]).sum() / step_logs(trainer)[0]["tokens/sampled"]
    loss.backward()
    expected = torch.cat(
        [parameter.grad.flatten() for parameter in fresh.parameters() if parameter.grad is not None]
    ).norm()
    assert step_logs(trainer)[0]["grad_norm"] == pytest.approx(expected.item(), rel=1e-4)
    # The rows hold tool results too, inside the completion, and these have mask 0.
    text = "".join(str(tokenizer().decode(row)) for row in batch["inputs"]["input_ids"])
    assert "<tool_response>" in text
    for row, mask in zip(batch["inputs"]["input_ids"][:, -keep:], batch["mask"].bool(), strict=True):
        sampled = tokenizer().decode(row[mask])
        assert "lit" not in sampled
        assert sampled.count("<|im_end|>") == sampled.count("</tool_call>") > 0


def test_first_words_of_an_answer_have_no_loss(tmp_path: Path) -> None:
    class Begun(Buttons):
        def reset_task(self, task: Any) -> list[Message]:
            return [*super().reset_task(task), {"role": "assistant", "content": '<tool_call>\n{"name": "'}]

    rest = ('left", "arguments": {}}\n</tool_call><|im_end|>', 'right", "arguments": {}}\n</tool_call><|im_end|>')
    seen: list[list[Message]] = []

    def watch(completions: list[list[Message]], **columns: Any) -> list[float]:
        seen.extend(completions)
        return [0.0] * len(completions)

    generator = ScriptedGenerator(lambda request: ids(rest[request.seed % 2]))
    trainer = make_trainer(tmp_path, KeepsBatches, environment=Begun(), generator=generator, reward_funcs=watch)
    trainer.train()
    assert len(seen) == 8
    for messages in seen:
        assert [message["role"] for message in messages] == ["assistant", "tool"]
        assert [call["function"]["name"] for call in messages[0].get("tool_calls", [])] in (["left"], ["right"])
    [batch] = trainer.batches  # type: ignore[attr-defined]
    keep = batch["mask"].shape[1]
    for row, mask in zip(batch["inputs"]["input_ids"], batch["mask"].bool(), strict=True):
        whole = str(tokenizer().decode(row))
        assert '<|im_start|>assistant\n<tool_call>\n{"name": "' in whole
        assert str(tokenizer().decode(row[-keep:][mask])) in rest
    assert step_logs(trainer)[0]["tokens/drift"] == 0


ADVANTAGES = {
    "group": lambda r: (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4),
    "batch": lambda r: (r - r.mean(1, keepdim=True)) / (r.std() + 1e-4),
    "none": lambda r: r - r.mean(1, keepdim=True),
    "others": lambda r: (r - r.mean(1, keepdim=True)) * 4 / 3,  # of a group of 4
}


@pytest.mark.parametrize("scale", [*ADVANTAGES, "whiten"])
def test_advantages_are_scaled(scale: str, tmp_path: Path) -> None:
    rewards: dict[str, list[float]] = {}

    def numbered(episodes: list[Episode], **columns: Any) -> list[float]:
        rewards[episodes[0].spec.group] = [float(episode.spec.seed % 13) for episode in episodes]
        return rewards[episodes[0].spec.group]

    options: dict[str, Any] = {"scale_rewards": scale}
    if scale == "whiten":
        options = {"scale_rewards": "none", "normalize_advantages": True}
    if scale == "others":
        options = {"scale_rewards": "none", "advantage_estimator": "rloo"}
    nobody = [{"good": "neither"}]  # the environment's own reward is 0
    trainer = make_trainer(tmp_path, KeepsBatches, rows=nobody, reward_funcs=numbered, **options)
    trainer.train()
    [batch] = trainer.batches  # type: ignore[attr-defined]
    expected = ADVANTAGES["none" if scale == "whiten" else scale](torch.tensor([*rewards.values()]))
    if scale == "whiten":
        expected = (expected - expected.mean()) / (expected.std() + 1e-4)
    assert expected.std() > 0
    torch.testing.assert_close(batch["advantages"][:, 0].sort().values, expected.flatten().sort().values)


def test_the_tokens_of_highest_entropy_alone_teach(tmp_path: Path) -> None:
    options: dict[str, Any] = {"top_entropy_quantile": 0.25, "max_tokens_per_batch": 60}
    trainer = make_trainer(tmp_path, KeepsBatches, **options)
    trainer.train()
    batches = trainer.batches  # type: ignore[attr-defined]
    assert len(batches) > 1  # the threshold is that of the whole round
    chosen = sum(int((batch["advantages"] != 0).sum()) for batch in batches)
    assert 0 < chosen <= 0.3 * step_logs(trainer)[0]["tokens/sampled"]


def test_the_bonus_raises_the_entropy_where_no_reward_teaches(tmp_path: Path) -> None:
    nobody = [{"good": "neither"}]
    trainer = make_trainer(tmp_path, rows=nobody, entropy_coef=1.0, max_steps=4, learning_rate=1e-2)
    trainer.train()
    entropies = [logs["entropy"] for logs in step_logs(trainer)]
    assert entropies[-1] > 1.2 * entropies[0]
