"""Training on episodes with images, from a folder with a model and its processor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import Message, ToolEnv
from gymnast.trainer import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from gymnast.trainer.setup.model_facts import model_facts

from ..envs.pictures import picture
from .families import make


class Gallery(ToolEnv):
    """Shows a picture after each answer, in every second row also before the first."""

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        self.seen, self.number = 0, task["number"]
        shown = [self.part()] if self.number % 2 else []
        return [{"role": "user", "content": [{"type": "text", "text": "look"}, *shown]}]

    def part(self) -> dict[str, Any]:
        return {"type": "image", "image": picture(self.number, width=32 + 16 * (self.number % 3), height=48)}

    def reply(self, message: Message) -> list[Message] | None:
        self.reward += len(str(message.get("content"))) % 3
        self.seen += 1
        return [{"role": "user", "content": [self.part(), self.part()]}] if self.seen < 3 else None


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
    assert [cost[:3] for cost in facts.image_costs] == [(512, 384, 768), (1280, 720, 3600)]  # 16 x 16 pixels a token
    assert facts.image_costs[0].bytes > 4 * 3 * 512 * 384
