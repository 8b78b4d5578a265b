"""Features of transformers.Trainer: callbacks, options, command lines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import HfArgumentParser, TrainerCallback
from transformers.utils.logging import is_progress_bar_enabled

from gymnast.trainer import GRPOConfig, RLOOConfig

from .buttons import ROWS, Gradients, make_trainer
from .inspecting import differ, step_logs, weights


class Hears(TrainerCallback):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.heard += [name for name in logs if name in ("reward", "eval_reward", "train_loss")]

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.heard.append("begin")

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        self.heard.append("evaluated")
        assert "eval_reward" in metrics

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.heard.append("end")


def test_callbacks_get_every_event(tmp_path: Path) -> None:
    callback = Hears()
    trainer = make_trainer(
        tmp_path, callbacks=[callback], eval_rows=ROWS, eval_strategy="steps", eval_steps=1, max_steps=1
    )
    output = trainer.train()
    assert callback.heard == ["begin", "reward", "eval_reward", "evaluated", "train_loss", "end"]
    assert output.global_step == 1
    assert math.isfinite(output.training_loss)


@pytest.mark.parametrize("shown", [True, False])
def test_disable_tqdm_hides_the_bars_of_reading_and_writing_weights(
    shown: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "model")
    make_trainer(tmp_path / "first", disable_tqdm=not shown).save_model(folder)
    make_trainer(tmp_path / "second", agent=folder, disable_tqdm=not shown)
    said = capfd.readouterr().err
    assert ("Loading weights" in said, "Writing model shards" in said) == (shown, shown)
    assert is_progress_bar_enabled()


@pytest.mark.parametrize(
    "options",
    [
        {"bf16": True},
        {"gradient_checkpointing": True, "num_iterations": 2},
        {"torch_compile": True, "torch_compile_backend": "eager"},
        {"include_num_input_tokens_seen": "non_padding"},
        {"skip_memory_metrics": False},
        {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 1},
        {"eval_on_start": True, "eval_strategy": "epoch"},
        {"save_strategy": "best", "metric_for_best_model": "reward", "eval_strategy": "steps", "eval_steps": 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_transformers_work(options: dict[str, Any], tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=2, eval_rows=ROWS, **options)
    before = weights(trainer.model)  # type: ignore[arg-type]
    trainer.train()
    assert trainer.state.global_step == 2
    assert differ(before, weights(trainer.model))  # type: ignore[arg-type]
    logs = step_logs(trainer)[0]
    assert logs["stop/final_answer"] > 0.9
    # bf16 has three digits, so sampling and training agree less closely.
    assert logs["sampling/sampling_logp_difference/mean"] < (0.05 if "bf16" in options else 1e-4)


@pytest.mark.parametrize(
    ("instructions", "is_slow"), [({}, True), *(({name: True}, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))]
)
def test_bf16_is_named_slow_on_a_processor_without_it(
    instructions: dict[str, bool],
    is_slow: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: instructions)
    make_trainer(tmp_path, max_steps=1, bf16=True).train()
    assert ("lacks instructions for bfloat16" in caplog.text) is is_slow


def test_gradient_checkpointing_has_the_same_gradient(tmp_path: Path) -> None:
    gradients = []
    for checkpointing in (False, True):
        kept = Gradients()
        make_trainer(tmp_path, callbacks=[kept], gradient_checkpointing=checkpointing).train()
        gradients.append(kept.steps[0])
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


@pytest.mark.parametrize("config_class", [GRPOConfig, RLOOConfig])
def test_configurations_are_read_from_command_lines(config_class: Any, tmp_path: Path) -> None:
    parser = HfArgumentParser(config_class)
    words = ["--output_dir", str(tmp_path), "--beta", "0.25", "--use_cpu", "--scale_rewards", "batch", "--top_p", "0.9"]
    [args] = parser.parse_args_into_dataclasses(words)
    assert (args.beta, args.scale_rewards, args.top_p) == (0.25, "batch", 0.9)
    assert json.loads(args.to_json_string())["beta"] == 0.25


def test_predict_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="rollout"):
        make_trainer(tmp_path).predict(ROWS)
