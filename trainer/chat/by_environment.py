"""Chat formats of environments: a tool format and a chat template may be given by the name of an environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...envs.core import ConfigurationError
from ..tool_calls.custom import ToolParser
from ..tool_calls.formats import ToolFormat
from .chat_format import ChatFormat

GivenFormat = str | ToolFormat | ToolParser | None
GivenFormats = GivenFormat | Mapping[str, GivenFormat]
"""The values of `tool_format=`: a format for all environments, or formats by name of environment."""


def chat_formats(
    names: Iterable[str | None],
    tool_format: GivenFormats,
    chat_templates: Mapping[str, str] | None,
    make: Callable[[GivenFormat, str | None], ChatFormat],
) -> dict[str | None, ChatFormat]:
    """Return the chat format of each environment. Environments with no format or template by name share one.

    A single environment has the name None. `tool_format` and `chat_templates` are as in `AgentTrainer`. `make` takes a
    tool format, and a chat template that replaces the tokenizer's.
    """
    names, templates = list(names), chat_templates or {}
    by_name, others = (tool_format, None) if isinstance(tool_format, Mapping) else ({}, tool_format)
    formats: dict[str | None, ChatFormat] = {}
    for name in names:
        if name in by_name or name in templates:
            try:
                formats[name] = make(by_name.get(str(name), others), templates.get(str(name)))
            except ConfigurationError as error:
                raise ConfigurationError(f"the environment {name!r}: {error}") from error
    shared = None if len(formats) == len(names) else make(others, None)
    return {name: formats.get(name, shared) for name in names}  # type: ignore[misc]


def check_names(names: Iterable[str | None], tool_format: GivenFormats, chat_templates: Any) -> None:
    """Raise a TypeError if `chat_templates` is no dict, a ConfigurationError if a name is of no environment."""
    if not isinstance(chat_templates, Mapping | None):
        raise TypeError(
            f"chat_templates must be a dict from names of environments to templates, got {chat_templates!r}; set "
            f"tokenizer.chat_template for all environments"
        )
    names = list(names)
    for option, given in (("tool_format", tool_format), ("chat_templates", chat_templates)):
        unknown = [name for name in given if name not in names] if isinstance(given, Mapping) else []
        if unknown:
            problem = f"which are not among the environments {names}"
            if None in names:
                problem = "but environment= is a single one, which has no name"
            raise ConfigurationError(f"{option} names {unknown}, {problem}")
