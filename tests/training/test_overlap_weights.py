"""With `max_staleness`, the generator gets the weights of the policy, whatever training does meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model
from torch import Tensor
from transformers import TrainerCallback

from gymnast.envs import Message
from gymnast.trainer import AgentTrainer, Generation, GenerationRequest, GRPOTrainer, RLOOTrainer, whole_weights

from .buttons import Buttons, CopyGenerator, adapted, make_trainer, model
from .test_reference_model import with_ref_adapter

SECONDS = 60  # a wait ends before the test does, so that a failure has a message
SLOW = "Press the right button, slowly."


def weights_of(agent: Any) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in whole_weights(agent)}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(weight, other[name]) for name, weight in one.items())


class SlowRow(Buttons):
    """The generator recognises the prompts of a row that is marked as slow."""

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        super().reset_task(task)
        return [{"role": "user", "content": SLOW if task["slow"] else "Press a button."}]


class HeldTurns(CopyGenerator):
    """Turns of the slow row last until the reference scores; the reference waits until new weights are loaded."""

    def __init__(self, requests: int) -> None:
        super().__init__(model())
        self.expected = requests
        self.prompts: list[int] = []
        self.all_began, self.reference_scores, self.loaded = (threading.Event() for _ in range(3))
        self.got: dict[int, dict[str, Tensor]] = {}  # weights by version

    async def generate(self, request: GenerationRequest) -> Generation:
        self.prompts.append(len(request.prompt_ids))
        if len(self.prompts) == self.expected:
            self.all_began.set()
        generation = await super().generate(request)
        if len(request.prompt_ids) > min(self.prompts):
            await asyncio.to_thread(self.reference_scores.wait, SECONDS)
        return generation

    def load_weights(self, model: Any, version: int) -> None:
        super().load_weights(model, version)
        self.got[version] = weights_of(self.model)
        if version:
            self.loaded.set()


class Policies(TrainerCallback):
    """Keeps the policy's weights by step. The first step ends when all turns have begun, so the gate holds none."""

    def __init__(self, generator: HeldTurns) -> None:
        self.generator = generator
        self.weights: dict[int, dict[str, Tensor]] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.weights[state.global_step] = weights_of(kwargs["model"])
        assert self.generator.all_began.wait(SECONDS)


@pytest.mark.filterwarnings("ignore:Already found a `peft_config` attribute")
@pytest.mark.parametrize(
    ("trainer_class", "options", "make_agent"),
    [
        (GRPOTrainer, {"beta": 0.1}, model),
        (RLOOTrainer, {}, model),
        (RLOOTrainer, {}, adapted),
        (GRPOTrainer, {"beta": 0.1}, lambda: with_ref_adapter(get_peft_model)),
    ],
    ids=["grpo", "rloo", "adapter", "adapter called ref"],
)
def test_weights_that_are_sent_while_the_reference_scores_are_those_of_the_policy(
    trainer_class: type[AgentTrainer], options: dict[str, Any], make_agent: Callable[[], Any], tmp_path: Path
) -> None:
    """The turns of the third round hold back the new weights until the second round is scored."""
    torch.manual_seed(0)
    agent = make_agent()
    policies = Policies(generator := HeldTurns(requests=24))
    reference = weights_of(agent)
    if "ref" in getattr(agent, "peft_config", {}):
        agent.set_adapter("ref")
        reference = weights_of(agent)
        agent.set_adapter("default")

    def hold(module: Any, args: Any) -> None:
        if policies.weights and not generator.loaded.is_set() and same(weights_of(module), reference):
            generator.reference_scores.set()
            assert generator.loaded.wait(SECONDS)

    agent.register_forward_pre_hook(hold)
    rows = [{"good": "left", "id": index, "slow": index == 4} for index in range(8)]
    options |= {"max_steps": 3, "max_staleness": 2, "max_turns": 1, "shuffle_dataset": False, "learning_rate": 1e-2}
    data: dict[str, Any] = {"environment": SlowRow(), "rows": rows, "callbacks": [policies], "generator": generator}
    make_trainer(tmp_path, trainer_class, agent=agent, **data, **options).train()
    assert generator.reference_scores.is_set()
    assert not same(policies.weights[1], generator.got[0]), "the first step changes the weights"
    assert set(generator.got) == {0, 1, 2}
    for version in (1, 2):
        changed = [
            name
            for name, got in generator.got[version].items()
            if not torch.equal(got, policies.weights[version][name])
        ]
        assert not changed, f"version {version}"


def test_the_reference_shares_every_tensor_that_is_not_trained(tmp_path: Path) -> None:
    agent = adapted()
    trainer = make_trainer(tmp_path, agent=agent, beta=0.1)
    trainer.train()
    assert trainer.reference is not None
    with trainer.reference.model() as (reference, _):
        tensors = [*reference.named_parameters(), *reference.named_buffers()]
    own = {name: each.data_ptr() for name, each in [*agent.named_parameters(), *agent.named_buffers()]}
    apart = [name for name, each in tensors if each.data_ptr() != own[name]]
    assert apart == [name for name, each in agent.named_parameters() if each.requires_grad]
