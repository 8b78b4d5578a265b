"""Training with vLLM in the same process: it gets new weights after each optimiser step, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from gymnast.envs import ConfigurationError, Episode
from gymnast.trainer import AgentTrainer, GRPOTrainer, RLOOTrainer
from gymnast.trainer.vllm.in_process import VLLMGenerator

from ..training.buttons import ROWS, make_trainer
from ..training.buttons import model as buttons_model
from ..training.launching import launch

TOLERANCE = 1e-3  # nats, over whole episodes in float32; seen: 2e-5


class Loads:
    """Records the versions that a trainer loads into its generator."""

    def __init__(self, trainer: AgentTrainer) -> None:
        self.versions: list[int] = []
        generator: Any = trainer.player.generator
        load_weights = generator.load_weights

        def counted(model: Any, version: int) -> None:
            self.versions.append(version)
            load_weights(model, version)

        generator.load_weights = counted


@pytest.fixture
def trainers() -> Iterator[list[AgentTrainer]]:
    """Trainers; their engines are closed after the test."""
    made: list[AgentTrainer] = []
    yield made
    for trainer in made:
        trainer.player.generator.close()


def recording(trainer: AgentTrainer) -> list[list[Episode]]:
    rounds: list[list[Episode]] = []
    trainer.on_episodes = rounds.append  # type: ignore[method-assign,assignment]
    return rounds


def logprobs_off_by(agent: Any, episodes: list[Episode]) -> float:
    """The largest difference between the log-probabilities of these episodes and those of the model."""
    worst = 0.0
    for trace in (trace for episode in episodes for trace in episode.traces):
        tokens = torch.tensor([[*trace.prompt_ids, *trace.completion_ids]])
        with torch.no_grad():
            logits = agent.eval()(input_ids=tokens).logits[0, len(trace.prompt_ids) - 1 : -1].float()
        known = logits.log_softmax(-1).gather(1, torch.tensor(trace.completion_ids)[:, None])[:, 0]
        pairs = zip(known.tolist(), trace.logprobs, trace.mask, strict=True)
        worst = max([worst, *(abs(mine - theirs) for mine, theirs, sampled in pairs if sampled)])
    return worst


@pytest.mark.parametrize("trainer_class", [GRPOTrainer, RLOOTrainer])
def test_training_with_vllm_in_process(
    tmp_path: Path, trainers: list[AgentTrainer], trainer_class: type[AgentTrainer]
) -> None:
    trainer = make_trainer(tmp_path, trainer_class, generator="vllm", max_steps=3, eval_rows=ROWS)
    trainers.append(trainer)
    assert isinstance(trainer.player.generator, VLLMGenerator)
    loads, rounds = Loads(trainer), recording(trainer)
    trainer.train()
    metrics = trainer.evaluate()
    versions = [{turn.weight_version for episode in episodes for turn in episode.turns} for episodes in rounds]
    assert versions == [{0}, {1}, {2}]
    assert loads.versions == [0, 1, 2, 3]  # the last for the evaluation
    trainer.rollout(ROWS)
    assert loads.versions == [0, 1, 2, 3]
    logged = [logs for logs in trainer.state.log_history if "loss" in logs]
    assert all(logs["tokens/drift"] == 0 and logs["episodes/failed"] == 0 for logs in logged)
    assert max(logs["sampling/sampling_logp_difference/max"] for logs in logged) < TOLERANCE
    assert metrics["eval_episodes/played"] == 16
    assert all(logs["tokens/cached"] > 0 for logs in logged)


def test_options_of_the_engine_reach_vllm(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no_such_option"):
        make_trainer(tmp_path, generator="vllm", vllm_engine_kwargs={"no_such_option": 1})


def test_vllm_and_transformers_give_the_same_log_probabilities(tmp_path: Path, trainers: list[AgentTrainer]) -> None:
    """Greedy episodes are the same, and so are their log-probabilities."""
    trainers += [make_trainer(tmp_path, generator=name) for name in ("vllm", "transformers")]
    ours, theirs = (trainer.rollout(ROWS, temperature=0.0) for trainer in trainers)
    for mine, other in zip(ours, theirs, strict=True):
        [mine_trace], [other_trace] = mine.traces, other.traces
        assert mine_trace.completion_ids == other_trace.completion_ids
        assert mine_trace.logprobs == pytest.approx(other_trace.logprobs, abs=TOLERANCE)


@pytest.mark.parametrize("sent", [True, False], ids=["as an adapter", "merged"])
def test_vllm_samples_with_an_adapter_and_the_model_is_not_changed(
    sent: bool, tmp_path: Path, trainers: list[AgentTrainer]
) -> None:
    agent: Any = get_peft_model(buttons_model(), LoraConfig(target_modules=["q_proj", "down_proj"], r=4))
    before = {name: value.clone() for name, value in agent.state_dict().items() if "base_layer" in name}
    options: dict[str, Any] = {} if sent else {"vllm_engine_kwargs": {"enable_lora": False}}
    trainer = make_trainer(tmp_path, agent=agent, generator="vllm", max_steps=3, learning_rate=0.05, **options)
    trainers.append(trainer)
    rounds = recording(trainer)
    trainer.train()
    generator: Any = trainer.player.generator
    assert generator._engine.call(lambda engine: engine.vllm_config.lora_config is not None) is sent
    logged = [logs for logs in trainer.state.log_history if "loss" in logs]
    assert max(logs["sampling/sampling_logp_difference/max"] for logs in logged) < TOLERANCE
    assert [{turn.weight_version for episode in episodes for turn in episode.turns} for episodes in rounds] == [
        {0},
        {1},
        {2},
    ]
    after = agent.state_dict()
    assert before
    loads = Loads(trainer)
    trainer.rollout(ROWS)
    trainer.rollout(ROWS)
    assert loads.versions == [3]  # merging the adapter for vLLM does not count as a change
    assert all(after[name].equal(value) for name, value in before.items())
    with torch.no_grad():
        agent.get_base_model().lm_head.weight += 0.1 * torch.randn_like(agent.get_base_model().lm_head.weight)
    episodes = trainer.rollout(ROWS)
    assert len(loads.versions) == 2  # a change of a base weight counts
    assert logprobs_off_by(agent, episodes) < TOLERANCE


def test_vllm_samples_with_a_loaded_checkpoint(tmp_path: Path, trainers: list[AgentTrainer]) -> None:
    first = make_trainer(tmp_path, generator="vllm", max_steps=2, save_strategy="steps", save_steps=1)
    trainers.append(first)
    first.train()
    second = make_trainer(tmp_path, generator="vllm", max_steps=3, save_strategy="no")
    trainers.append(second)
    loads, rounds = Loads(second), recording(second)
    second.train(resume_from_checkpoint=True)
    assert loads.versions == [2]
    [episodes] = rounds
    assert {turn.weight_version for episode in episodes for turn in episode.turns} == {2}
    assert second.state.log_history[0]["sampling/sampling_logp_difference/max"] < TOLERANCE


PROGRAM = """
import json, os, sys
from pathlib import Path
import torch
from buttons import SHARDED, make_trainer

folder, weights = Path(sys.argv[1]), sys.argv[2]
trainer = make_trainer(
    folder,
    max_steps=2,
    per_device_train_batch_size=4,
    ddp_backend="gloo",
    generator="vllm",
    **(SHARDED if weights == "sharded" else {}),
)
trainer.train()
logs = [logs for logs in trainer.state.log_history if "loss" in logs]
report = {"model": type(trainer.model).__name__, "logs": logs}
(folder / f"report-{os.environ['RANK']}.json").write_text(json.dumps(report))
trainer.player.generator.close()
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("weights", ["whole", "sharded"])
def test_each_of_two_processes_has_an_engine(weights: str, tmp_path: Path) -> None:
    reports = launch(tmp_path, PROGRAM, weights)
    assert {report["model"] for report in reports} == {
        "Qwen3ForCausalLM" if weights == "whole" else "FSDPQwen3ForCausalLM"
    }
    first, second = (report["logs"] for report in reports)
    for logs in first:
        assert logs["episodes/played"] == 8
        assert logs["tokens/drift"] == logs["episodes/failed"] == 0
        assert logs["sampling/sampling_logp_difference/max"] < TOLERANCE
    assert [logs["loss"] for logs in first] == [logs["loss"] for logs in second]
