"""Tokens that were never sampled: the conversation is rendered and tokenised again, without the thoughts.

The model thinks about which key it needs, takes a key and leaves. Like those of many models, the chat template shows
only the thought of the latest turn. So a trainer that renders the messages again has a first turn without a thought. It
does not learn from the thought, in which the model chose the key, and learns from the call as if the model had not
thought. With exact tokens, the thought stays where it was sampled.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from transformers import PreTrainedModel

from gymnast.envs import Episode, Message, ToolEnv, tool, tool_call
from gymnast.trainer import Generation, GenerationRequest, Generator, TransformersGenerator
from gymnast.trainer.testing.tiny import CHAT_TEMPLATE, TURN_START

from .accident import WORDS, Accident, Setting, WatchedTrainer

KEYS = 4
KNOWN = 0.3  # share of the demonstrations that take the right key; the others take any
WITH_THOUGHTS = "if message.reasoning_content else"
LATEST_THOUGHT = "if message.reasoning_content and loop.last else"
QUESTION: Message = {"role": "user", "content": "?"}


class Castle(ToolEnv):
    """Leaving with the right key is worth 1."""

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        self.key, self.taken = task["key"], None
        return [{"role": "user", "content": f"Find the {task['word']}."}]

    @tool
    def take_key(self, number: int) -> str:
        """Take a key, and put back the one from before.

        Args:
            number: Its number.
        """
        self.taken = number
        return "taken"

    @tool(final=True)
    def leave(self) -> str:
        """Leave the castle."""
        self.reward = float(self.taken == self.key)
        return "done"


class RetokenisingGenerator(Generator):
    """Reports each answer as the chat template shows it in later turns, tokenised again."""

    def __init__(self, model: PreTrainedModel, tokenizer: Any) -> None:
        self._inner = TransformersGenerator(model, pad_id=tokenizer.pad_token_id)
        self._tokenizer = tokenizer

    async def generate(self, request: GenerationRequest) -> Generation:
        generation = await self._inner.generate(request)
        if generation.finish == "length":
            return generation
        text = self._as_history(self._tokenizer.decode(generation.token_ids[:-1]))
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        # Tokens that were not sampled have no log-probabilities. The loss does not read them: correction="none".
        return replace(generation, token_ids=ids, logprobs=[fmean(generation.logprobs)] * len(ids))

    def _as_history(self, answer: str) -> str:
        thought, _, content = answer.removeprefix("<think>\n").rpartition("\n</think>\n\n")
        message = {"role": "assistant", "content": content, "reasoning_content": thought}
        text = self._tokenizer.apply_chat_template([QUESTION, message, QUESTION], tokenize=False)
        start, end = f"{TURN_START}assistant\n", f"\n{TURN_START}user"
        return text.partition(start)[2].partition(end)[0]

    def load_weights(self, model: PreTrainedModel, version: int) -> None:
        self._inner.load_weights(model, version)

    def close(self) -> None:
        self._inner.close()


def demonstration(environment: Castle, row: Mapping[str, Any], rng: random.Random) -> list[Message]:
    key = row["key"] if rng.random() < KNOWN else rng.randrange(KEYS)
    thought = f"The {row['word']} needs a key.\nThat is key {key}.\nSo I take key {key}."
    return [
        *environment.reset_task(row),
        {**tool_call("take_key", number=key), "reasoning_content": thought},
        {"role": "tool", "content": "taken"},
        tool_call("leave"),
    ]


def found(episode: Episode) -> float:
    return episode.reward or 0.0


def make(setting: Setting, *, retokenised: bool) -> WatchedTrainer:
    rng = random.Random(setting.seed)
    environment = Castle()
    rows = [{"word": word, "key": rng.randrange(KEYS)} for word in WORDS]
    schemas = environment.tool_schemas()
    demonstrations = [(demonstration(environment, rng.choice(rows), rng), schemas) for _ in range(512)]
    model, tokenizer = setting.model(demonstrations)
    tokenizer.chat_template = CHAT_TEMPLATE.replace(WITH_THOUGHTS, LATEST_THOUGHT)
    assert tokenizer.chat_template != CHAT_TEMPLATE
    return WatchedTrainer(
        found,
        model=model,
        processing_class=tokenizer,
        environment=Castle,  # not the instance, which has been reset
        generator=RetokenisingGenerator(model, tokenizer) if retokenised else None,
        train_dataset=rows,
        args=setting.config(),
    )


ACCIDENT = Accident(
    title="Thoughts of earlier turns",
    measured="share of episodes with the right key",
    warm_up_steps=100,
    steps=30,
    arms={
        "rendered and tokenised again": partial(make, retokenised=True),
        "exact tokens": partial(make, retokenised=False),
    },
)
