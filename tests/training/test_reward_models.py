"""A sequence classifier with one label as a reward function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3ForSequenceClassification

from gymnast.envs import ConfigurationError, Episode, Message, tool_call
from gymnast.trainer import GRPOTrainer
from gymnast.trainer.models.reward_model import RewardModel
from gymnast.trainer.testing.tiny import make_tiny_tokenizer

from .buttons import make_trainer, model, tokenizer


def reward_model(**options: Any) -> Qwen3ForSequenceClassification:
    config = model().config
    config.num_labels = options.pop("num_labels", 1)
    config.update(options)
    torch.manual_seed(0)
    return Qwen3ForSequenceClassification(config)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A reward model on the disk, in a folder called `judge`."""
    path = tmp_path / "judge"
    reward_model().save_pretrained(path)
    tokenizer().save_pretrained(path)
    return str(path)


def expected_reward(judge: str, episode: Episode) -> float:
    """The logit of one conversation by itself, as transformers computes it."""
    loaded = Qwen3ForSequenceClassification.from_pretrained(judge)
    text: Any = tokenizer().apply_chat_template([*episode.prompt, *episode.completion], tokenize=False)  # type: ignore[list-item]
    with torch.no_grad():
        return loaded(**tokenizer()(text, add_special_tokens=False, return_tensors="pt")).logits.item()


def brevity(completions: Any) -> list[float]:
    return [-float(len(completion)) for completion in completions]


@pytest.mark.parametrize("named", [True, False])
def test_a_reward_model_judges_whole_conversations_beside_functions(named: bool, folder: str, tmp_path: Path) -> None:
    played: list[Episode] = []

    class Keeps(GRPOTrainer):
        def on_episodes(self, episodes: Any) -> None:
            played.extend(episodes)

    judge: Any = folder if named else Qwen3ForSequenceClassification.from_pretrained(folder).train()
    trainer = make_trainer(
        tmp_path, Keeps, reward_funcs=[judge, brevity], reward_weights=[2.0, 1.0], max_steps=1, temperature=1.5
    )
    trainer.train()
    assert len({len(item.completion) for item in played}) > 1, "rows of a batch must differ in length"
    for episode in played:
        judged = expected_reward(folder, episode)
        assert episode.reward_parts["judge"] == pytest.approx(judged, abs=1e-5)
        other = sum(episode.reward_parts[name] or 0.0 for name in ("environment", "brevity"))
        assert episode.reward == pytest.approx(2 * judged + other, abs=1e-5)
    assert "rewards/judge/mean" in trainer.state.log_history[0]


def test_each_process_has_the_weights_where_fsdp_lets_the_first_one_read_them(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, question = RewardModel(folder), Message(role="user", content="Hi")
    conversations = [[question]], [[tool_call("look")]]
    for name in ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING", "LOCAL_RANK"):
        monkeypatch.setenv(name, "1")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        assert RewardModel(folder)(*conversations) == here(*conversations)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("own", [None, "<|im_end|>", "<|endoftext|>"])
def test_padding_does_not_move_the_token_that_is_read(own: str | None) -> None:
    """The head reads the last token that is not padding, and the template ends with the end-of-sequence token."""
    taken = make_tiny_tokenizer(["text"])
    assert taken.eos_token == "<|im_end|>"
    taken.pad_token = None
    taken.chat_template = "{% for message in messages %}{{ message.content }}<|im_end|>{% endfor %}"
    judge = reward_model(pad_token_id=own and taken.convert_tokens_to_ids(own)).eval()
    answers = ["a", "long answer", "three more words"]
    rows = [taken.encode(f"Hi<|im_end|>{answer}<|im_end|>", add_special_tokens=False) for answer in answers]
    with torch.no_grad():
        alone = [judge(torch.tensor([row])).logits.item() for row in rows]
    completions = [[Message(role="assistant", content=answer)] for answer in answers]
    rewards = RewardModel(judge, taken)([[Message(role="user", content="Hi")]] * 3, completions)
    assert rewards == pytest.approx(alone, abs=1e-5)
    assert taken.pad_token is None
    assert judge.config.pad_token_id == (own and taken.convert_tokens_to_ids(own))


def test_a_template_without_tools_stops_a_training_with_tools(tmp_path: Path) -> None:
    taken = make_tiny_tokenizer(["text"])
    taken.chat_template = (
        "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}{{ raise_exception('Only users.') }}"
        "{% endif %}{{ m.content }}{% endfor %}"
    )
    judge = RewardModel(reward_model(), taken)
    trainer = make_trainer(tmp_path, reward_funcs=judge, temperature=1.5)
    with pytest.raises(ConfigurationError, match=r"Qwen3ForSeq.* cannot render .*'assistant', 'tool'.*Only users"):
        trainer.rollout([{"good": "left", "id": 0}], num_generations=4)


def test_a_reward_model_made_in_memory_takes_the_tokenizer_that_is_given(tmp_path: Path) -> None:
    options: dict[str, Any] = {"reward_funcs": [reward_model(), brevity], "max_steps": 1}
    make_trainer(tmp_path, reward_processing_classes=[tokenizer(), None], **options).train()
    with pytest.raises(ValueError, match="reward_processing_classes is needed: the reward model Qwen3ForSeq"):
        make_trainer(tmp_path, **options)


def test_an_episode_beyond_the_reward_models_context_fails(tmp_path: Path) -> None:
    narrow = reward_model(max_position_embeddings=20)
    trainer = make_trainer(
        tmp_path, reward_funcs=narrow, reward_processing_classes=tokenizer(), max_steps=1, max_failure_rate=1.0
    )
    episodes = trainer.rollout([{"good": "left", "id": 0}], num_generations=2)
    for episode in episodes:
        assert episode.failure is not None
        assert episode.failure.stage == "reward"
        assert "tokens, and the context of Qwen3ForSequenceClassification is 20 tokens" in episode.failure.message


def test_models_that_cannot_judge_are_refused_before_a_training(tmp_path: Path) -> None:
    plain = make_tiny_tokenizer(["text"])
    plain.chat_template = None  # type: ignore[assignment]
    no_head = tmp_path / "no_head"
    model().save_pretrained(no_head)
    tokenizer().save_pretrained(no_head)
    mine = {"reward_processing_classes": tokenizer()}
    wrong: list[tuple[Any, Any, str]] = [
        (model(), mine, "must be a sequence classifier with one label, got Qwen3ForCausalLM"),
        (torch.nn.Linear(2, 1), mine, "must be a sequence classifier with one label, got Linear"),
        (reward_model(num_labels=3), mine, "gives one number, and Qwen3ForSequenceClassification gives 3"),
        (str(no_head), {}, "no_head' is no reward model: it lacks .*score.weight"),
        (str(tmp_path / "absent"), {}, "absent' is the name of no reward model.*or a function"),
        (reward_model(), {"reward_processing_classes": plain}, "has no chat template"),
        (reward_model(), {"reward_processing_classes": "a name"}, "must be a tokenizer, got str"),
        ([reward_model(), brevity], {"reward_processing_classes": [tokenizer()]}, "2 reward_funcs and 1 reward_proc"),
        ([brevity], {"reward_processing_classes": [tokenizer()]}, "a tokenizer for <function brevity.*not a model"),
        ([brevity], mine, "one tokenizer, and reward_funcs has 0 reward models"),
    ]
    for functions, options, message in wrong:
        with pytest.raises((TypeError, ValueError), match=message):
            make_trainer(tmp_path / "run", reward_funcs=functions, **options)
