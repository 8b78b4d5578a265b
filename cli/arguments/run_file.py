"""A run in a file: `gymnast train` reads it, and writes it into the run's folder.

    environment = "game.py:Guess"      # as on the command line
    model = "Qwen/Qwen3-0.6B"
    tasks = "game.py:rows"             # file.py:name, .jsonl, .json, .csv, .parquet, or hub:owner/name[split]

    [options]                          # of GRPOConfig, or of RLOOConfig with algorithm = "rloo"
    output_dir = "runs/guess"
    num_generations = 8

The same may stand in YAML. Names of files are relative to the run file's folder.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

import typer

from ..terminal.exits import CommandError, explained
from .row_files import READERS

ALGORITHMS = ("grpo", "rloo")

ENDINGS = (".toml", ".yaml", ".yml")
"""How the name of a run file ends."""

PATHS = ("output_dir", "deepspeed", "fsdp_config", "accelerator_config")
"""Options of a training that name files."""

FORMS = {
    "eval_tasks": 'a text, or a table of texts such as {easy = "game.py:easy", hard = "game.py:hard"}',
    "rewards": 'a list of texts such as ["rewards.py:brevity"]',
    "options": "a table, [options]",
    "lora": "a table, [lora]",
}
"""The form of each entry; the others are texts."""


@dataclass(kw_only=True)
class RunFile:
    """The description of a training."""

    environment: str = ""
    model: str = ""
    tasks: str | None = None  # None: the environment's own `tasks`
    eval_tasks: str | dict[str, str] | None = None  # a dict names several data sets
    tool_format: str | None = None  # None: as the model's template shows
    rewards: list[str] = field(default_factory=list)  # reward functions, file.py:name, or names of reward models
    algorithm: str = "grpo"
    options: dict[str, Any] = field(default_factory=dict)
    lora: dict[str, Any] | None = None  # arguments of peft.LoraConfig

    def __post_init__(self) -> None:
        if missing := [name for name in ("environment", "model") if not getattr(self, name)]:
            raise CommandError(f"the run has no {' and no '.join(missing)}: set it in the file or with --model")
        if self.algorithm not in ALGORITHMS:
            raise CommandError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {self.algorithm!r}")
        for reward in self.rewards:
            if reward.endswith(".py") or Path(reward).is_file():
                raise CommandError(f"{reward} is a file: name the reward function in it, {reward}:my_reward")


def read_entries(path: Path) -> dict[str, Any]:
    """Return the entries of a run file."""
    with explained():
        text = path.read_text()
    try:
        entries = tomllib.loads(text) if path.suffix == ".toml" else _read_yaml(text)
    except ValueError as error:
        raise CommandError(f"{path} is not {'TOML' if path.suffix == '.toml' else 'YAML'}: {error}") from error
    known = [entry.name for entry in fields(RunFile)]
    if unknown := sorted(map(str, entries.keys() - set(known))):
        raise CommandError(
            f"{path}: a run has no {', '.join(unknown)}, it has {', '.join(known)}; options of the training stand "
            f"under [options]"
        )
    _check_forms(path, entries)
    for name, value in entries.get("options", {}).items():
        if isinstance(value, bool) and name.endswith("_strategy"):
            read = f"{name}: {'yes' if value else 'no'} as {value}"
            raise CommandError(f'{path}: YAML reads {read}: write "no" in quotes')
    return _seen_from(Path(), entries, path.parent)


def _seen_from(folder: Path, entries: Mapping[str, Any], start: Path) -> dict[str, Any]:
    """Return entries whose files are named from the folder `start` with their names from another folder."""

    def moved(text: str, *, is_file: bool = False) -> str:
        is_file = is_file or ".py:" in text or text.startswith(".") or text.endswith(tuple(READERS))
        if folder.resolve() == start.resolve() or Path(text).is_absolute() or not is_file:
            return text  # also a module, an id, a name of the Hub
        return os.path.relpath(start / text, folder)

    changed: dict[str, Any] = {**entries}
    for name in ("environment", "model", "tasks", "eval_tasks", "rewards"):
        match entries.get(name):
            case str() as text:
                changed[name] = moved(text, is_file=name == "model" and (start / text).exists())
            case list() as texts:
                changed[name] = [*map(moved, texts)]
            case dict() as texts:
                changed[name] = {key: moved(text) for key, text in texts.items()}
    if changed.get("model", "") != entries.get("model", ""):
        changed["model"] = os.path.join(".", changed["model"])  # without a dot it could be a name of the Hub
    given = {name: text for name, text in entries.get("options", {}).items() if name in PATHS and isinstance(text, str)}
    moved_options = {
        name: moved(text, is_file=name == "output_dir" or (start / text).exists()) for name, text in given.items()
    }
    return changed | ({"options": entries["options"] | moved_options} if given else {})


def _check_forms(path: Path, entries: Mapping[str, Any]) -> None:
    from pydantic import TypeAdapter, ValidationError

    for name, hint in get_type_hints(RunFile).items():
        if name in entries:
            try:
                TypeAdapter(hint).validate_python(entries[name], strict=True)
            except ValidationError:
                form = FORMS.get(name, "a text")
                raise CommandError(f"{path}: {name} must be {form}, got {entries[name]!r}") from None


def _read_yaml(text: str) -> dict[str, Any]:
    """Return the entries; a ValueError if this is no mapping of YAML."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads 1e-5 as a number, as YAML 1.2 does; PyYAML alone takes it for a text."""

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))
    try:
        entries = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    if not isinstance(entries, dict):
        raise ValueError(f"expected names and values, got {type(entries).__name__}")
    return entries


def parse_setting(text: str) -> tuple[str, Any]:
    """Return the name and the value of an option such as `learning_rate=1e-5`; the value is TOML, or else text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise CommandError(f"--set takes name=value, such as learning_rate=1e-5, got {text!r}")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        if value in ("True", "False"):  # as a text, both would switch the option on
            raise CommandError(f"values are those of TOML: write {name}={value.lower()}, got {text!r}") from None
        return name, value


def check_settings(context: typer.Context, settings: list[str] | None) -> list[str] | None:
    """Refuse an option without a value, as in `--set max_steps 3`, of which typer would only refuse the 3."""
    if not context.resilient_parsing:  # the shell completes a setting that is not whole
        list(map(parse_setting, settings or ()))
    return settings


def to_yaml(run: RunFile, folder: Path) -> str:
    """Return the text of a file in this folder that `read_entries` reads."""
    import yaml

    entries = {name: value for name, value in asdict(run).items() if value not in (None, [], {})}
    if "hub_token" in run.options:  # the file is published with the model
        entries["options"] = {name: value for name, value in run.options.items() if name != "hub_token"}
    return yaml.safe_dump(_seen_from(folder, entries, Path()), sort_keys=False, allow_unicode=True)
