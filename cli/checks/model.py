"""Checks of a model with an environment: its template, its tool format, its tokens, its cost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...envs.policy import tool_call
from ..terminal.verdicts import Verdict
from .agents import valid_arguments
from .subject import Subject

if TYPE_CHECKING:
    from ...trainer.setup.model_facts import ModelFacts

BYTES_OF_TRAINING = 16  # for each weight in float32: itself, its gradient, and two moments of Adam


def check_model(model: str, subject: Subject) -> Iterator[Verdict]:
    """The verdicts about a model with the environment's prompts and tools; its weights are not loaded."""
    from ...trainer.setup.model_facts import model_facts  # loads PyTorch

    prompts = [(episode.first_messages, episode.tools) for episode in subject.null_episodes]
    tool = subject.tools[0]["function"] if subject.tools else None
    call = tool and tool_call(tool["name"], **valid_arguments(tool["parameters"], random.Random(0)))
    facts = model_facts(model, prompts, call or None)
    if facts.problem:
        yield Verdict("model: template", "fail", facts.problem)
    else:
        yield Verdict("model: template", "pass", "the chat template renders prompts and tools")
        yield _format(facts)
        yield _round_trip(facts)
        yield Verdict("model: end of turn", "pass", f"{', '.join(map(repr, facts.end_tokens))} end an answer")
        yield _prompts(facts)
    yield _cost(facts)


def _format(facts: ModelFacts) -> Verdict:
    name = "model: tool format"
    if facts.described_in_prompt:
        return Verdict(name, "warn", f"tools are described in the prompt, as {facts.tool_format}: {facts.reason}")
    return Verdict(name, "pass", f"{facts.tool_format}: {facts.reason}")


def _round_trip(facts: ModelFacts) -> Verdict:
    name = "model: round trip"
    if facts.round_trip is None:
        return Verdict(name, "skip", "the template does not write calls as the model does, or there are no tools")
    if facts.round_trip:
        return Verdict(name, "fail", f"{facts.round_trip}: pass another tool_format to the trainer")
    return Verdict(name, "pass", "a call that the template writes is read back unchanged")


def _prompts(facts: ModelFacts) -> Verdict:
    name, longest = "model: prompts", max(facts.prompt_tokens)
    if facts.context is None:
        return Verdict(
            name, "warn", f"up to {longest} tokens; the model's config has no context length: set max_model_len"
        )
    left = facts.context - longest
    if left <= 0:
        return Verdict(name, "fail", f"a prompt has {longest} tokens, and the model's context {facts.context}")
    said = f"up to {longest} tokens, which leave {left} of the model's context for an episode"
    if left < facts.episode_tokens:
        return Verdict(name, "warn", f"{said}, less than max_completion_length={facts.episode_tokens}")
    return Verdict(name, "pass", said)


def _cost(facts: ModelFacts) -> Verdict:
    weights, training = f"{facts.parameters / 1e6:,.1f} million weights", _size(facts.parameters * BYTES_OF_TRAINING)
    tokens = facts.batch_episodes * (max(facts.prompt_tokens, default=0) + facts.episode_tokens)
    said = (
        f"{weights} take {training} in training (float32, Adam); a batch of {facts.batch_episodes} episodes has up to "
        f"{tokens:,} tokens, whose logits would take {_size(tokens * facts.vocabulary * 4)} at once"
    )
    return Verdict("model: first batch", "pass", said)


def _size(count: int) -> str:
    """A number of bytes, in GB or MB."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
