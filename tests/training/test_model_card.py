"""The model card beside a saved model, and in a repository of the Hub."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from gymnast.envs import Calculator

from ..hub import serving
from .buttons import ROWS, Buttons, make_trainer, subprocess_environment


def short(completions: list[Any], **_: Any) -> list[float]:
    return [-float(len(completion)) for completion in completions]


def test_a_saved_model_has_a_card(tmp_path: Path) -> None:
    options: dict[str, Any] = {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 2, "max_steps": 2}
    options |= {"record_run": True, "reward_weights": [0.1], "num_generations_eval": 2}
    trainer = make_trainer(tmp_path / "run", eval_rows=ROWS, reward_funcs=short, **options)
    trainer.model.config._name_or_path = "me/base"  # type: ignore[union-attr]
    trainer.train()
    (tmp_path / "run" / "run.yaml").write_text("tasks: hub:me/tasks[train]\n")
    trainer.save_model(str(tmp_path / "agent"))
    card = ModelCard.load(tmp_path / "agent" / "README.md")
    assert card.data.to_dict() == {
        "datasets": ["me/tasks"],
        "base_model": "me/base",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["gymnast", "reinforcement-learning"],
    }
    first, last = (log for log in trainer.state.log_history if "eval_reward" in log)
    low, high = (100 * last[f"eval_pass@1/{end}"] for end in ("low", "high"))
    for text in (
        "# agent\n",
        "trained from `me/base` by GRPO with gymnast",
        "## Environment: `Buttons`\n\n",
        "- `look()`: ",
        "- `short`, times 0.1\n",
        f"| evaluation: success (pass@1, 95 % interval) | {100 * first['eval_pass@1']:.1f} % (",
        f" | {100 * last['eval_pass@1']:.1f} % ({low:.1f} to {high:.1f} %), step 2 |",
        "| training: reward | ",
        "![The reward of each step](reward.png)",
        "`gymnast train run.yaml`, with this file:\n\n```yaml\ntasks: hub:me/tasks[train]\n```",
        "Versions: gymnast-rl ",
    ):
        assert text in card.text, card.text
    assert (tmp_path / "agent" / "reward.png").exists()


def test_a_card_takes_the_place_of_no_other_readme_and_shows_no_other_run(tmp_path: Path) -> None:
    make_trainer(tmp_path, max_steps=1, record_run=True).train()
    environment = {"buttons": Buttons, "sums": "gymnast/Calculator-v0", "made": lambda: Buttons()}
    rows = [row | {"environment": "buttons"} for row in ROWS]
    trainer = make_trainer(tmp_path, max_steps=1, record_run=True, temperature=0.9, environment=environment, rows=rows)
    trainer.save_model()
    text = (tmp_path / "README.md").read_text()
    assert "in `buttons`, `sums`, `made`." in text
    assert (
        f"## Environment: `sums`\n\n{inspect.cleandoc(Calculator.__doc__ or '')}\n\n## Environment: `made`\n\n##"
        in text
    )
    assert "- `temperature=0.9`" in text
    assert "## Results" not in text  # those in the folder belong to the training before
    (tmp_path / "README.md").write_text("# My project\n")
    trainer.save_model()
    assert (tmp_path / "README.md").read_text() == "# My project\n"
    with pytest.raises(TypeError, match="dataset_args"):
        trainer.create_model_card(dataset_args="a")  # type: ignore[call-arg]


PUSH = """
import sys
from buttons import make_trainer
trainer = make_trainer(sys.argv[1], max_steps=1, record_run=True, hub_model_id="me/agent")
trainer.train()
trainer.push_to_hub(tags="buttons", license="mit", finetuned_from="me/base", dataset_tags="me/tasks")
"""


def test_a_pushed_model_has_its_card(tmp_path: Path) -> None:
    with serving(tmp_path / "hub") as hub:
        command = [sys.executable, "-c", PUSH, str(tmp_path / "run")]
        subprocess.run(command, env=subprocess_environment() | hub, check=True, timeout=240)
    pushed = tmp_path / "hub" / "me" / "agent"
    data: Any = ModelCard.load(pushed / "README.md").data
    assert (data.base_model, data.datasets, data.license) == ("me/base", ["me/tasks"], "mit")
    assert data.tags == ["gymnast", "reinforcement-learning", "buttons"]
    assert {"model.safetensors", "reward.png", "tokenizer.json"} <= {path.name for path in pushed.iterdir()}
