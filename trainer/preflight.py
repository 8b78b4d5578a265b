"""Checks before anything is generated: the model, its tokenizer, and every row of the data."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..envs.core import ConfigurationError, Environment, OverlongPromptError
from ..envs.registry import ENVIRONMENT_COLUMN
from ..envs.rollout import group_specs
from ..envs.tool_env import ToolEnv
from .config import AgentConfig
from .generation import Generator
from .generator_options import warn_of_unread
from .loader import Rows
from .player import Player

ALSO_FOR_TOKENIZERS = ("revision", "trust_remote_code", "token", "cache_dir")
"""Options of `model_init_kwargs` that say where files are and who may run them, so the tokenizer needs them too."""


def load_model(model: str | PreTrainedModel, init_kwargs: Mapping[str, Any] | None = None) -> PreTrainedModel:
    """The model, loaded by its name if need be, in float32 unless `init_kwargs` say otherwise.

    In bfloat16, in which most models are stored, small updates round to nothing; the option `bf16` computes in it.

    Raises:
        TypeError: it is neither a name nor a causal language model.
        ValueError: there are `init_kwargs`, but nothing to load.
    """
    if isinstance(model, str):
        return AutoModelForCausalLM.from_pretrained(model, **{"dtype": torch.float32, **(init_kwargs or {})})
    if init_kwargs:
        raise ValueError(f"model_init_kwargs={init_kwargs} has no effect on a model that is loaded already")
    if not isinstance(model, nn.Module) or not hasattr(model, "generation_config"):
        raise TypeError(f"model must be the name of a causal language model, or such a model, got {model!r}")
    if model.config.is_encoder_decoder:
        raise TypeError(f"model must be a causal language model, got the encoder-decoder {type(model).__name__}")
    return model


def load_tokenizer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, init_kwargs: Mapping[str, Any] | None = None
) -> PreTrainedTokenizerBase:
    """The tokenizer; by default the model's own, from the same place, as `init_kwargs` said for the model.

    Raises:
        TypeError: it is no tokenizer.
        ValueError: none is given, and the model does not say where it came from.
    """
    if tokenizer is not None:
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise TypeError(f"processing_class must be a tokenizer, got {type(tokenizer).__name__}")
        return tokenizer
    name = model.config._name_or_path
    if not name:
        raise ValueError("processing_class is needed: the model was made in memory, so its tokenizer is not known")
    options = {key: value for key, value in (init_kwargs or {}).items() if key in ALSO_FOR_TOKENIZERS}
    return AutoTokenizer.from_pretrained(name, **options)


def check_generator(args: AgentConfig, generator: Generator | None) -> None:
    """Check a generator that was given, and warn of options that only the trainer's own generators read.

    Raises:
        TypeError: it is no `Generator`.
    """
    if generator is None:
        return
    if isinstance(generator, str):
        raise TypeError(
            f"the name of a generator belongs into the configuration: args=GRPOConfig(generator={generator!r})"
        )
    if not isinstance(generator, Generator):
        raise TypeError(
            f"generator must be a gymnast.trainer.Generator, got {type(generator).__name__}; subclass it: it says how "
            f"new weights reach your engine"
        )
    warn_of_unread(args)


class _Recording(dict[str, Any]):
    """A row that notes which of its columns were required."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        super().__init__(row)
        self.required: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.required.add(key)
        return super().__getitem__(key)


def check_data_sets(train: Rows | None, evaluation: Rows | Mapping[str, Rows] | None, player: Player) -> None:
    """Check that the environment can play the rows, and that the model can be told of the result.

    The first row of each environment is really reset and rendered; the columns that this required are then looked for
    in all the other rows. The row with the longest of these columns is reset too, since its prompt may not fit, and
    so is the row that is longest with all its columns, of which some may be read in a way that does not show.

    Raises:
        TypeError: a data set is no sequence of mappings.
        ValueError: there are no rows, a row lacks what is read, a reset fails, or a prompt is too long.
    """
    if train is not None:
        _check_rows("train_dataset", train, player)
    if isinstance(evaluation, Mapping):
        for name, rows in evaluation.items():
            _check_rows(f"eval_dataset[{name!r}]", rows, player)
    elif evaluation is not None:
        _check_rows("eval_dataset", evaluation, player)


def _check_rows(what: str, rows: Rows, player: Player) -> None:
    if isinstance(rows, Mapping | str) or not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
        raise TypeError(f"{what} must be a sequence of rows, such as a list of dicts, got {type(rows).__name__}")
    if len(rows) == 0:
        raise ValueError(f"{what} has no rows")
    required: dict[str | None, set[str]] = {}
    longest: dict[tuple[str | None, str], tuple[int, int]] = {}  # characters and place of each environment's longest
    for index, row in zip(range(len(rows)), rows, strict=False):
        place = f"row {index} of {what}"
        if not isinstance(row, Mapping):
            raise TypeError(f"{place} must be a mapping, got {type(row).__name__}: {row!r}")
        try:
            name = player.engine.source.choose(row)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        if name not in required:
            player.rewards.check_columns(list(row))
            required[name] = _columns_read(place, row, player)
        missing = sorted(required[name] - set(row))
        if missing:
            raise ValueError(f"{place} has no {missing}, which the environment reads; it has {sorted(row)}")
        read = {column: row[column] for column in sorted(required[name])}
        for measure, text in (("read", str(read)), ("whole", str(row))):
            longest[name, measure] = max(longest.get((name, measure), (0, 0)), (len(text), index))
    for index in sorted({index for _, index in longest.values()} - {0}):
        _columns_read(f"row {index} of {what}", rows[index], player)


def _columns_read(place: str, row: Mapping[str, Any], player: Player) -> set[str]:
    """Reset an environment with a row, begin a conversation, and return the columns that the reset required."""
    recording = _Recording(row)
    [spec] = group_specs(place, recording, group_size=1, seed=0)
    environment = player.engine.source.create(spec)
    try:
        messages, _ = environment.reset(seed=spec.task.seed, options={"task": recording})
        core = environment.unwrapped
        tools = core.tool_schemas() if isinstance(core, Environment) else []
        player.engine.policy.begin(spec, messages, tools)
    except ConfigurationError:
        raise
    except OverlongPromptError:
        pass  # its episodes are to be dropped
    except Exception as error:
        what = f"no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        name = type(environment.unwrapped).__name__
        raise ValueError(f"{name} cannot be reset with {place}: {what}; the row has {sorted(row)}") from error
    finally:
        environment.close()
    _warn_of_no_reward(environment.unwrapped, player)
    return recording.required - {ENVIRONMENT_COLUMN}


def _warn_of_no_reward(core: Any, player: Player) -> None:
    """Only tools and replies reward in a `ToolEnv`; without both, and without reward functions, nothing does."""
    plain = isinstance(core, ToolEnv) and type(core).reply is ToolEnv.reply and type(core).astep is ToolEnv.astep
    if plain and not core.tools and not player.rewards.functions:
        warnings.warn(
            f"{type(core).__name__} has no tools and no reply(), and there are no reward_funcs, so no episode can be "
            f"rewarded; mark its methods with @tool",
            stacklevel=5,
        )
