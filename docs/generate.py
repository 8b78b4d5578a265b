"""Writes the tables of the pages that can be generated from the code.

    python docs/generate.py

docs/reference/options.md has the options, from the configuration's own help texts, and the treatment of each option of
transformers. docs/from_trl.md has the names of TRL that
gymnast lacks, from the table behind its error messages. docs/families.md has what works with each
chat template, from `tests/chat/family_matrix.py`, which tries it. A test fails when a page and the code differ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path

from gymnast.trainer import GRPOConfig, RLOOConfig
from gymnast.trainer.options.config import AgentConfig
from gymnast.trainer.options.inherited import READ, REFUSED, WITHOUT_EFFECT
from gymnast.trainer.options.trl_names import TRL_NAMES

OPTIONS_PAGE = Path(__file__).with_name("reference") / "options.md"
TRL_PAGE = Path(__file__).with_name("from_trl.md")
FAMILIES_PAGE = Path(__file__).with_name("families.md")


def own_options(config: type[AgentConfig]) -> dict[str, Field[object]]:
    """The options that gymnast adds to `transformers.TrainingArguments`, or whose default it changes, by name."""
    ours = {name for each in config.__mro__ if each.__module__.startswith("gymnast.") for name in vars(each)}
    return {each.name: each for each in fields(config) if each.name in ours and "help" in each.metadata}


def options_table() -> str:
    """The table in Markdown, in the order of the dataclasses."""
    return "".join(f"| {' | '.join(row)} |\n" for row in _rows())


def _rows() -> Iterator[tuple[str, str, str, str]]:
    yield "Option", "`GRPOConfig`", "`RLOOConfig`", "Meaning"
    yield "---", "---", "---", "---"
    grpo, rloo = own_options(GRPOConfig), own_options(RLOOConfig)
    for name in {**grpo, **rloo}:
        text = (grpo.get(name) or rloo[name]).metadata["help"]
        yield f"`{name}`", _default(grpo.get(name)), _default(rloo.get(name)), text.replace("|", "\\|")


def _default(option: Field[object] | None) -> str:
    if option is None:
        return ""
    default = option.default if option.default_factory is MISSING else option.default_factory()
    return f"`{default!r}`"


def inherited_table() -> str:
    """The options of transformers that gymnast leaves as they are: name, default and treatment."""
    ours = own_options(GRPOConfig)
    rows = [("Option", "Default", "Effect"), ("---", "---", "---")]
    for option in fields(GRPOConfig):
        if option.name in ours or option.name not in {*READ, *WITHOUT_EFFECT, *REFUSED}:
            continue
        rows.append((f"`{option.name}`", _default(option), _treatment(option.name)))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _treatment(name: str) -> str:
    if name in READ:
        return "as in transformers"
    if name in REFUSED:
        return f"an error: {REFUSED[name]}"
    return f"none, and a warning: {WITHOUT_EFFECT[name]}"


def with_tables(page: str) -> str:
    """The page of options with its two tables between their markers."""
    return _filled(_filled(page, "options", options_table()), "inherited options", inherited_table())


def with_trl_names(page: str) -> str:
    """The page for people from TRL with the table between its two markers."""
    rows = [("In TRL", "Here"), ("---", "---"), *((f"`{name}`", advice) for name, advice in TRL_NAMES.items())]
    return _filled(page, "names", "".join(f"| {' | '.join(row)} |\n" for row in rows))


def with_families(page: str, matrix: str, original: str) -> str:
    """The page of model families with its two tables between their markers."""
    return _filled(_filled(page, "matrix", matrix), "original families", original)


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

    OPTIONS_PAGE.write_text(with_tables(OPTIONS_PAGE.read_text()))
    TRL_PAGE.write_text(with_trl_names(TRL_PAGE.read_text()))
    FAMILIES_PAGE.write_text(with_families(FAMILIES_PAGE.read_text(), matrix(), original_table()))


if __name__ == "__main__":
    main()
