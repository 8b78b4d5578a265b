"""Training on episodes with images, from a folder with a model and its processor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from peft import VeraConfig
from transformers import FuyuConfig, FuyuForCausalLM

from gymnast.envs import ConfigurationError
from gymnast.envs.engine.compaction import EARLIER_IMAGE
from gymnast.trainer import (
    EveryTurn,
    Generation,
    GenerationRequest,
    GRPOConfig,
    GRPOTrainer,
    RLOOConfig,
    RLOOTrainer,
    TransformersGenerator,
    last_images,
)
from gymnast.trainer.models.adapters import with_adapter
from gymnast.trainer.models.images import ImageEncoder, freeze_vision
from gymnast.trainer.setup.model_facts import model_facts

from ..training.gallery import Gallery
from .families import make


def config(kind: Any, folder: Path, **options: Any) -> Any:
    sizes = {"num_generations": 4, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 2}
    budgets = {"max_completion_length": 400, "max_tokens_per_batch": 300}
    logs = {"logging_steps": 1, "disable_tqdm": True, "report_to": "none", "save_strategy": "no"}
    return kind(output_dir=str(folder), **{**sizes, **budgets, **logs, "learning_rate": 1e-3, "beta": 0.05, **options})


@pytest.mark.parametrize(("kind", "trainer"), [(GRPOConfig, GRPOTrainer), (RLOOConfig, RLOOTrainer)])
def test_pictures_are_learned_from_with_exact_tokens(kind: Any, trainer: Any, tmp_path: Path) -> None:
    for part in make("qwen3_vl"):
        part.save_pretrained(tmp_path / "model")
    rows = [{"number": number} for number in range(4)]
    agent = trainer(str(tmp_path / "model"), Gallery(), config(kind, tmp_path / "run", save_strategy="steps"), rows)
    tower = {name: weight.detach().clone() for name, weight in agent.model.named_parameters() if "visual" in name}
    agent.train()
    first, second, *_ = agent.state.log_history
    for step in (first, second):
        assert step["tokens/drift"] == 0
        assert step["sampling/sampling_logp_difference/max"] < 1e-5
    assert second["grad_norm"] > 0
    assert any((weight != tower[name]).any() for name, weight in agent.model.named_parameters() if name in tower)
    [folder] = (tmp_path / "run").glob("checkpoint-*")
    again = trainer(str(folder), Gallery(), config(kind, tmp_path / "again"), rows)  # with its processor
    [episode] = again.rollout(rows[1:2])
    assert len(episode.traces[0].images) in (1, 3, 5)  # one, and two after each answer


class Brief(TransformersGenerator):
    """Ends an answer with one token in eight, so that episodes have several turns."""

    async def generate(self, request: GenerationRequest) -> Generation:
        return await super().generate(replace(request, stop_ids=request.stop_ids | {*range(20, 250, 8)}))


def test_older_pictures_are_dropped_with_exact_tokens(tmp_path: Path) -> None:
    processor, model = make("qwen3_vl")
    args, rows = config(GRPOConfig, tmp_path), [{"number": 1}, {"number": 3}]
    brief = Brief(model, images=ImageEncoder(processor))
    parts: dict[str, Any] = {"processing_class": processor, "compact": EveryTurn(last_images(2)), "generator": brief}
    agent = GRPOTrainer(model, Gallery(), args, rows, **parts)
    agent.train()
    *steps, _ = agent.state.log_history
    assert [step["tokens/drift"] for step in steps] == [0, 0]
    assert steps[0]["sampling/sampling_logp_difference/max"] < 1e-5
    [episode] = agent.rollout(rows[:1])
    shown = [(processor.decode(trace.prompt_ids).count(EARLIER_IMAGE), len(trace.images)) for trace in episode.traces]
    assert shown == [(0, 1), (1, 2), (3, 2)]
    with pytest.raises(ValueError, match="at least 0, got -1"):
        last_images(-1)


def test_pictures_are_learned_from_while_others_are_played(tmp_path: Path) -> None:
    processor, model = make("qwen3_vl")
    args = config(GRPOConfig, tmp_path, max_staleness=1, max_steps=3)
    agent = GRPOTrainer(model, Gallery(), args, [{"number": 1}, {"number": 3}], processing_class=processor)
    agent.train()
    *steps, _ = agent.state.log_history
    assert [step["tokens/drift"] for step in steps] == [0, 0, 0]
    assert steps[0]["sampling/sampling_logp_difference/max"] < 1e-5
    assert steps[-1]["staleness/max"] == 1
    assert all(step["grad_norm"] > 0 for step in steps)


@pytest.mark.parametrize(("way", "bf16"), [("frozen tower", False), ("adapter", True)])
def test_a_tower_that_is_not_in_training_stays_without_activations(way: str, bf16: bool, tmp_path: Path) -> None:
    processor, model = make("qwen3_vl")
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    needed: list[bool] = []
    model.model.visual.blocks[0].register_forward_hook(
        lambda _block, _args, output: needed.append(output.requires_grad)
    )
    options: dict[str, Any] = {"gradient_checkpointing": True, "bf16": bf16, "use_cpu": True, "beta": 0.0}
    args = config(GRPOConfig, tmp_path, freeze_vision=way == "frozen tower", **options)
    peft = {"r": 2, "target_modules": ["q_proj", "linear_fc1"]} if way == "adapter" else None
    parts = {"processing_class": processor, "peft_config": peft}
    agent = GRPOTrainer(model, Gallery(), args, [{"number": 1}, {"number": 3}], **parts)
    agent.train()
    *steps, _ = agent.state.log_history
    assert [step["tokens/drift"] for step in steps] == [0, 0]
    assert all(step["grad_norm"] > 0 for step in steps)
    assert needed
    assert not any(needed)
    after: Any = agent.model
    trained = {name for name, weight in after.named_parameters() if weight.requires_grad}
    if way == "adapter":
        assert {name.split(".")[3] for name in trained} == {"language_model"}
        return
    changed = {name for name, weight in after.named_parameters() if (weight != before[name]).any()}
    assert changed <= trained
    assert {name.split(".")[2] for name in changed if "visual" in name} == {"merger", "deepstack_merger_list"}


def test_a_model_without_a_vision_tower_cannot_freeze_it() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = FuyuForCausalLM(FuyuConfig(vocab_size=64, **sizes))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="FuyuForCausalLM has no vision tower of its own"):
        freeze_vision(model)
    assert all(weight.requires_grad for weight in model.parameters())


def test_an_adapter_of_a_kind_without_exclude_modules_is_on_the_language_model() -> None:
    adapted = with_adapter(make("qwen3_vl")[1], VeraConfig(r=2))
    layers = [name for name, module in adapted.named_modules() if hasattr(module, "vera_lambda_b")]
    assert layers
    assert all("language_model" in name for name in layers)


@pytest.mark.parametrize("given", ["a tokenizer", "an adapter"])
def test_freezing_what_is_not_in_training_is_refused(given: str, tmp_path: Path) -> None:
    processor, model = make("qwen3_vl")
    parts: dict[str, Any] = {"processing_class": processor.tokenizer}
    if given == "an adapter":
        parts = {"processing_class": processor, "peft_config": {}}
    with pytest.raises(ConfigurationError, match="freeze_vision=True has no effect"):
        GRPOTrainer(model, Gallery(), config(GRPOConfig, tmp_path, freeze_vision=True), [{"number": 0}], **parts)


def test_pictures_are_made_smaller(tmp_path: Path) -> None:
    processor, model = make("qwen3_vl")
    rows = [{"number": 1}]
    small = GRPOTrainer(
        model, Gallery(), config(GRPOConfig, tmp_path, max_image_pixels=600), rows, processing_class=processor
    )
    [episode] = small.rollout(rows)
    assert {str(span.image) for span in episode.traces[0].images} == {"[image 24x24]"}


def test_the_facts_about_a_model_say_what_a_picture_costs(tmp_path: Path) -> None:
    for part in make("qwen3_vl"):
        part.save_pretrained(tmp_path)
    facts = model_facts(str(tmp_path), [([{"role": "user", "content": "look"}], [])], None)
    assert facts.problem == ""
    tokens = {size: cost[0] for size, cost in facts.image_costs.items()}
    assert tokens == {"512x384": 768, "1280x720": 3600}  # 16 x 16 pixels a token
    assert facts.image_costs["512x384"][1] > 4 * 3 * 512 * 384
