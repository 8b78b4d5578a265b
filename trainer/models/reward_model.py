"""RewardModel: a classifier with one output, as a reward function."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerBase
from transformers.integrations import is_deepspeed_zero3_enabled

from ...envs.core import ConfigurationError, Message
from ...envs.rewards import RewardFunction

RewardLike = RewardFunction | nn.Module | str
"""A reward function, a reward model, or the name of one."""

_TRIAL: list[Message] = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


class RewardModel:
    """Gives each conversation the one number of a sequence classifier, its reward.

    The classifier reads the prompt and the completion as its own chat template writes them, without tool schemas. All
    episodes of a call are one batch, which changes no reward. Calls run one after the other, so that no more than one
    group is in memory. A conversation of two messages is tried at once.

    Args:
        model: A model with a classification head of one number, or its name.
        tokenizer: Its tokenizer, with a chat template; by default the one that lies beside the model.
        device: Where it computes. A model that was dispatched with a `device_map` stays where it is.

    Raises:
        TypeError: the model or the tokenizer is of the wrong kind.
        ValueError: there is no such model, it does not give one number, or its tokenizer or chat template is missing.
    """

    def __init__(
        self,
        model: str | nn.Module,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        self.model: Any = _load(model) if isinstance(model, str) else model
        _check_head(self.model)
        place = str(self.model.config._name_or_path)
        self.__name__ = Path(place).name or type(self.model).__name__
        self.tokenizer = _tokenizer(tokenizer, place, self.__name__)
        if not hasattr(self.model, "hf_device_map"):
            self.model.to(device)
        self.model.eval()
        self._turn = threading.Lock()
        self([_TRIAL[:1]], [_TRIAL[1:]])

    def __call__(self, prompts: Sequence[list[Message]], completions: Sequence[list[Message]]) -> list[float]:
        """Return the reward of each conversation."""
        texts = [self._text([*prompt, *answers]) for prompt, answers in zip(prompts, completions, strict=True)]
        with self._turn, torch.inference_mode():
            rows = [torch.tensor(row) for row in self.tokenizer(texts, add_special_tokens=False)["input_ids"]]
            self._check_length(max(map(len, rows)))
            mask_BL = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).to(self.model.device)
            with self._pad_id(rows) as pad_id:
                ids_BL = pad_sequence(rows, batch_first=True, padding_value=pad_id).to(self.model.device)
                logits_B1 = self.model(input_ids=ids_BL, attention_mask=mask_BL).logits
        if logits_B1.shape != (len(texts), 1):
            raise ValueError(
                f"{self.__name__} gives logits of shape {tuple(logits_B1.shape)} for {len(texts)} conversations; a "
                f"reward model gives one number for each"
            )
        return logits_B1[:, 0].float().tolist()

    def _text(self, conversation: list[Any]) -> Any:
        try:
            return self.tokenizer.apply_chat_template(conversation, tokenize=False)
        except Exception as error:  # the template's own code may raise anything
            roles = [message["role"] for message in conversation]
            raise ConfigurationError(
                f"the chat template of the reward model {self.__name__} cannot render messages of roles {roles}: "
                f"{error}. Give a tokenizer with another template in reward_processing_classes"
            ) from error

    @contextmanager
    def _pad_id(self, rows: Sequence[torch.Tensor]) -> Iterator[int]:
        """Lend the id of padding: the head reads the last token that has another id, or a single row's last token."""
        config = self.model.config.get_text_config()
        own, last = config.pad_token_id, {int(row[-1]) for row in rows}
        config.pad_token_id = next(token for token in count() if token not in last) if own is None else own
        try:
            yield config.pad_token_id
        finally:
            config.pad_token_id = own

    def _check_length(self, length: int) -> None:
        most = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if most is not None and length > most:
            raise ValueError(f"an episode has {length} tokens, and the context of {self.__name__} is {most} tokens")


def _load(name: str) -> nn.Module:
    """Load a classifier with the weights of its head: transformers would make up a head that is missing."""
    if is_deepspeed_zero3_enabled():
        raise ValueError(
            f"reward_funcs: ZeRO-3 would shard the reward model {name!r} as it is loaded: load it before you make the "
            f"configuration, and give the model instead of its name"
        )
    try:
        with _in_each_process():
            loaded: Any = AutoModelForSequenceClassification.from_pretrained(name, output_loading_info=True)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(
            f"reward_funcs: {name!r} is the name of no reward model: {reason}. Give the name of a sequence classifier, "
            f"a folder that holds one, or a function"
        ) from error
    model, info = loaded
    if info["missing_keys"]:
        raise ValueError(
            f"reward_funcs: {name!r} is no reward model: it lacks {sorted(info['missing_keys'])}, the weights of a "
            f"classification head"
        )
    return model


@contextmanager
def _in_each_process() -> Iterator[None]:
    """Let each process read the weights, even where FSDP makes the first one read the policy's for all."""
    before = os.environ.pop("FSDP_CPU_RAM_EFFICIENT_LOADING", None)
    try:
        yield
    finally:
        if before is not None:
            os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = before


def _check_head(model: nn.Module) -> None:
    if not hasattr(model, "num_labels"):  # as every classifier of transformers has
        raise TypeError(
            f"reward_funcs: a reward model must be a sequence classifier with one label, got {type(model).__name__}, "
            f"which has no classification head"
        )
    if model.num_labels != 1:
        raise ValueError(
            f"reward_funcs: a reward model gives one number, and {type(model).__name__} gives {model.num_labels}: load "
            f"one that was trained with num_labels=1, or write a function that makes one number of them"
        )


def _tokenizer(given: PreTrainedTokenizerBase | None, place: str, name: str) -> PreTrainedTokenizerBase:
    if given is None and not place:
        raise ValueError(
            f"reward_processing_classes is needed: the reward model {name} was made in memory, so its tokenizer is not "
            f"known"
        )
    tokenizer: Any = AutoTokenizer.from_pretrained(place) if given is None else given
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise TypeError(f"the tokenizer of the reward model {name} must be a tokenizer, got {type(tokenizer).__name__}")
    if not tokenizer.chat_template:
        raise ValueError(
            f"the tokenizer of the reward model {name} has no chat template: give one that has in "
            f"reward_processing_classes, the template with which the model was trained"
        )
    return tokenizer


def as_reward_functions(functions: Any, processing_classes: Any, device: torch.device) -> list[Any]:
    """Return reward functions, with a `RewardModel` in the place of each model and each name of one.

    `functions` are one or several. `processing_classes` has a tokenizer for each, None for functions; a tokenizer alone
    belongs to the only model.

    Raises:
        TypeError, ValueError: a model cannot give rewards, or a tokenizer belongs to no model.
    """
    listed = list(functions) if isinstance(functions, list | tuple) else [functions]
    models = [isinstance(function, str | nn.Module) for function in listed]
    is_list = isinstance(processing_classes, list | tuple)
    tokenizers = processing_classes if is_list else [processing_classes if is_model else None for is_model in models]
    if len(tokenizers) != len(listed):
        raise ValueError(
            f"got {len(listed)} reward_funcs and {len(tokenizers)} reward_processing_classes; give one for each, None "
            f"for a function"
        )
    if processing_classes is not None and not is_list and sum(models) != 1:
        raise ValueError(
            f"reward_processing_classes is one tokenizer, and reward_funcs has {sum(models)} reward models; give a list"
        )
    made = []
    for function, is_model, tokenizer in zip(listed, models, tokenizers, strict=True):
        if tokenizer is not None and not is_model:
            raise ValueError(f"reward_processing_classes has a tokenizer for {function!r}, which is not a model")
        made.append(RewardModel(function, tokenizer, device=device) if is_model else function)
    return made
