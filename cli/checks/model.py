"""Checks of a model with an environment: its template, its tool format, its tokens, its cost."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ...envs.policy import tool_call
from ..terminal.verdicts import Finding
from .agents import valid_arguments
from .subject import Subject

if TYPE_CHECKING:
    from ...trainer.setup.model_facts import ModelFacts

BYTES_OF_TRAINING = 16  # for each weight in float32: itself, its gradient, and two moments of Adam


def check_model(model: str, subject: Subject, tool_format: str | None = None) -> dict[str, Finding]:
    """Return the findings about a model with the environment's prompts and tools; its weights are not loaded."""
    from ...trainer.setup.model_facts import model_facts  # loads PyTorch

    prompts = [(episode.first_messages, episode.tools) for episode in subject.null_episodes]
    calls = [tool_call(tool["function"]["name"], **valid_arguments(tool, random.Random(0))) for tool in subject.tools]
    facts = model_facts(model, prompts, calls[0] if calls else None, tool_format)
    if facts.problem:
        findings = {"template": Finding("fail", facts.problem)}
    else:
        findings = {
            "template": Finding("pass", "the chat template renders prompts and tools"),
            "tool format": _format(facts),
            "round trip": _round_trip(facts),
            "end of turn": Finding("pass", f"{', '.join(map(repr, facts.end_tokens))} end an answer"),
            "prompts": _prompts(facts),
        }
    if facts.image_costs:
        findings["images"] = _images(facts)
    findings["first batch"] = _cost(facts)
    return {f"model: {name}": finding for name, finding in findings.items()}


def _format(facts: ModelFacts) -> Finding:
    if facts.described_in_prompt:
        return Finding("warn", f"tools are described in the prompt, as {facts.tool_format}: {facts.reason}")
    if not facts.tool_format:  # with tools the template would have failed
        return Finding("skip", f"there are no tools: {facts.reason}")
    return Finding("pass", f"{facts.tool_format}: {facts.reason}")


def _round_trip(facts: ModelFacts) -> Finding:
    if facts.round_trip is None:
        return Finding("skip", "the template does not write calls as the model does, or there are no tools")
    if facts.round_trip:
        return Finding("fail", f"{facts.round_trip}: pass another tool_format to the trainer")
    return Finding("pass", "a call that the template writes is read back unchanged")


def _prompts(facts: ModelFacts) -> Finding:
    longest = max(facts.prompt_tokens)
    if facts.context is None:
        return Finding("warn", f"up to {longest} tokens; the model's config has no context length: set max_model_len")
    left = facts.context - longest
    if left <= 0:
        return Finding("fail", f"a prompt has {longest} tokens, and the model's context {facts.context}")
    said = f"up to {longest} tokens, which leave {left} of the model's context for an episode"
    if left < facts.episode_tokens:
        return Finding("warn", f"{said}, less than max_completion_length={facts.episode_tokens}")
    return Finding("pass", said)


def _images(facts: ModelFacts) -> Finding:
    costs = ", ".join(
        f"{tokens} tokens and {_size(features)} of features for {picture}"
        for picture, (tokens, features) in facts.image_costs.items()
    )
    return Finding("pass", f"shown in messages of every role, as the template writes them for a user: {costs}")


def _cost(facts: ModelFacts) -> Finding:
    weights, training = f"{facts.parameters / 1e6:,.1f} million weights", _size(facts.parameters * BYTES_OF_TRAINING)
    tokens = facts.batch_episodes * (max(facts.prompt_tokens, default=0) + facts.episode_tokens)
    said = (
        f"{weights} take {training} in training (float32, Adam); a batch of {facts.batch_episodes} episodes has up to "
        f"{tokens:,} tokens, whose logits would take {_size(tokens * facts.vocabulary * 4)} at once"
    )
    return Finding("pass", said)


def _size(count: int) -> str:
    """Return a number of bytes as text, in GB or MB."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
