"""Training through the public trainers: learning, rewards, seeds, data and environments."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor

from gymnast.envs import Message, ToolEnv, matches, tool
from gymnast.records import read_episodes
from gymnast.trainer import LOSSES, AgentTrainer, GenerationRequest, GRPOConfig, GRPOTrainer

from .buttons import ROWS, Buttons, ScriptedGenerator, call_ids, ids, make_trainer, model, tokenizer
from .inspecting import BOTH, assert_same, differ, step_logs, weights

# End to end.


@BOTH
def test_it_learns(trainer_class: type[AgentTrainer], tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, trainer_class, max_steps=15, per_device_train_batch_size=16, learning_rate=4e-3)
    before = trainer.evaluate(ROWS * 4)["eval_reward"]
    trainer.train()
    after = trainer.evaluate(ROWS * 4)["eval_reward"]
    assert before < 0.7
    assert after > 0.95


@pytest.mark.parametrize("loss_type", LOSSES)
def test_each_loss_runs(loss_type: str, tmp_path: Path) -> None:
    # Without these options the configuration warns that a part of the paper is missing.
    of_paper = {"dr_grpo": {"scale_rewards": "none"}, "gspo": {"epsilon": 3e-4}, "gspo_token": {"epsilon": 3e-4}}
    uses = 1 if loss_type == "reinforce" else 2  # of a round
    trainer = make_trainer(
        tmp_path, loss_type=loss_type, num_iterations=uses, max_steps=2, **of_paper.get(loss_type, {})
    )
    before = weights(trainer.model)  # type: ignore[arg-type]
    trainer.train()
    first, second = step_logs(trainer)
    assert differ(before, weights(trainer.model))  # type: ignore[arg-type]
    assert first["grad_norm"] > 0
    # The round is used twice. The second time the policy has moved, so its ratios are no longer 1.
    assert "reward" in first
    assert ("reward" in second) == (uses == 1)
    assert second["sampling/sampling_logp_difference/max"] < 1e-4  # the old log-probabilities against the sampled ones


@dataclasses.dataclass
class CappedConfig(GRPOConfig):
    ratio_cap: float = 2.0


def test_a_loss_of_the_users_own_reads_the_options_of_a_subclass(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read: list[Any] = []

    def capped(ratio_BR: Tensor, logprobs_BR: Tensor, advantages_BR: Tensor, settings: Any) -> Tensor:
        read.append(settings.own)
        return -ratio_BR.clamp(max=settings.own["ratio_cap"]) * advantages_BR

    monkeypatch.setitem(LOSSES, "capped", dataclasses.replace(LOSSES["dapo"], surrogate=capped))
    args = CappedConfig(str(tmp_path), loss_type="capped", ratio_cap=1.5, max_steps=1, use_cpu=True, report_to="none")
    trainer = GRPOTrainer(model(), Buttons(), args, ROWS, processing_class=tokenizer())
    trainer.train()
    assert {"ratio_cap": 1.5} in read
    with pytest.raises(TypeError, match="ratio_cap must be of type float, got str"):
        CappedConfig(str(tmp_path), ratio_cap="high", use_cpu=True)  # type: ignore[arg-type]


# Reproducibility.


@BOTH
def test_a_seed_decides_everything(trainer_class: type[AgentTrainer], tmp_path: Path) -> None:
    runs = []
    for seed in (1, 1, 2):
        trainer = make_trainer(tmp_path, trainer_class, seed=seed, max_steps=3)
        torch.rand(seed)  # earlier random numbers of the program do not matter
        trainer.train()
        rewards = [logs["tokens/sampled"] for logs in step_logs(trainer)]
        runs.append((weights(trainer.model), rewards))  # type: ignore[arg-type]
    assert_same(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]
    assert differ(runs[0][0], runs[2][0])


# Data and environments.


def test_a_training_on_text_needs_no_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIL", "PIL.Image"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    make_trainer(tmp_path, log_episodes_steps=1).train()
    assert len([*read_episodes(tmp_path / "episodes.jsonl")]) == 8


def test_a_datasets_dataset(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, rows=Dataset.from_list(ROWS), eval_rows=Dataset.from_list(ROWS))
    trainer.train()
    assert step_logs(trainer)[0]["episodes/played"] == 8
    assert trainer.evaluate()["eval_episodes/played"] == 16


class Levers(ToolEnv):
    """Another environment."""

    @tool(final=True)
    def pull(self) -> str:
        """Pull the lever."""
        self.reward = 5.0
        return "done"


MIXED: list[dict[str, Any]] = [{"environment": "buttons", "good": "left"}, {"environment": "levers", "prompt": "Pull."}]


def slash(text: str) -> Message:
    """Reads `/left` as a call."""
    function: Any = {"name": text.removeprefix("/"), "arguments": {}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def test_each_environment_may_have_its_tool_format_and_template(tmp_path: Path) -> None:
    own = str(tokenizer().chat_template).replace("Tools: ", "Levers: ")

    def answer(request: GenerationRequest) -> list[int]:
        pulls = "Levers: " in str(tokenizer().decode(request.prompt.ids))
        return call_ids("pull") if pulls else ids("/left" if request.seed % 2 else "/right") + ids("<|im_end|>")

    trainer = make_trainer(
        tmp_path,
        environment={"buttons": Buttons(), "levers": Levers},
        rows=MIXED,
        eval_rows=MIXED,
        generator=ScriptedGenerator(answer),
        tool_format={"buttons": slash},
        chat_templates={"levers": own},
    )
    trainer.train()
    [logs] = step_logs(trainer)
    assert (logs["stop/final_answer"], logs["environments/levers/reward"]) == (1, 5)
    assert trainer.evaluate()["eval_stop/final_answer"] == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"tool_format": {"button": "hermes"}},
            r"tool_format names \['button'\], which are not among the environments",
        ),
        ({"chat_templates": {"lever": "x"}}, r"chat_templates names \['lever'\], which are not among the environments"),
        (
            {"chat_templates": {"levers": "{{ messages }}"}},
            r"the environment 'levers': the tokens of an observation are",
        ),
        (
            {"environment": Buttons(), "tool_format": {"buttons": "hermes"}},
            "environment= is a single one, which has no",
        ),
        ({"chat_templates": "x"}, r"chat_templates must be a dict .* set tokenizer\.chat_template for all"),
    ],
)
def test_formats_of_environments_are_checked(options: dict[str, Any], error: str, tmp_path: Path) -> None:
    environments = {"buttons": Buttons(), "levers": Levers}
    with pytest.raises((TypeError, ValueError), match=error):
        make_trainer(tmp_path, **{"environment": environments, "rows": MIXED, **options})


def test_answers_without_tools(tmp_path: Path) -> None:
    """A plain chat: no tools, a text answer, a reward function."""
    generator = ScriptedGenerator(lambda request: ids("yes" if request.seed % 2 else "no") + ids("<|im_end|>"))
    rows = [{"prompt": "Say yes."}]
    says = matches("completion[0].content == 'yes'", name="says_yes")
    trainer = make_trainer(tmp_path, environment=ToolEnv(), rows=rows, generator=generator, reward_funcs=says)
    trainer.train()
    [logs] = step_logs(trainer)
    assert logs["stop/model_stopped"] == 1
    assert 0 < logs["rewards/says_yes/mean"] < 1
    assert "eval_rewards/environment/mean" not in trainer.evaluate(rows)  # a plain ToolEnv gives no rewards
    assert logs["tools/call_frequency"] == 0
