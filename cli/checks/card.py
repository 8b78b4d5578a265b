"""The card of an environment: facts for a reader who may want to use it, as Markdown."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from inspect import cleandoc
from pathlib import Path
from statistics import fmean

from ...envs.core import ToolSchema
from ...envs.episode import Episode
from ...envs.installed import installed_environments, package_of
from ..terminal.exits import CommandError, explained
from ..terminal.output import one_line
from ..terminal.verdicts import Finding
from .agents import parameters_of
from .subject import Subject

BEGIN, END = "<!-- card -->", "<!-- end of card -->"
EXAMPLES = 3


def card_of(name: str, subject: Subject, findings: Mapping[str, Finding]) -> str:
    """Return the card: description, tasks, tools, rewards of scripted agents, findings of the check, versions."""
    about = subject.after_reset(lambda environment: cleandoc(type(environment).__doc__ or ""))
    examples = [one_line(json.dumps(row, ensure_ascii=False, default=str), 300) for row in subject.rows[:EXAMPLES]]
    agents = {"oracle": subject.oracle_episodes, "says nothing": subject.null_episodes}
    agents |= {"calls tools at random": subject.random_episodes}
    packages = [package_of(entry) for entry in installed_environments() if name in (entry.name, entry.value)]
    versions = [*packages, f"gymnast-rl {version('gymnast-rl')}", f"Python {platform.python_version()}"]
    parts = [
        f"## Card of `{name}`",
        about or "",
        f"### Tasks\n\nThe first of {len(subject.all_rows)}:",
        "```text\n" + "\n".join(examples) + "\n```",
        "### Tools",
        "\n".join(line for tool in subject.tools for line in _tool(tool)) or "None: the answer is text.",
        f"### Reward\n\nIn {len(subject.rows)} tasks:",
        _table(("Agent", "mean", "least", "most"), [_rewards(*agent) for agent in agents.items() if agent[1]]),
        "### Check",
        _table(("Check", "Result", "Finding"), [(check, *found) for check, found in findings.items()]),
        f"Versions: {', '.join(versions)}.",
    ]
    return "\n\n".join(filter(None, parts))


def _tool(tool: ToolSchema) -> Iterator[str]:
    function = tool["function"]
    parameters = parameters_of(tool)
    yield f"- `{function['name']}({', '.join(parameters)})`: {one_line(function.get('description', ''), 500)}"
    for name, schema in parameters.items():
        yield f"    - `{name}`: {one_line(schema.get('description', ''), 500)}"


def _rewards(agent: str, episodes: Sequence[Episode]) -> tuple[str, ...]:
    rewards = [episode.reward for episode in episodes if episode.reward is not None] or [float("nan")]
    return agent, *(f"{number:.3g}" for number in (fmean(rewards), min(rewards), max(rewards)))


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [
        headings,
        ["---"] * len(headings),
        *([one_line(cell, 300).replace("|", "\\|") for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def write_card(card: str, path: Path) -> None:
    """Write the card between the two marks of a file, or into a new file, which gets the marks.

    Raises:
        CommandError: the file is there and lacks a mark, or cannot be read or written.
    """
    with explained():
        text = path.read_text() if path.exists() else f"{BEGIN}\n{END}\n"
        before, begin, rest = text.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise CommandError(
                f"{path} has no place for the card: write a line {BEGIN} and below it a line {END}, or name a new file"
            )
        path.write_text(f"{before}{BEGIN}\n{card}\n{END}{after}")
