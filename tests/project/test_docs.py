"""The documents are true: their code runs, their tables match the code, and the files they name exist."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import transformers.trainer
from transformers import TrainerCallback
from trl.trainer.grpo_config import GRPOConfig as TRLGRPOConfig
from trl.trainer.rloo_config import RLOOConfig as TRLRLOOConfig

import gymnast.envs
from gymnast.envs import Environment, RolloutEngine, ScriptedPolicy, StopReason, ToolEnv, tool_call
from gymnast.trainer import GRPOConfig, RLOOConfig
from gymnast.trainer.learning.advantages import ESTIMATORS
from gymnast.trainer.learning.corrections import CORRECTIONS
from gymnast.trainer.learning.losses import LOSSES
from gymnast.trainer.testing.tiny import make_tiny_model, make_tiny_tokenizer

from ..training.buttons import make_trainer

ROOT = Path(__file__).resolve().parents[2]
OURS = [list(LOSSES), list(ESTIMATORS), list(CORRECTIONS)]  # before the code of a page adds its own
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BESIDE = [ROOT / name for name in ("AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md")]
ALL_TEXTS = [*PAGES, *BESIDE, *sorted(ROOT.glob("examples/*.py"))]
HUB_MODEL = "Qwen/Qwen3-0.6B"  # a tiny model in the current folder, which is found before the hub's

CONFIGS = [("grpo", GRPOConfig, TRLGRPOConfig), ("rloo", RLOOConfig, TRLRLOOConfig)]

OTHER_PACKAGES = ("more_adapters.md", "serve.md")  # their code runs in tests/with_adapters and tests/with_vllm


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


by_page = pytest.mark.parametrize("page", PAGES, ids=named)


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """Line numbers and sources of the blocks that are marked as Python."""
    text = page.read_text()
    return [
        (text.count("\n", 0, found.start(1)), found[1])
        for found in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    ]


def load(path: Path) -> ModuleType:
    """Import a program as a module without running it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def first_column(table: str) -> list[str]:
    """The names in backticks in the first cell of each row of a Markdown table."""
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [name for cell in rows for name in re.findall(r"`([^`]+)`", cell)]


def table_under(page: Path, words: str) -> str:
    """The first table after the line that contains these words."""
    return page.read_text().partition(words)[2].partition("\n|")[2].partition("\n\n")[0]


class StopAfterTwoSteps(TrainerCallback):
    """The pages show realistic numbers of steps; two are enough here."""

    def __init__(self) -> None:
        self.steps = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps += 1
        control.should_training_stop |= self.steps >= 2


# --- the code of the pages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in OTHER_PACKAGES and python_blocks(page)], ids=named
)
def test_every_python_block_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    callbacks = [*transformers.trainer.DEFAULT_CALLBACKS, StopAfterTwoSteps]
    monkeypatch.setattr(transformers.trainer, "DEFAULT_CALLBACKS", callbacks)
    blocks = python_blocks(page)
    if any(re.search("Docker(Box|Executor)", block) for _, block in blocks):
        request.getfixturevalue("image")  # skips where no engine answers
    if any("Bwrap" in block for _, block in blocks):
        request.getfixturevalue("bubblewrap")
    if any(HUB_MODEL in block for _, block in blocks):
        tokenizer = make_tiny_tokenizer([])
        model = make_tiny_model(tokenizer)
        model.config.max_position_embeddings = 256  # an untrained model never ends its answer: its context does, soon
        model.save_pretrained(HUB_MODEL)
        tokenizer.save_pretrained(HUB_MODEL)
    names: dict[str, Any] = {"__name__": page.stem}  # the blocks of a page build on one another
    for line, block in blocks:
        text = "\n" * line + block  # so that a traceback has the page's line
        exec(compile(text, str(page), "exec", dont_inherit=True), names)


@by_page
def test_every_block_says_its_language(page: Path) -> None:
    fences = re.findall(r"^\s*```(\w*)$", page.read_text(), re.MULTILINE)
    assert [fence for fence in fences[::2] if fence not in ("python", "bash", "text")] == []
    assert set(fences[1::2]) <= {""}


def test_the_readme_trains_in_some_fifteen_lines() -> None:
    [block] = [block for _, block in python_blocks(ROOT / "README.md") if "GRPOTrainer(" in block]
    assert len([line for line in block.splitlines() if line]) <= 16


# --- the examples in docstrings -----------------------------------------------------------------------------------


def docstring_example(of: Any) -> str:
    """The indented code of a docstring."""
    lines = (inspect.getdoc(of) or "").splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("    class "))
    return textwrap.dedent("\n".join(lines[start:]))


def test_the_example_of_environment_runs() -> None:
    names: dict[str, Any] = vars(gymnast.envs).copy()
    exec(docstring_example(Environment), names)
    [right, wrong] = RolloutEngine(names["Guess"], ScriptedPolicy(["7"])).play([{"number": 7}, {"number": 8}])
    assert (right.reward, right.stop) == (1.0, StopReason.ENV_TERMINATED)
    assert (wrong.reward, wrong.stop) == (0.0, StopReason.ENV_TERMINATED)


def test_the_example_of_tool_env_runs() -> None:
    names: dict[str, Any] = vars(gymnast.envs).copy()
    exec(docstring_example(ToolEnv), names)
    policy = ScriptedPolicy([tool_call("multiply", a=6, b=7), tool_call("final_answer", answer=42)])
    [episode] = RolloutEngine(names["Calculator"], policy).play([{"question": "6 times 7?", "answer": 42}])
    assert (episode.reward, episode.stop) == (1.0, StopReason.FINAL_ANSWER)


# --- the tables ---------------------------------------------------------------------------------------------------


def test_the_tables_of_options_match_the_code() -> None:
    page = (ROOT / "docs" / "reference" / "options.md").read_text()
    generate = load(ROOT / "docs" / "generate.py")
    assert page == generate.with_tables(page), "run: python docs/generate.py"
    assert sorted(first_column(page)) == sorted(
        {field.name for config in (GRPOConfig, RLOOConfig) for field in fields(config)}
    )
    assert {"num_generations", "beta", "max_turns", "learning_rate"} <= generate.own_options(GRPOConfig).keys()
    from_trl = (ROOT / "docs" / "from_trl.md").read_text()
    assert from_trl == generate.with_trl_names(from_trl), "run: python docs/generate.py"


def test_the_table_of_stop_reasons_matches_the_enum() -> None:
    def kind(reason: StopReason) -> str:
        return "termination" if reason.is_termination else "truncation" if reason.is_truncation else "failure"

    table = table_under(ROOT / "docs" / "environments.md", "Every episode has one `StopReason`")
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines() if line.startswith("| `")]
    assert {name.strip("`"): named for name, named in rows} == {reason.value: kind(reason) for reason in StopReason}


def test_the_tables_of_losses_estimators_and_corrections_are_complete() -> None:
    headings = ("## Losses", "## Advantages", "## Sampler and trainer")
    assert [first_column(table_under(ROOT / "docs" / "theory.md", heading)) for heading in headings] == OURS


def defaults(config: Any) -> dict[str, Any]:
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(config)
    }


def test_the_table_of_other_defaults_is_complete() -> None:
    ours = {name: (defaults(config), defaults(trl)) for name, config, trl in CONFIGS}
    table = table_under(ROOT / "docs" / "from_trl.md", "These defaults differ")
    said: dict[str, dict[str, str]] = {name: {} for name in ours}
    for line in table.splitlines()[2:]:
        option, *cells = [cell.strip() for cell in line.split("|")[1:4]]
        said["grpo"][option.strip("`")], said["rloo"][option.strip("`")] = cells
    for name, (here, there) in ours.items():
        differ = {
            option: f"`{here[option]!r}`, `{there[option]!r}`"
            for option in here.keys() & there.keys()
            if here[option] != there[option]
        }
        assert {option: cell for option, cell in said[name].items() if cell} == differ


def test_every_metric_is_documented(tmp_path: Path) -> None:
    documented = first_column((ROOT / "docs" / "metrics.md").read_text())
    patterns = [
        re.sub(r"<\w+>", "[^/]+", re.escape(name).replace("\\<", "<").replace("\\>", ">")) for name in documented
    ]
    trainer = make_trainer(tmp_path, beta=0.1)  # calls tools and finishes: all metrics have something to count
    trainer.train()
    logged = {name for name in trainer.state.log_history[0] if name != "step"}
    assert {name for name in logged if not any(re.fullmatch(pattern, name) for pattern in patterns)} == set()
    fixed = {name for name in documented if "<" not in name}
    assert fixed - logged == set()


def test_the_page_quotes_the_errors_of_templates() -> None:
    table = table_under(ROOT / "docs" / "tokens.md", "## When a template is refused")
    said = [line.split("|")[1].strip().removeprefix("the ") for line in table.splitlines() if line.startswith("| ")]
    said = [sentence for sentence in said if sentence not in ("The error says", "---")]
    source = re.sub(r'"\s+f?"', "", "".join(path.read_text() for path in sorted((ROOT / "trainer").rglob("*.py"))))
    assert len(said) == 7
    assert [sentence for sentence in said if sentence not in source] == []


def test_troubleshooting_quotes_errors_of_the_code() -> None:
    page = ROOT / "docs" / "troubleshooting.md"
    quoted = first_column(page.read_text())
    paths = [
        path
        for folder in ("sandbox", "envs", "records", "trainer", "cli")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    source = re.sub(r'"\s+f?"', "", "".join(path.read_text() for path in paths)).replace("{{", "{").replace("}}", "}")
    assert len(quoted) > 10
    assert [sentence for sentence in quoted if sentence not in source] == []


def test_figures_of_the_pretrained_model_are_those_that_were_measured() -> None:
    runs = json.loads((ROOT / "benchmarks" / "results" / "word_problems.json").read_text()).values()
    before, after = (
        round(100 * sum(run[f"success_{when}_greedy"] for run in runs) / len(runs)) for when in ("before", "after")
    )
    assert len(runs) == 3
    assert f"from {before} % to {after} % of held-out ones" in (ROOT / "README.md").read_text()
    assert f"**{before} % → {after} %** of problems" in (ROOT / "docs" / "gallery.md").read_text()
    assert f"{before} % to {after} % in the mean of three seeds" in (ROOT / "docs" / "evidence.md").read_text()
    second = json.loads((ROOT / "benchmarks" / "results" / "reverse_words.json").read_text())
    shares = " → ".join(f"{100 * second[f'success_{when}_greedy']:.0f} %" for when in ("before", "after"))
    assert f"**{shares}** of new lists" in (ROOT / "docs" / "gallery.md").read_text()
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"from {before} % to {after} % in half an hour" in listed


# --- names in the pages -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ALL_TEXTS, ids=named)
def test_every_target_of_make_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets |= {f"bench-{path.parent.name.replace('_', '-')}" for path in ROOT.glob("benchmarks/*/__main__.py")}
    named = set(re.findall(r"(?:`|^|\n)make (?:--silent )?([a-z-]+[a-z])", page.read_text()))
    assert named <= targets


def links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not re.match(r"https?://", target):
            yield target.partition("#")[0] or page.name  # a link within the page


@pytest.mark.parametrize("page", [*PAGES, *BESIDE], ids=named)
def test_every_link_has_a_target(page: Path) -> None:
    assert [target for target in links(page) if not (page.parent / target).is_file()] == []


@pytest.mark.parametrize("page", [*PAGES, *BESIDE], ids=named)
def test_every_file_that_is_named_exists(page: Path) -> None:
    named = re.findall(
        r"\b((?:examples|benchmarks|docs|envs|gymnast|sandbox|tests|trainer)/[\w/]+\.(?:py|png|md|json))\b",
        page.read_text(),
    )
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_page_that_an_error_names_exists() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "trainer").rglob("*.py"))
    pages = set(re.findall(r"docs/[\w/]+\.md", sources))
    assert {"docs/families.md", "docs/parsers.md", "docs/tokens.md"} <= pages
    assert [name for name in pages if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("page", [*ALL_TEXTS, ROOT / "docs" / "generate.py"], ids=named)
def test_no_path_or_address_of_one_machine_is_named(page: Path) -> None:
    # The dots keep this file itself free of what it looks for.
    places = r"(?<![\w.])/(?:work|root|home|tmp)/|pypi\.(?:org|python)|--index-url|--extra-index-url|localhost:\d"
    assert re.findall(places, page.read_text()) == []
