"""With `max_staleness`, the generator gets the weights of the policy, whatever training does meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model
from torch import Tensor
from transformers import TrainerCallback

from gymnast.envs import Message
from gymnast.trainer import AgentTrainer, Generation, GenerationRequest, GRPOTrainer, RLOOTrainer, whole_weights

from .buttons import ROWS, Buttons, CopyGenerator, ScriptedGenerator, adapted, call_ids, make_trainer, model
from .inspecting import step_logs
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
        self.prompts.append(len(request.prompt))
        if len(self.prompts) == self.expected:
            self.all_began.set()
        generation = await super().generate(request)
        if len(request.prompt) > min(self.prompts):
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
    own = {name: item.data_ptr() for name, item in [*agent.named_parameters(), *agent.named_buffers()]}
    apart = [name for name, tensor in tensors if tensor.data_ptr() != own[name]]
    assert apart == [name for name, parameter in agent.named_parameters() if parameter.requires_grad]


def test_weights_that_change_while_they_are_sent_are_sent_again(tmp_path: Path) -> None:
    class Meanwhile(ScriptedGenerator):
        loads = 0

        def load_weights(self, model: Any, version: int) -> None:
            self.loads += 1
            if self.loads == 1:
                with torch.no_grad():
                    model.lm_head.weight += 1

    generator = Meanwhile(lambda request: call_ids("left"))
    trainer = make_trainer(tmp_path, generator=generator)
    for loads in (1, 2, 2):
        trainer.rollout(ROWS)
        assert generator.loads == loads


class ManualClock:
    """The time of the machine, which also moves at once by any number of seconds."""

    def __init__(self) -> None:
        self._real, self.moved_by = time.perf_counter, 0.0

    def __call__(self) -> float:
        return self._real() + self.moved_by


class SlowToLoad(ScriptedGenerator):
    """Takes 1,000 seconds for new weights. Those of an update arrive when the next update waits for them."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(lambda request: call_ids("left" if request.seed % 2 else "right"))
        self.clock = clock
        self.awaited = [threading.Event() for _ in range(4)]  # by version

    def load_weights(self, model: Any, version: int) -> None:
        assert version == 0 or self.awaited[version].wait(SECONDS)
        self.clock.moved_by += 1000


def tell_of_waits(trainer: Any) -> None:
    """Let `on_wait` of the trainer be called when it begins to wait, with what it waits for."""
    during = trainer.processes.waiting

    @contextmanager
    def waiting(what: str) -> Iterator[None]:
        with during(what):
            trainer.on_wait(what)
            yield

    trainer.processes.waiting = waiting


class TellsTheGenerator(GRPOTrainer):
    """Tells the generator when an update has its gradients and waits."""

    has_gradients = False

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        self.has_gradients = True
        return super().compute_loss(*args, **kwargs)

    def on_wait(self, what: str) -> None:
        if self.has_gradients and what == "the generator to take new weights":
            self.has_gradients = False
            self.generator.awaited[self.state.global_step].set()

    @property
    def generator(self) -> SlowToLoad:
        gate: Any = self.player.generator
        return gate.inner


def test_time_that_training_waits_for_the_generator_is_idle_and_no_part_of_the_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(time, "perf_counter", clock)
    trainer = make_trainer(tmp_path, TellsTheGenerator, generator=SlowToLoad(clock), max_steps=3, max_staleness=1)
    tell_of_waits(trainer)
    trainer.train()
    first, second, third = step_logs(trainer)
    assert clock.moved_by == 3000
    assert max(logs["time/update"] for logs in (first, second, third)) < 500
    for logs in (first, third):  # before the first round, and between the rounds of the second and the third step
        assert logs["idle/trainer"] > 0.9
        assert logs["idle/trainer"] >= logs["idle/weights"] > 0.9
    assert second["idle/weights"] < 0.9


class EndsInTheDrain(Buttons):
    """The groups of the second round wait until an evaluation waits for them, and then take 1,000 seconds."""

    clock: ManualClock
    drain: threading.Event

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        if task.get("id") in (2, 3):
            self.drain.wait(5)
            self.clock.moved_by += 1000
        return super().reset_task(task)


class TellsOfTheDrain(GRPOTrainer):
    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        self.is_evaluating = True
        return super().evaluate(*args, **kwargs)

    def on_wait(self, what: str) -> None:
        if hasattr(self, "is_evaluating") and what == "the episodes of the next round":
            EndsInTheDrain.drain.set()


def test_time_that_an_evaluation_waits_for_the_groups_in_flight_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    EndsInTheDrain.clock, EndsInTheDrain.drain = ManualClock(), threading.Event()
    monkeypatch.setattr(time, "perf_counter", EndsInTheDrain.clock)
    rows = [{"good": "left", "id": index} for index in range(4)]
    options = {"max_steps": 2, "max_staleness": 1, "eval_strategy": "steps", "eval_steps": 1, "shuffle_dataset": False}
    trainer = make_trainer(
        tmp_path, TellsOfTheDrain, environment=EndsInTheDrain(), rows=rows, eval_rows=ROWS[:1], **options
    )
    tell_of_waits(trainer)
    trainer.train()
    assert step_logs(trainer)[-1]["idle/trainer"] > 0.9
