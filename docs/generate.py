"""Writes the tables of the pages that can be generated from the code.

    python docs/generate.py

docs/reference/options.md has the options, from the configuration's own headings and help texts, and the treatment of
each option of transformers. docs/from_trl.md has the names of TRL that gymnast lacks, from the table behind its error
messages. docs/families.md has what works with each chat template, from `tests/chat/family_matrix.py`, which tries it,
and what a picture becomes, from `tests/vision/family_table.py`. A test fails when a page and the code differ.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path

from gymnast.trainer import GRPOConfig, RLOOConfig
from gymnast.trainer.options.config import AgentConfig
from gymnast.trainer.options.fields import Allowed, Range
from gymnast.trainer.options.inherited import READ, REFUSED, WITHOUT_EFFECT
from gymnast.trainer.options.trl_names import TRL_NAMES
from gymnast.trainer.options.value_checks import allowed_values

OPTIONS_PAGE = Path(__file__).with_name("reference") / "options.md"
TRL_PAGE = Path(__file__).with_name("from_trl.md")
FAMILIES_PAGE = Path(__file__).with_name("families.md")


START_HERE = frozenset(
    {
        "learning_rate",
        "num_generations",
        "max_completion_length",
        "max_turns",
        "max_concurrency",
        "temperature",
        "generator",
        "log_episodes_steps",
    }
)
"""The options that a newcomer needs first."""


def own_options(config: type[AgentConfig]) -> dict[str, Field[object]]:
    """Return the options that gymnast adds to those of transformers, or whose default it changes, by name."""
    ours = {name for base in config.__mro__ if base.__module__.startswith("gymnast.") for name in vars(base)}
    return {field.name: field for field in fields(config) if field.name in ours and "help" in field.metadata}


def options_tables() -> str:
    """Return a table in Markdown for each heading of `AgentConfig`, and one for the own options of the algorithms."""
    own = own_options(GRPOConfig) | own_options(RLOOConfig)
    headings = [*headings_of(AgentConfig), ("Options of one trainer", [*own.keys() - own_options(AgentConfig).keys()])]
    return "\n".join(f"### {heading}\n\n{_table(_rows(names))}" for heading, names in headings)


def headings_of(config: type) -> list[tuple[str, list[str]]]:
    """Return the headings of a class, which are comments such as `# --- Model ---`, each with the fields below it."""
    headings: list[tuple[str, list[str]]] = []
    for line in inspect.getsource(config).splitlines():
        if heading := re.fullmatch(r"    # --- (.+) ---", line):
            headings.append((heading[1], []))
        elif headings and (field := re.match(r"    (\w+): ", line)):
            headings[-1][1].append(field[1])
    return headings


def _rows(names: list[str]) -> Iterator[tuple[str, ...]]:
    yield "Option", "Default", "Values", "Meaning"
    yield "---", "---", "---", "---"
    grpo, rloo = own_options(GRPOConfig), own_options(RLOOConfig)
    allowed = allowed_values(RLOOConfig) | allowed_values(GRPOConfig)
    for name in names:
        default = _default(grpo.get(name) or rloo[name])
        if name not in rloo or name not in grpo:
            default += f" (only `{GRPOConfig.__name__ if name in grpo else RLOOConfig.__name__}`)"
        elif _default(rloo[name]) != default:
            default += f"; `RLOOConfig`: {_default(rloo[name])}"
        mark = "**Start here.** " if name in START_HERE else ""
        meaning = (grpo.get(name) or rloo[name]).metadata["help"].replace("|", "\\|")
        yield f"`{name}`", default, _values(allowed.get(name)), mark + meaning


def _values(allowed: Allowed | None) -> str:
    values = None if allowed is None else allowed.values
    if isinstance(values, Range):
        return values.text
    if values is None or isinstance(values.names, Mapping):  # users may add rows to a table
        return ""
    return ", ".join(f"`{name}`" for name in values.names)


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _default(option: Field[object]) -> str:
    default = option.default if option.default_factory is MISSING else option.default_factory()
    return f"`{default!r}`"


def inherited_table() -> str:
    """Return the options of transformers that gymnast leaves as they are: name, default and treatment."""
    ours = own_options(GRPOConfig)
    rows = [("Option", "Default", "Effect"), ("---", "---", "---")]
    for option in fields(GRPOConfig):
        if option.name in ours or option.name not in {*READ, *WITHOUT_EFFECT, *REFUSED}:
            continue
        rows.append((f"`{option.name}`", _default(option), _treatment(option.name)))
    return _table(rows)


def _treatment(name: str) -> str:
    if name in READ:
        return "as in transformers"
    if name in REFUSED:
        return f"an error: {REFUSED[name]}"
    return f"none, and a warning: {WITHOUT_EFFECT[name]}"


def with_tables(page: str) -> str:
    """Return the page of options with its tables between their markers."""
    return _filled(_filled(page, "options", options_tables()), "inherited options", inherited_table())


def with_trl_names(page: str) -> str:
    """The page for people from TRL with the table between its two markers."""
    rows = [("In TRL", "Here"), ("---", "---"), *((f"`{name}`", advice) for name, advice in TRL_NAMES.items())]
    return _filled(page, "names", _table(rows))


def with_families(page: str, matrix: str, original: str) -> str:
    """The page of model families with its two tables of templates between their markers."""
    return _filled(_filled(page, "matrix", matrix), "original families", original)


def with_image_families(page: str, table: str) -> str:
    """The page of model families with its table of models that see between its markers."""
    return _filled(page, "images", table)


def _filled(page: str, name: str, table: str) -> str:
    begin, end = f"<!-- {name}: written by docs/generate.py -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"the page must have the lines {begin.strip()!r} and {end.strip()!r}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def main() -> None:
    sys.path.insert(0, str(TRL_PAGE.parents[1]))
    from tests.chat.family_matrix import matrix, original_table
    from tests.vision.family_table import image_table

    OPTIONS_PAGE.write_text(with_tables(OPTIONS_PAGE.read_text()))
    TRL_PAGE.write_text(with_trl_names(TRL_PAGE.read_text()))
    families = with_families(FAMILIES_PAGE.read_text(), matrix(), original_table())
    FAMILIES_PAGE.write_text(with_image_families(families, image_table()))


if __name__ == "__main__":
    main()
