"""Recognition: which tool-call format a tokenizer's chat template asks for, and how that was found."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from transformers import PreTrainedTokenizerBase

from ...envs.core import ConfigurationError
from ..tool_calls.custom import CallableFormat, ResponseTemplateFormat, ToolParser
from ..tool_calls.families import FORMATS
from ..tool_calls.formats import Conventions, KnownFormat, ToolFormat
from .chat_template import PROBE_TOOL, ChatTemplate
from .template_probe import reads_probe
from .turn_endings import TurnEndings, call_styles
from .vllm_parsers import VLLM_PREFIX, vllm_tool_format

_IN_PROMPT = "the model learns about its tools from the prompt"


@dataclass(kw_only=True, slots=True, frozen=True)
class Recognition:
    """The tool-call format of a tokenizer, and why.

    Attributes:
        format: Reads the model's calls; None if no format fits.
        reason: How it was found, or which formats were tried.
        problem: Why tools cannot be used with the template at all; empty when they can.
        described_in_prompt: gymnast describes the tools in the system message, because the template does not.
        looked_for: Rejected formats, each with the reason.
    """

    format: ToolFormat | None
    reason: str
    problem: str = ""
    described_in_prompt: bool = False
    looked_for: Mapping[str, str] = field(default_factory=dict)


def marked_formats(source: str) -> tuple[list[KnownFormat], dict[str, str]]:
    """Return the formats whose markers all occur in a template's source, and the markers that the others miss."""
    found: list[KnownFormat] = []
    missing: dict[str, str] = {}
    for known in FORMATS.values():
        if absent := known.missing_marker(source):
            missing[known.name] = f"the template has no {absent}"
        elif known.markers:  # a format without markers is only given by name
            found.append(known)
    return found, missing


def recognise(
    given: str | ToolFormat | ToolParser | None,
    tokenizer: PreTrainedTokenizerBase,
    template: ChatTemplate,
    endings: TurnEndings,
) -> Recognition:
    """Find the tool-call format of a tokenizer.

    It is the given one, else the tokenizer's `response_template`, else the one whose markers the template contains.
    Also stores in `endings` the text that follows a call.
    """
    given = _as_format(given)
    if given is not None and not isinstance(given, str) and _tells_of_tools(given):
        # The template need not render tools.
        return Recognition(format=given, reason=f"given; {_IN_PROMPT}", described_in_prompt=True)
    marked, looked_for = marked_formats(template.source())
    if template.tools_problem:
        return _without_tools(given, template.tools_problem, marked, looked_for, endings)
    if given is None and tokenizer.response_template is None:
        return _recognise_marked(marked, looked_for, endings)
    reader = given if isinstance(given, KnownFormat) else None
    preferred = [known.conventions for known in ([reader] if reader else marked)]
    problem = _find_call_end([*preferred, Conventions()], endings, reader)
    if isinstance(given, str):
        probe = None if problem else endings.probe_call()
        if probe is None:
            problem = problem or "the tokenizer's chat template does not render tool calls, so no parser can be checked"
            raise ConfigurationError(f"tool_format={given!r} has no effect: {problem}")
        parser = vllm_tool_format(given.removeprefix(VLLM_PREFIX), tokenizer, template, probe)
        return Recognition(format=parser, reason="given by name")
    if given is not None:
        if reader and not problem:
            _check_reads(reader, endings)
        return Recognition(format=given, reason="given", problem=problem)
    found = ResponseTemplateFormat(tokenizer=tokenizer)
    if not problem and not reads_probe(found, endings.probe_call()):
        reason = "the tokenizer's response_template does not read the call that its chat template renders"
        return Recognition(format=None, reason=reason)
    return Recognition(format=found, reason="the tokenizer's response_template", problem=problem)


def _as_format(given: str | ToolFormat | ToolParser | None) -> ToolFormat | str | None:
    """Return the given format, the named one, or a function as a format; the name of a parser of vLLM stays a name."""
    if given is None or (isinstance(given, str) and given.startswith(VLLM_PREFIX)):
        return given
    if isinstance(given, str):
        if given in FORMATS:
            return FORMATS[given]
        near = get_close_matches(given.lower().replace("-", "_").replace(".", "_"), FORMATS)
        advice = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        known = f"{sorted(FORMATS)}, and {VLLM_PREFIX!r} with the name of one of vLLM's tool parsers"
        raise ConfigurationError(f"unknown tool_format {given!r}; {advice}known are {known}. See docs/parsers.md")
    if not isinstance(given, type):
        if callable(getattr(given, "parse", None)):
            return given  # type: ignore[return-value]
        if callable(given):
            return CallableFormat(parser=given)
    raise ConfigurationError(f"tool_format must be a name, a ToolFormat or a function, got {given!r}")


def _tells_of_tools(given: ToolFormat) -> bool:
    """Return whether a format describes the tools to the model by itself; see `PromptedFormat`."""
    named = [name for name in ("instructions", "observation") if callable(getattr(given, name, None))]
    if len(named) == 1:
        raise ConfigurationError(
            f"a tool_format that describes tools to the model has instructions(tools) and observation(results), "
            f"got {given!r}, which has {named[0]} only"
        )
    return bool(named)


def _check_reads(given: KnownFormat, endings: TurnEndings) -> None:
    """Raise ConfigurationError if a known format does not read the call that the chat template renders."""
    probe = endings.probe_call()
    if probe is None or reads_probe(given, probe):
        return
    fitting = _fitting_formats(probe)
    if not fitting and "malformed" in given.parse(probe[1], prefix=probe[0], tools=[PROBE_TOOL]):
        # No format can read the template's call (`f(city=Zürich)`); the model's own calls may still be readable.
        return
    advice = f"formats that do: {', '.join(fitting)}" if fitting else "a TextFormat or a function of your own might"
    raise ConfigurationError(
        f"tool_format={given.name!r} does not read the call that the chat template renders, {probe[1]!r}; {advice}. "
        f"See docs/parsers.md"
    )


def _fitting_formats(probe: tuple[str, str]) -> list[str]:
    """Return the names of all formats that read the call which a template renders, those without markers included."""
    return [name for name, known in FORMATS.items() if reads_probe(known, probe)]


def _without_tools(
    given: ToolFormat | str | None,
    problem: str,
    marked: Sequence[KnownFormat],
    looked_for: dict[str, str],
    endings: TurnEndings,
) -> Recognition:
    """Recognise a template that does not describe tools. It may still render calls and results: DeepSeek V3."""
    if isinstance(given, str):
        raise ConfigurationError(f"tool_format={given!r} has no effect: {problem}")
    for known in [given] if isinstance(given, KnownFormat) else marked:
        if _find_call_end([known.conventions], endings) or endings.probe_call() is None:
            continue
        if given is not None:
            if known is given:
                _check_reads(known, endings)
            return Recognition(format=given, reason=f"given; {_IN_PROMPT}", described_in_prompt=True)
        if reads_probe(known, endings.probe_call()):
            name = known.name
            problem += f", but calls of {name}: tool_format={name!r} describes the tools to the model in the prompt"
            break
    return Recognition(format=given, reason=problem, problem=problem, looked_for=looked_for)


def _recognise_marked(marked: Sequence[KnownFormat], looked_for: dict[str, str], endings: TurnEndings) -> Recognition:
    first_problem = ""
    for candidate in marked:
        problem = _find_call_end([candidate.conventions], endings, candidate)
        if problem:
            first_problem = first_problem or problem
            looked_for[candidate.name] = problem
            continue
        probe = endings.probe_call()
        proof = " and a call it rendered" if probe else "; the template renders no calls that could prove it"
        if probe is None or reads_probe(candidate, probe):
            reason = f"the template's markers {list(candidate.markers)}{proof}"
            return Recognition(format=candidate, reason=reason, looked_for=looked_for)
        looked_for[candidate.name] = f"it does not read the call that the template renders, {probe[1]!r}"
    problem = first_problem or _find_call_end([Conventions()], endings)
    reason = problem or "the chat template has no format's markers, and renders no calls"
    if not problem and (probe := endings.probe_call()):
        fitting = _fitting_formats(probe)
        readers = "no format whose markers the template has" if fitting else "no format"
        others = f"; formats that do: {', '.join(fitting)}" if fitting else ""
        reason = f"{readers} reads the call that the chat template renders, {probe[1]!r}{others}"
    return Recognition(format=None, reason=reason, problem=problem, looked_for=looked_for)


def _find_call_end(conventions: Sequence[Conventions], endings: TurnEndings, reader: ToolFormat | None = None) -> str:
    """Let `endings` find the text after a call, with one of these conventions; return why it is ambiguous, or nothing.

    A style in which the reader reads the rendered call is preferred: a template may write an object as Python does,
    and only JSON text as it is.
    """
    first_problem, usable = "", None
    for style in itertools.chain.from_iterable(map(call_styles, conventions)):
        try:
            endings.find_call_end(style)
        except ConfigurationError as error:
            first_problem = first_problem or str(error)
            continue
        if reader is None or reads_probe(reader, endings.probe_call()):
            return ""
        usable = usable or style
    if usable is None:
        return first_problem
    endings.find_call_end(usable)
    return ""
