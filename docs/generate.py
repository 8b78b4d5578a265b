"""Writes the table of options in docs/training.md from the configuration's own help texts.

    python docs/generate.py

A test fails when the table and the dataclasses differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path

from gymnast.trainer import GRPOConfig, RLOOConfig
from gymnast.trainer.config import AgentConfig

PAGE = Path(__file__).with_name("training.md")
BEGIN, END = "<!-- options: written by docs/generate.py -->\n", "<!-- end of options -->\n"


def own_options(config: type[AgentConfig]) -> dict[str, Field[object]]:
    """The options that gymnast adds to `transformers.TrainingArguments`, or whose default it changes, by name."""
    ours = {name for each in config.__mro__ if each.__module__ == AgentConfig.__module__ for name in vars(each)}
    return {each.name: each for each in fields(config) if each.name in ours and "help" in each.metadata}


def options_table() -> str:
    """The table in Markdown, in the order of the dataclasses."""
    return "".join(f"| {' | '.join(row)} |\n" for row in _rows())


def _rows() -> Iterator[tuple[str, str, str, str]]:
    yield "Option", "`GRPOConfig`", "`RLOOConfig`", "What it is"
    yield "---", "---", "---", "---"
    grpo, rloo = own_options(GRPOConfig), own_options(RLOOConfig)
    for name in {**grpo, **rloo}:
        text = (grpo.get(name) or rloo[name]).metadata["help"]
        yield f"`{name}`", _default(grpo.get(name)), _default(rloo.get(name)), text.replace("|", "\\|")


def _default(option: Field[object] | None) -> str:
    return "" if option is None else f"`{option.default!r}`"


def with_table(page: str) -> str:
    """The page with the table between its two markers."""
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{PAGE.name} must have the lines {BEGIN.strip()!r} and {END.strip()!r}")
    return f"{before}{BEGIN}\n{options_table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
