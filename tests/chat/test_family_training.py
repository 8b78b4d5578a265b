"""Training with the model families: a scripted model of each plays in its own syntax, and is learned from."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from gymnast.envs import StopReason
from gymnast.trainer import ChatFormat, GenerationRequest, GRPOTrainer
from gymnast.trainer.testing.tiny import make_tiny_model

from ..tool_calls.writers import WRITERS
from ..training.buttons import Buttons, ScriptedGenerator, config
from .families import TOKENS, tokenizer_of

# One template of each kind. The tool format is given if the template does not render tools.
TEMPLATES = {
    "gptoss": None,  # other end tokens for calls than for text
    "glm4moe": None,  # an answer ends with the first token of what follows
    "gemma4_v5": None,  # results within the model's own turn
    "qwen3_5_think": None,  # the template begins the thoughts
    "llama3_1": None,  # one call a turn
    "muse_glimmer": None,
    "lfm2": None,  # calls are not rendered
    "phi4_mini": None,  # tools in the system message
    "mistral_small_3_2": None,  # ids of nine characters
    "kimi_k2": None,  # ids with the name of the tool
    "command_r7b": None,  # calls are numbered through the episode
    "granite_3_0": None,  # results have another role
    "deepseek_v3_1": "deepseek_v3_1",
    "phi3": "react",
    "gemma": "react",  # no system message
    "idefics3": "react",  # content in parts
}
TRAINED = ("gptoss", "glm4moe", "idefics3")  # from the tokens on, the learning is the same for all
WRITES_IDS = ("mistral_small_3_2", "kimi_k2", "command_r7b")  # the scripted model writes the same one in every turn


def scripted(chat: ChatFormat) -> ScriptedGenerator:
    """A scripted model that looks and then presses one of the buttons."""

    def answer(request: GenerationRequest) -> list[int]:
        seen = "one is lit" in chat.template.decode(request.prompt.ids)
        name = ("left" if request.seed % 2 else "right") if seen else "look"
        return [*chat.template.encode(call_text(chat, name)).ids, chat.call_end_id]

    return ScriptedGenerator(answer)


def call_text(chat: ChatFormat, name: str) -> str:
    """The text of a model of the family that calls a tool without arguments."""
    rendered = None if chat.endings.call_end is None else chat.endings.render_call(name, {})
    if rendered is not None:
        return rendered[1]
    assert chat.tool_format is not None
    writer = WRITERS[chat.tool_format.name]  # type: ignore[attr-defined]
    return writer.answer(writer(name))


@pytest.mark.parametrize("stem", TEMPLATES)
def test_episodes_are_played_and_learned_from(stem: str, tmp_path: Path) -> None:
    tokenizer, model = tokenizer_of(stem), make_tiny_model(tokenizer_of(stem), hidden_size=32, num_layers=1)
    model.config.max_position_embeddings = 8192  # a byte is a token here; rotary positions are computed as needed
    assert model.generation_config is not None
    ends = model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(TOKENS[stem]["eos"])
    rows = [{"good": "left", "id": 0}, {"good": "right", "id": 1}]
    trainer = GRPOTrainer(
        model,
        environment=Buttons(),
        args=config(tmp_path, max_completion_length=1024),
        train_dataset=rows,
        processing_class=tokenizer,
        tool_format=TEMPLATES[stem],
        generator=scripted(ChatFormat(tokenizer, tool_format=TEMPLATES[stem], end_token_ids=ends)),
    )
    for episode in trainer.player.play(rows, count=4):
        [trace] = episode.traces
        assert episode.stop is StopReason.FINAL_ANSWER, episode.failure
        assert trace.drift == 0
        assert [turn.num_tokens for turn in episode.turns] == [sum(run) for run in runs(trace.mask)]
        calls = [call for turn in episode.turns for call in turn.message.get("tool_calls", [])]
        assert calls[0]["function"]["name"] == "look"
        assert len(calls) == 2
        if stem not in WRITES_IDS:
            assert calls[0].get("id") != calls[1].get("id")

    if stem not in TRAINED:
        return
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trainer.train()
    after = list(model.parameters())
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert all(torch.isfinite(weight).all() for weight in after)


def runs(mask: list[int]) -> list[list[int]]:
    """The stretches of the mask that the model wrote."""
    return [list(values) for sampled, values in itertools.groupby(mask) if sampled]


def test_the_date_of_templates(tmp_path: Path) -> None:
    def prompt(**options: Any) -> str:
        trainer = GRPOTrainer(
            make_tiny_model(tokenizer_of("smollm3"), hidden_size=32, num_layers=1),
            environment=Buttons(),
            args=config(tmp_path, **options),
            train_dataset=[{"good": "left", "id": 0}],
            processing_class=tokenizer_of("smollm3"),
        )
        return trainer.player.policy.chat.template.render([{"role": "user", "content": "Hello."}], more=True)

    assert "Today Date: 01 January 2025" in prompt()
    assert "Today Date: 21 June 1994" in prompt(chat_template_date="1994-06-21")
    with pytest.raises(ValueError, match="chat_template_date must be a date such as 2025-01-01, got 'today'"):
        config(tmp_path, chat_template_date="today")
