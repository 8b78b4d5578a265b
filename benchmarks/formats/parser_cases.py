"""The same answers for every parser that is compared.

A case has one text for each family. A family that cannot write the case has no text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gymnast.envs.core import ToolSchema

from .family_syntax import FAMILIES, Arguments, Family, to_json


def schema(name: str, **properties: str) -> ToolSchema:
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "description": f"To {name}.", "parameters": parameters}}


TOOLS = [
    schema("weather", city="string", days="integer"),
    schema("plan", stops="array", options="object"),
    schema("ping"),
]


ROME: tuple[str, Arguments] = ("weather", {"city": "Rome", "days": 3})
PARIS: tuple[str, Arguments] = ("weather", {"city": "Paris", "days": 1})
NESTED: tuple[str, Arguments] = ("plan", {"stops": ["a, b", {"x": [1.5, None]}], "options": {"fast": True, "on": {}}})


def _before(family: Family) -> str:
    return (
        family.message.replace("%", "Let me see.") + family.calls(ROME)
        if family.message
        else (f"Let me see.\n{family.calls(ROME)}")
    )


def _beside(family: Family, text: str) -> str | None:
    """The text; None for a family whose texts beside calls are messages of their own."""
    return None if family.message else text


def _thinking(family: Family) -> str | None:
    if not family.thinking:
        return None
    opening, closing = family.thinking
    return f"{opening}Rome, then.{closing}{family.calls(ROME)}"


def _markers(family: Family) -> str:
    """A call with a string that contains a whole call in the family's syntax."""
    return family.calls(("weather", {"city": f"see {family.calls(PARIS)} there", "days": 3}))


def _wrapped(family: Family) -> str | None:
    arguments: Any = to_json(dict(ROME[1]))
    return family.calls(("weather", arguments)) if family.json_arguments else None


def _unclosed(family: Family) -> str | None:
    """All but the last marker of the call and of its wrapper."""
    whole = family.calls(ROME)
    marker = family.close or next((token for token in reversed(family.tokens) if whole.endswith(token)), "")
    return whole[: whole.rindex(marker)] if marker else None


def _unopened(family: Family) -> str | None:
    """All but the first marker of the call."""
    whole = family.calls(ROME)
    marker = next((token for token in family.tokens if whole.startswith(token)), None)
    return whole.removeprefix(marker).lstrip() if marker else None


def _bad_between(family: Family) -> str:
    good = family.call(*ROME)
    return family.wrap([good, family.broken(), family.call(*PARIS)])


def _wrong_key(family: Family) -> str | None:
    """A call in one JSON object, with its arguments under a key that the format does not know."""
    whole = family.calls(ROME)
    key = next((key for key in ('"arguments"', '"parameters"') if key in whole), None)
    return whole.replace(key, '"args"') if key else None


def _looks_like(family: Family) -> str:
    """An answer in JSON, or a call in the syntax of another family."""
    return '{"name": "Rome", "population": 3}' if family.json_arguments else 'weather(city="Rome")'


CASES: dict[str, Callable[[Family], str | None]] = {
    "one call": lambda family: family.calls(ROME),
    "two calls": lambda family: family.calls(ROME, PARIS),
    "text before": _before,
    "text after": lambda family: _beside(family, f"{family.calls(ROME)}\nDone."),
    "text between": lambda family: _beside(family, f"{family.calls(ROME)}\nAnd:\n{family.calls(PARIS)}"),
    "thinking": _thinking,
    "no arguments": lambda family: family.calls(("ping", {})),
    "nested arguments": lambda family: family.calls(NESTED),
    "a call within a string": _markers,
    "quotes and unicode": lambda family: family.calls(("weather", {"city": 'Zürich "日本"\n\\n ☀ {x}', "days": 3})),
    "a number for a string": lambda family: family.calls(("weather", {"city": 75001, "days": 3})),
    "a string for a number": lambda family: family.calls(("weather", {"city": "Rome", "days": "3"})),
    "arguments as JSON text": _wrapped,
    "arguments under a wrong key": _wrong_key,
    "cut within the arguments": lambda family: family.calls(ROME)[: family.calls(ROME).index("Rome") + 2],
    "no closing marker": _unclosed,
    "no opening marker": _unopened,
    "a bad call between good ones": _bad_between,
    "an unknown tool": lambda family: family.calls(("fly", {"to": "Rome"})),
    "an answer that is no call": _looks_like,
}


def texts(family: str) -> Iterator[tuple[str, str]]:
    """The cases of a family, each with its text."""
    for case, write in CASES.items():
        text = write(FAMILIES[family])
        if text is not None:
            yield case, text
