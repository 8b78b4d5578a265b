"""The options that choose a generator. A wrong option is refused before a model is loaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs.core import ConfigurationError
from gymnast.trainer import Generator, GRPOTrainer, TransformersGenerator

from ..training.buttons import Buttons, ScriptedGenerator, call_ids, config, make_trainer, model, tokenizer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"generator": "vlm"}, "generator must be one of transformers, vllm, vllm-server, got 'vlm'"),
        (
            {"vllm_enable_sleep_mode": True},
            r"'transformers' does not read vllm_enable_sleep_mode, got True: .* use vllm",
        ),
        ({"generator": "vllm", "vllm_server_urls": ["http://a"]}, "'vllm' does not read vllm_server_urls"),
        ({"generator": "vllm-server", "generation_rows": 8}, "'vllm-server' does not read generation_rows"),
        ({"generator": "vllm", "vllm_gpu_memory_utilization": 0.0}, r"must be in \(0, 1\], got 0.0"),
        ({"generator": "vllm-server", "vllm_server_urls": "http://a"}, r"must be a list; write \['http://a'\]"),
        ({"generator": "vllm-server", "vllm_server_timeout": 0.0}, "vllm_server_timeout must be positive"),
        ({"generator": "vllm-server", "vllm_group_port": 70000}, "a port, or 0 for any free one, got 70000"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ",".join(value),
)
def test_options_that_are_wrong_or_have_no_effect(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **options)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_vllm_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs the extra `vllm` of gymnast-rl"):
        make_trainer(tmp_path, generator="vllm")


def test_a_generator_must_be_a_generator(tmp_path: Path) -> None:
    class Frozen:
        async def generate(self, request: Any) -> Any: ...

    with pytest.raises(TypeError, match=r"must be a gymnast.trainer.Generator, got Frozen"):
        make_trainer(tmp_path, generator=Frozen())
    with pytest.raises(TypeError, match=r"is an option: args=GRPOConfig\(generator='vllm'\)"):
        GRPOTrainer(model(), Buttons(), config(tmp_path), processing_class=tokenizer(), generator="vllm")  # type: ignore[arg-type]


def test_a_generator_that_is_given_reads_no_options(tmp_path: Path) -> None:
    generator = ScriptedGenerator(lambda request: call_ids("left"))
    with pytest.warns(UserWarning, match="vllm_enable_sleep_mode, generator: no effect"):
        GRPOTrainer(
            model(),
            environment=lambda: None,  # type: ignore[arg-type,return-value]
            args=config(tmp_path, generator="vllm", vllm_enable_sleep_mode=True),
            processing_class=tokenizer(),
            generator=generator,
        )


class Notes(Generator):
    """Records the calls to it."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    async def generate(self, request: Any) -> Any:
        self.notes.append("generate")
        return await ScriptedGenerator(lambda item: call_ids("left")).generate(request)

    def load_weights(self, model: Any, version: int) -> None:
        self.notes.append(version)

    def wake(self) -> None:
        self.notes.append("wake")

    def sleep(self) -> None:
        self.notes.append("sleep")

    def close(self) -> None:
        self.notes.append("close")


def test_weights_are_loaded_once_after_each_step_and_only_while_awake(tmp_path: Path) -> None:
    generator = Notes()
    trainer = make_trainer(tmp_path, generator=generator, max_steps=2, num_iterations=2, max_turns=1)
    trainer.train()
    trainer.rollout([{"good": "left", "id": 1}], num_generations=2)
    trainer.rollout([{"good": "left", "id": 1}], num_generations=2)
    one_round = ["generate"] * 8
    two = ["generate"] * 2
    assert generator.notes == ["wake", 0, *one_round, "sleep", "wake", 2, *two, "sleep", "wake", *two, "sleep"]


def test_a_generator_sleeps_after_an_error_in_a_round(tmp_path: Path) -> None:
    class Breaks(Notes):
        def load_weights(self, model: Any, version: int) -> None:
            raise OSError("no way there")

    generator = Breaks()
    with pytest.raises(OSError, match="no way there"):
        make_trainer(tmp_path, generator=generator).train()
    assert generator.notes == ["wake", "sleep"]


def test_every_change_of_the_weights_is_noticed(tmp_path: Path) -> None:
    generator = Notes()
    trainer = make_trainer(tmp_path, generator=generator)
    send = trainer.player.send_weights
    send()
    send()
    trainer.player.model.load_state_dict(trainer.player.model.state_dict())
    send()
    trainer.state.global_step = 1  # an optimiser whose writes PyTorch does not count
    send()
    send()
    assert generator.notes == [0, 0, 1]


def test_the_transformers_generator_refuses_another_model() -> None:
    generator = TransformersGenerator(model())
    with pytest.raises(ValueError, match="samples with the model that it was made for"):
        generator.load_weights(model(), 1)


def test_every_turn_records_the_weights_that_it_was_sampled_with(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=3)
    rounds: list[Any] = []
    trainer.on_episodes = rounds.append  # type: ignore[method-assign]
    trainer.train()
    assert [{turn.weight_version for episode in episodes for turn in episode.turns} for episodes in rounds] == [
        {0},
        {1},
        {2},
    ]
