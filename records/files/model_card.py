"""The model card of a trained model: Markdown for the Hugging Face Hub, from what its training has recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gymnast import REPOSITORY, __version__

from .run import Run
from .run_files import RUN_FILE

WINDOW = 10  # steps, at most, whose mean reward is shown


@dataclass(kw_only=True, slots=True, frozen=True)
class CardFacts:
    """What a card says that a run's files do not."""

    name: str  # of the model
    algorithm: str  # such as GRPO
    environments: Mapping[str, str]  # the docstring of each
    rewards: Mapping[str, float]  # the weight of each reward function
    options: Mapping[str, Any]  # of the training, for a run without a run file
    versions: Mapping[str, str]  # of packages
    metadata: Mapping[str, Any]  # names and values of the Hub; None: leave it out


def model_card(facts: CardFacts, run: Run | None, *, curve: str | None = None) -> str:
    """Return the card.

    Args:
        facts: What the files of the run do not say.
        run: The records of the training, if there are any.
        curve: The picture of the reward, as seen from the card.
    """
    import yaml

    run_file = run.folder / RUN_FILE if run is not None else None
    text = run_file.read_text() if run_file is not None and run_file.is_file() else ""
    metadata = {"datasets": sorted(set(re.findall(r"\bhub:([\w.-]+/[\w.-]+)", text))) or None} | {**facts.metadata}
    kept = {name: value for name, value in metadata.items() if value is not None}
    gymnast = f"[gymnast]({REPOSITORY})" if REPOSITORY else "gymnast"
    base = f" from `{kept['base_model']}`" if "base_model" in kept else ""
    names = ", ".join(f"`{name}`" for name in facts.environments)
    parts = [
        f"---\n{yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)}---",
        f"# {facts.name}",
        f"An agent that was trained{base} by {facts.algorithm} with {gymnast} {__version__}, in {names}.",
        *(f"## Environment: `{name}`\n\n{about}".rstrip() for name, about in facts.environments.items()),
        _section("## Tools", _tools(run) if run is not None else ()),
        _section("## Reward", ["- the environment's own", *_weights(facts.rewards)]),
        _section("## Results", _results(run) if run is not None else ()),
        f"![The reward of each step]({curve})" if curve is not None else "",
        _section("## Training", _training(text, facts.options)),
        f"Versions: {', '.join(f'{name} {version}' for name, version in facts.versions.items())}.",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _section(heading: str, lines: Iterator[str] | Sequence[str]) -> str:
    text = "\n".join(lines)
    return f"{heading}\n\n{text}" if text else ""


def _tools(run: Run) -> Iterator[str]:
    """Yield a line for each tool that the model was shown in the last recorded step."""
    shown = {tool["function"]["name"]: tool["function"] for row in run.latest() for tool in run.episode(row).tools}
    for name, function in shown.items():
        parameters = ", ".join(function.get("parameters", {}).get("properties", {}))
        description = function.get("description", "").strip().partition("\n")[0]
        yield f"- `{name}({parameters})`: {description}".removesuffix(": ")


def _weights(rewards: Mapping[str, float]) -> Iterator[str]:
    for name, weight in rewards.items():
        yield f"- `{name}`" + (f", times {weight:g}" if weight != 1 else "")


def _results(run: Run) -> Iterator[str]:
    """Yield the lines of a table: the first and the last evaluation of each data set, and of the training."""
    rows: list[tuple[str, str, str]] = []
    for title, logs in run.evaluations.items():
        for measure, cell in {"success (pass@1, 95 % interval)": _success, "reward": _reward}.items():
            first, *later = [f"{cell(log.metrics)}, step {step}" for step, log in logs if cell(log.metrics)] or [""]
            rows += [(f"{title}: {measure}", first, later[-1] if later else "")] if first else []
    steps = [(line["step"], line["reward"]) for line in run.metrics if "reward" in line]
    if steps:
        count = min(WINDOW, (len(steps) + 1) // 2)
        rows.append(("training: reward", _mean(steps[:count]), _mean(steps[-count:])))
    if rows:
        yield from ("| Measure | First | Last |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows))


def _success(metrics: Mapping[str, Any]) -> str:
    if "pass@1" not in metrics:
        return ""
    share, low, high = (100 * metrics[f"pass@1{end}"] for end in ("", "/low", "/high"))
    return f"{share:.1f} % ({low:.1f} to {high:.1f} %)"


def _reward(metrics: Mapping[str, Any]) -> str:
    return f"{metrics['reward']:.3g}" if "reward" in metrics else ""


def _mean(steps: Sequence[tuple[int, float]]) -> str:
    return f"{fmean(reward for _, reward in steps):.3g}, steps {steps[0][0]} to {steps[-1][0]}"


def _training(run_file: str, options: Mapping[str, Any]) -> Iterator[str]:
    if run_file:
        yield from (f"`gymnast train {RUN_FILE}`, with this file:", "", "```yaml", run_file.rstrip(), "```")
    elif options:
        yield from ("Options that differ from the defaults:", "")
        yield from (f"- `{name}={value!r}`" for name, value in options.items())
