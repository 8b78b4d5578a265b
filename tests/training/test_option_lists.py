"""Every option is read, or causes a warning or an error; every name of TRL exists here or has advice."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import TrainingArguments
from trl.trainer.grpo_config import GRPOConfig as TRLGRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer as TRLGRPOTrainer
from trl.trainer.rloo_config import RLOOConfig as TRLRLOOConfig
from trl.trainer.rloo_trainer import RLOOTrainer as TRLRLOOTrainer

from gymnast.envs import ToolEnv
from gymnast.envs.tool_env.options import ToolEnvOptions
from gymnast.envs.tools.mark import ToolOptions
from gymnast.trainer import AgentTrainer, GRPOConfig, RLOOConfig
from gymnast.trainer.options.inherited import READ, REFUSED, WITHOUT_EFFECT
from gymnast.trainer.options.trl_names import TRL_NAMES

ROOT = Path(__file__).resolve().parents[2]
TRANSFORMERS = Path(transformers.__file__).parent


def names(config: Any) -> set[str]:
    return {field.name for field in fields(config)}


INHERITED = names(TrainingArguments)
OWN = (names(GRPOConfig) | names(RLOOConfig)) - INHERITED


def test_every_option_of_transformers_is_in_one_of_three_lists() -> None:
    lists = [READ, set(WITHOUT_EFFECT), set(REFUSED)]
    undecided = INHERITED - set().union(*lists)
    assert not undecided, (
        f"transformers has options that gymnast has not decided about: {sorted(undecided)}. Find out whether training "
        f"here does what they say, then add each to one list of trainer/options/inherited.py"
    )
    assert sum(map(len, lists)) == len(INHERITED), "an option is in two lists, or transformers no longer has it"


def test_options_in_the_list_of_those_read_are_read() -> None:
    """The reader is the trainer of transformers, an integration, a method of `TrainingArguments`, or gymnast."""
    files = [*TRANSFORMERS.glob("trainer*.py"), *TRANSFORMERS.glob("integrations/*.py")]
    source = "\n".join(path.read_text() for path in files if path.name != "training_args.py")
    read = set(re.findall(r"\bargs\.(\w+)", source)) | loaded(ROOT / "trainer")
    arguments = ast.parse((TRANSFORMERS / "training_args.py").read_text())
    read |= set(attributes(arguments))
    assert set(READ) - read == set()


def attributes(tree: ast.AST) -> Iterator[str]:
    """Names of attributes that are read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr


@cache
def loaded(folder: Path) -> set[str]:
    """Names of attributes that this package reads. Functions that only check options do not count."""
    found: set[str] = set()
    for path in (path for path in folder.rglob("*.py") if not path.name.endswith("rules.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.lstrip("_").startswith("check_"):
                node.body = []
        found |= set(attributes(tree))
    return found


def test_every_own_option_is_read_and_tested() -> None:
    unread = OWN - loaded(ROOT / "trainer") - loaded(ROOT / "envs")
    assert not unread, f"no line of trainer/ or envs/ reads {sorted(unread)}: let the code use them, or remove them"
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    untested = {name for name in OWN if not re.search(rf"\b{name}\b", tests)}
    assert not untested, f"no test sets {sorted(untested)}: write one that shows that they do what their help says"


@pytest.mark.parametrize(
    ("known", "of_trl"),
    [
        (names(GRPOConfig), names(TRLGRPOConfig)),
        (names(RLOOConfig), names(TRLRLOOConfig)),
        *(
            (set(inspect.signature(AgentTrainer.__init__).parameters), set(inspect.signature(item.__init__).parameters))
            for item in (TRLGRPOTrainer, TRLRLOOTrainer)
        ),
    ],
    ids=["GRPOConfig", "RLOOConfig", "GRPOTrainer", "RLOOTrainer"],
)
def test_every_name_of_trl_is_known_or_advised_on(known: set[str], of_trl: set[str]) -> None:
    missing = of_trl - known - set(TRL_NAMES)
    assert not missing, (
        f"TRL has {sorted(missing)}, and gymnast has not: add advice for each to trainer/options/trl_names.py, "
        f"and run python docs/generate.py"
    )


def test_no_advice_is_stale() -> None:
    exist = OWN | set(inspect.signature(AgentTrainer.__init__).parameters)
    stale = set(TRL_NAMES) & exist
    assert not stale, (
        f"gymnast has {sorted(stale)} now: remove the advice from trainer/options/trl_names.py, "
        f"and run python docs/generate.py"
    )
    called = {found[1] for text in TRL_NAMES.values() if (found := re.search(r"it is called (\w+)", text))}
    given = {name for text in TRL_NAMES.values() for name in re.findall(r"\b(\w+)=", text)}
    assert called - exist - INHERITED == set()
    of_environments = {*inspect.signature(ToolEnv.__init__).parameters, *ToolEnvOptions.__annotations__}
    of_environments |= ToolOptions.__annotations__.keys()
    assert given - exist - INHERITED - of_environments - {"model"} == set()
