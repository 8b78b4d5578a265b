"""Checks before anything is generated: the first rows of the data, and what can be known without the model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ...envs.core import Message, ToolSchema
from ...envs.engine.begin_episode import begin_episode, first_misfit
from ...envs.engine.play_episode import EpisodeLimits
from ...envs.engine.rollout_engine import group_specs
from ...envs.episode import EpisodeSpec, Failure
from ...envs.registry import ENVIRONMENT_COLUMN, EnvironmentLike, EnvironmentSource
from ...envs.rewards import Rewards
from ...envs.runtime.threads import run_in_loop
from ...envs.tool_env.tool_env import ToolEnv
from ..chat.by_environment import GivenFormats, check_names
from ..options.config import AgentConfig
from ..rollout.schedule import Rows
from ..rollout.stream import is_stream

ROWS_LOOKED_AT = 100
"""Rows among which the first one of each environment is looked for."""


def check_data_sets(
    train: Rows | None,
    evaluation: Rows | Mapping[str, Rows] | None,
    *,
    source: EnvironmentSource,
    rewards: Rewards,
    begin: Callable[[EpisodeSpec, Sequence[Message], Sequence[ToolSchema]], Any],
    limits: EpisodeLimits,
) -> None:
    """Check that the environment can play the data, and that the model can read its prompts and tools.

    Of the first `ROWS_LOOKED_AT` rows, the first one of each environment is really reset and rendered (`begin`). So is
    the environment's first row whose `tools` do not fit, see `_tools_columns`. Other rows are checked when they are
    drawn: a data set may be too large to be read before training.

    Raises:
        TypeError: a data set is not a sequence of mappings.
        ValueError: there are no rows, a reset fails, or a prompt is too long.
    """
    for name, rows in _data_sets(train, evaluation).items():
        check_is_rows(name, rows)
        columns = _tools_columns(rows)
        for spec in _first_of_each_environment(name, rows, source):
            rewards.check_columns(list(spec.task.row))
            environment = source.create(spec)
            misfit = run_in_loop(_check_reset(spec, environment, begin, limits, columns, source.choose(spec.task.row)))
            if misfit is not None:  # unless reset_task adds a tool for this row
                [spec] = group_specs(f"row {misfit} of {name}", rows[misfit], group_size=1, seed=0)
                run_in_loop(_check_reset(spec, source.create(spec), begin, limits))
            _warn_of_no_tools(environment.unwrapped, rewards)


def check_before_loading(
    environment: EnvironmentLike,
    train: Rows | None,
    evaluation: Rows | Mapping[str, Rows] | None,
    tool_format: GivenFormats,
    chat_templates: Mapping[str, str] | None,
) -> None:
    """Raise a TypeError or a ValueError for an argument that is wrong whatever the model, which takes long to load."""
    check_names(EnvironmentSource.of(environment).names, tool_format, chat_templates)
    for name, rows in _data_sets(train, evaluation).items():
        check_is_rows(name, rows)
        _check_is_row(name, 0, rows[0])


def check_best_metric(args: AgentConfig, evaluation: Rows | Mapping[str, Rows] | None) -> None:
    """Raise a ValueError if evaluations of several data sets lack the metric that chooses the best model."""
    if not isinstance(evaluation, Mapping) or not args.needs_best_metric:
        return
    metric = str(args.metric_for_best_model).removeprefix("eval_")
    if not any(metric.startswith(f"{name}_") for name in evaluation):
        names = ", ".join(repr(f"{name}_reward") for name in evaluation)
        raise ValueError(
            f"metric_for_best_model={metric!r} is a metric of no data set: eval_dataset has several, so choose one of "
            f"{names}, or another metric of one of these sets"
        )


def first_rows(args: AgentConfig, rows: Any, number: int) -> Any:
    """Return training rows to look at before training: of a stream the first ones, or else all; see `check_stream`."""
    check_stream(args, rows)
    return list(islice(rows, number)) if is_stream(rows) else rows


def check_stream(args: AgentConfig, rows: Any) -> None:
    """Raise a ValueError if an option needs the length of a stream, or another order."""
    if not is_stream(rows):
        return
    stream = f"train_dataset is a stream of rows ({type(rows).__name__})"
    if args.max_steps <= 0:
        raise ValueError(
            f"{stream}, which has no length: set max_steps, the number of optimiser steps, in place of "
            f"num_train_epochs; or pass some rows as a list, list(data.take(10_000))"
        )
    if args.shuffle_dataset:
        raise ValueError(
            f"{stream}, which shuffle_dataset=True cannot shuffle: leave it out, and pass "
            f"data.shuffle(seed={args.seed}, buffer_size=1000)"
        )
    for name in ("eval_strategy", "save_strategy", "logging_strategy"):
        if getattr(args, name) == "epoch":
            raise ValueError(f"{stream}, which has no epochs: set {name}='steps', got 'epoch'")


def _data_sets(train: Rows | None, evaluation: Rows | Mapping[str, Rows] | None) -> dict[str, Rows]:
    """Return the data sets that there are, by the name of their argument."""
    sets = {"train_dataset": train}
    if isinstance(evaluation, Mapping):
        sets |= {f"eval_dataset[{name!r}]": rows for name, rows in evaluation.items()}
    else:
        sets["eval_dataset"] = evaluation
    return {name: rows for name, rows in sets.items() if rows is not None}


def _check_is_row(name: str, index: int, row: Any) -> None:
    if not isinstance(row, Mapping):
        raise TypeError(f"row {index} of {name} must be a mapping, got {type(row).__name__}: {row!r}")


def check_is_rows(name: str, rows: Any) -> None:
    """Raise a TypeError unless this is a sequence of rows, not one row or a data frame; a ValueError if it is empty."""
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):
        raise TypeError(f"{name} is a data frame; pass its rows: frame.to_dict('records')")
    if isinstance(rows, Mapping) and rows and all(hasattr(split, "column_names") for split in rows.values()):
        raise TypeError(f"{name} has the splits {', '.join(map(repr, rows))}: pass one of them, such as data['train']")
    if is_stream(rows):
        raise TypeError(
            f"{name} is a stream of rows ({type(rows).__name__}), which only train_dataset takes: pass some of them as "
            f"a list, list(data.take(100)), or load the data set without streaming=True"
        )
    if isinstance(rows, Mapping | str) or not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
        raise TypeError(f"{name} must be a sequence of rows, such as a list of dicts, got {type(rows).__name__}")
    if len(rows) == 0:
        raise ValueError(f"{name} has no rows")


def _first_of_each_environment(name: str, rows: Rows, source: EnvironmentSource) -> Iterator[EpisodeSpec]:
    seen: set[str | None] = set()
    for index in range(min(len(rows), ROWS_LOOKED_AT)):
        place, row = f"row {index} of {name}", rows[index]
        _check_is_row(name, index, row)
        try:
            chosen = source.choose(row)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        if chosen not in seen:
            seen.add(chosen)
            yield group_specs(place, row, group_size=1, seed=0)[0]


def _tools_columns(rows: Any) -> Iterable[Mapping[str, Any]]:
    """Return the columns of all rows that concern tools; empty if they take long to read."""
    if isinstance(rows, list | tuple):
        return rows
    if not hasattr(rows, "select_columns") or rows.format["type"] == "custom":  # a function makes its rows
        return ()
    columns = [name for name in ("tools", ENVIRONMENT_COLUMN) if name in rows.column_names]
    return rows.select_columns(columns) if "tools" in columns else ()


async def _check_reset(
    spec: EpisodeSpec,
    environment: Any,
    begin: Callable[..., Any],
    limits: EpisodeLimits,
    rows: Iterable[Mapping[str, Any]] = (),
    name: str | None = None,
) -> int | None:
    """Begin an episode, and raise a short error if it fails; see `first_misfit` for the result."""
    core, misfits = environment.unwrapped, list[int | None]()

    def look(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> None:
        begin(spec, messages, tools)
        misfits.append(first_misfit(core, rows, name))

    failure = await begin_episode(spec, environment, look, limits)
    if failure is not None:
        error = f"{failure.type}: {failure.message}{_where(failure)}"
        raise ValueError(f"{type(core).__name__} cannot begin an episode with {spec.task.id}: {error}")
    return misfits[0] if misfits else None


def _where(failure: Failure) -> str:
    """Return the last place in the traceback that is not in gymnast."""
    packages = ("sandbox", "envs", "records", "trainer", "cluster")
    own = tuple(f"{Path(__file__).parents[2] / package}/" for package in packages)
    places = [line.strip() for line in failure.traceback.splitlines() if line.startswith('  File "')]
    foreign = [place for place in places if not place.removeprefix('File "').startswith(own)]
    return f" ({foreign[-1]})" if foreign else ""


def _warn_of_no_tools(core: Any, rewards: Rewards) -> None:
    """Warn of a `ToolEnv` without tools, replies and reward functions."""
    plain = isinstance(core, ToolEnv) and type(core).reply is ToolEnv.reply and type(core).astep is ToolEnv.astep
    if plain and not core.tools and not rewards.functions:
        warnings.warn(
            f"{type(core).__name__} has no tools and no reply(), and there are no reward_funcs, so no episode can be "
            f"rewarded; mark its methods with @tool",
            stacklevel=6,
        )
