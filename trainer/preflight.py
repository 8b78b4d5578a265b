"""Checks before anything is generated: the model, its tokenizer, and every row of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..envs.core import ConfigurationError, Environment
from ..envs.registry import ENVIRONMENT_COLUMN, EnvironmentSource
from ..envs.rewards import Rewards
from ..envs.rollout import group_specs
from .token_policy import TokenPolicy


def load_model(model: str | PreTrainedModel) -> PreTrainedModel:
    """The model, loaded by its name if need be.

    Raises:
        TypeError: it is neither a name nor a model.
    """
    if isinstance(model, str):
        return AutoModelForCausalLM.from_pretrained(model)
    if not hasattr(model, "generation_config"):
        raise TypeError(f"model must be the name of a causal language model, or such a model, got {model!r}")
    return model


def load_tokenizer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> PreTrainedTokenizerBase:
    """The tokenizer, the model's own by default.

    Raises:
        ValueError: none is given, and the model does not say where it came from.
    """
    if tokenizer is not None:
        return tokenizer
    name = model.config._name_or_path
    if not name:
        raise ValueError("processing_class is needed: the model was made in memory, so its tokenizer is not known")
    return AutoTokenizer.from_pretrained(name)


class _Recording(dict[str, Any]):
    """A row that notes which of its columns were required."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        super().__init__(row)
        self.required: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.required.add(key)
        return super().__getitem__(key)


def check_rows(
    rows: Sequence[Mapping[str, Any]], source: EnvironmentSource, policy: TokenPolicy, rewards: Rewards
) -> None:
    """Check that the environment can play the rows, and that the model can be told of the result.

    The first row of each environment is really reset and rendered; the columns that this read are then looked for in
    all the other rows.

    Raises:
        ValueError: there are no rows, a row lacks what is read, or a reset fails.
    """
    try:
        count = len(rows)
    except TypeError:
        raise TypeError(f"a data set must be a sequence of rows with a length, got {type(rows).__name__}") from None
    if count == 0:
        raise ValueError("the data set has no rows")
    required: dict[str | None, set[str]] = {}
    for index in range(count):
        row = rows[index]
        if not isinstance(row, Mapping):
            raise TypeError(f"row {index} of the data set must be a mapping, got {type(row).__name__}: {row!r}")
        try:
            name = source.choose(row)
        except ValueError as error:
            raise ValueError(f"row {index} of the data set: {error}") from None
        if name not in required:
            rewards.check_columns(list(row))
            required[name] = _columns_read(index, row, source, policy)
        missing = sorted(required[name] - set(row))
        if missing:
            raise ValueError(
                f"row {index} of the data set has no {missing}, which the environment reads; it has {sorted(row)}"
            )


def _columns_read(index: int, row: Mapping[str, Any], source: EnvironmentSource, policy: TokenPolicy) -> set[str]:
    recording = _Recording(row)
    [spec] = group_specs(f"row-{index}", recording, group_size=1, seed=0)
    environment = source.create(spec)
    try:
        messages, _ = environment.reset(seed=spec.task.seed, options={"task": recording})
        core = environment.unwrapped
        policy.begin(spec, messages, core.tool_schemas() if isinstance(core, Environment) else [])
    except ConfigurationError:
        raise
    except Exception as error:
        what = f"no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{environment.unwrapped.__class__.__name__} cannot be reset with row {index} of the data set: {what}; "
            f"the row has {sorted(row)}"
        ) from error
    finally:
        environment.close()
    return recording.required - {ENVIRONMENT_COLUMN}
