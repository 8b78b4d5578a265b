"""Stale samples: the sampler is 12 rounds behind, as at the end of a long queue.

Giving up is worth 0, a brief answer 0.7 and a full one 1. At first the model gives up in half of the episodes and gives
a full answer in 2 %. Compared with giving up, a brief answer is good. So stale samples reinforce brief answers even
when the current policy gives no others, and the full answer gets rarer. A correction weighs each token by the ratio of
its probabilities under the current and the old policy. Then only the full answer is better than the average.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from gymnast.envs import Episode, Message, ToolEnv, tool, tool_call
from gymnast.trainer import Generation, GenerationRequest, Generator, TransformersGenerator

from .accident import WORDS, Accident, Setting, WatchedTrainer

ROUNDS_BEHIND = 12
FIRST = {"give_up": 48, "answer_in_brief": 50, "answer_in_full": 2}  # percent of the demonstrations


class Questions(ToolEnv):
    """Three answers to any question."""

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        return [{"role": "user", "content": f"What is known about the {task['word']}?"}]

    @tool(final=True)
    def give_up(self) -> str:
        """Say that nothing is known."""
        self.reward = 0.0
        return "wrong"

    @tool(final=True)
    def answer_in_brief(self) -> str:
        """Say the main thing."""
        self.reward = 0.7
        return "half right"

    @tool(final=True)
    def answer_in_full(self) -> str:
        """Say everything."""
        self.reward = 1.0
        return "right"


class LaggingGenerator(Generator):
    """Samples with the weights of some rounds ago, and reports log-probabilities under those weights."""

    def __init__(self, model: PreTrainedModel, *, pad_id: int, rounds: int) -> None:
        self._old_model = copy.deepcopy(model)
        self._inner = TransformersGenerator(self._old_model, pad_id=pad_id)
        self._history: deque[tuple[int, dict[str, Tensor]]] = deque(maxlen=rounds + 1)

    async def generate(self, request: GenerationRequest) -> Generation:
        return await self._inner.generate(request)

    def load_weights(self, model: PreTrainedModel, version: int) -> None:
        self._history.append((version, {name: value.clone() for name, value in model.state_dict().items()}))
        old_version, old_weights = self._history[0]
        self._old_model.load_state_dict(old_weights)
        self._inner.load_weights(self._old_model, old_version)

    def close(self) -> None:
        self._inner.close()


def reward(episode: Episode) -> float:
    return episode.reward or 0.0


def make(setting: Setting, *, correction: str) -> WatchedTrainer:
    return questions_trainer(setting, rounds_behind=ROUNDS_BEHIND, correction=correction)


def questions_trainer(setting: Setting, *, rounds_behind: int = 0, **options: Any) -> WatchedTrainer:
    """A trainer on `Questions` whose samples are some rounds old; `options` go into its configuration."""
    rng = random.Random(setting.seed)
    environment = Questions()
    rows = [{"word": word} for word in WORDS]
    schemas = environment.tool_schemas()
    names = [name for name, percent in FIRST.items() for _ in range(6 * percent)]
    demonstrations = [([*environment.reset_task(rng.choice(rows)), tool_call(name)], schemas) for name in names]
    model, tokenizer = setting.model(demonstrations)
    return WatchedTrainer(
        reward,
        model=model,
        processing_class=tokenizer,
        environment=environment,
        generator=LaggingGenerator(model, pad_id=tokenizer.pad_token_id, rounds=rounds_behind)
        if rounds_behind
        else None,
        train_dataset=rows,
        args=setting.config(**options),
    )


ACCIDENT = Accident(
    title=f"Samples {ROUNDS_BEHIND} rounds old",
    measured="reward",
    warm_up_steps=60,
    steps=50,
    arms={
        "without correction": partial(make, correction="none"),
        'correction="tis"': partial(make, correction="tis"),
    },
)
