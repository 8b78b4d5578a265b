"""Mistakes of a user: each is an error that names the value and the remedy, before anything is generated."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import pandas
import pytest
import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertModel,
    HfArgumentParser,
    T5Config,
    T5ForConditionalGeneration,
    TrainerCallback,
    TrainingArguments,
)

from gymnast.envs import ConfigurationError, Message, ToolEnv, tool
from gymnast.trainer import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer, RolloutError
from gymnast.trainer.option_checks import REFUSED, WITHOUT_EFFECT
from gymnast.trainer.startup_checks import load_tokenizer

from .buttons import ROWS, Buttons, ScriptedGenerator, call_ids, config, make_trainer, model, tokenizer


def _refuse(request: Any) -> list[int]:
    raise AssertionError("something was generated")


@pytest.fixture
def silent() -> Any:
    """A generator that must not be asked; checked at the end."""
    generator = ScriptedGenerator(_refuse)
    yield generator
    assert generator.requests == []


# Environments.


@pytest.mark.parametrize(
    "wrong", [42, object(), {}, [Buttons], {"a": 42}], ids=["int", "object", "empty", "list", "dict"]
)
def test_an_environment_of_the_wrong_kind(wrong: Any, silent: Any, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=r"environment must be an Environment.*got|empty dict"):
        make_trainer(tmp_path, environment=wrong, generator=silent)


def test_an_unknown_id(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(gymnasium.error.NameNotFound, match=r"Calculater.*Calculator"):
        make_trainer(tmp_path, environment="gymnast/Calculater-v0", generator=silent)


def test_a_factory_of_the_wrong_kind(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"factory returned dict, not a gymnasium\.Env"):
        make_trainer(tmp_path, environment=lambda: {"no": "environment"}, generator=silent)


def no_hints(a) -> str:  # type: ignore[no-untyped-def]
    """Do it.

    Args:
        a: A thing.
    """
    return str(a)


def no_entry(a: int) -> str:
    """Do it."""
    return str(a)


def no_docstring(a: int) -> str:
    return str(a)


@pytest.mark.parametrize(
    ("tools", "error", "message"),
    [
        ([no_hints], TypeError, "'no_hints'.*'a'"),
        ([no_entry], ValueError, "'no_entry'.*'a'"),
        ([no_docstring], ValueError, "'no_docstring'"),
        ([tool(name="same")(lambda: "x"), tool(name="same")(lambda: "y")], ValueError, "same"),
    ],
)
def test_a_tool_that_cannot_be_told_of(
    tools: Any, error: type[Exception], message: str, silent: Any, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        make_trainer(tmp_path, environment=lambda: ToolEnv(tools=tools), rows=[{"prompt": "?"}], generator=silent)


def look() -> str:
    """Look again."""
    return "two are lit"


class Twice(Buttons):
    def __init__(self) -> None:
        super().__init__(tools=[look])


def test_two_tools_of_one_name(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two tools named 'look'"):
        make_trainer(tmp_path, environment=Twice, generator=silent)


# Rows.


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"bad": 1}],
            r"row 0 of train_dataset: MissingColumnError: no 'good'; the row has \['bad'\] \(File .*reset_task\)$",
        ),
        ([], "train_dataset has no rows"),
        ([{"good": "left"}, 5], "row 1 of train_dataset must be a mapping, got int"),
        ({"good": ["left"]}, "train_dataset must be a sequence of rows.*got dict"),
        (iter([{"good": "left"}]), "train_dataset must be a sequence of rows.*got list_iterator"),
        ("left", "train_dataset must be a sequence of rows.*got str"),
    ],
)
def test_rows_without_what_the_environment_needs(rows: Any, message: str, silent: Any, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make_trainer(tmp_path, rows=rows, generator=silent)


def test_rows_of_another_kind(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"train_dataset is a data frame; pass its rows: frame.to_dict\('records'\)"):
        make_trainer(tmp_path, rows=pandas.DataFrame(ROWS), generator=silent)
    trainer = make_trainer(tmp_path, generator=silent)
    with pytest.raises(TypeError, match="rows must be a sequence of rows, such as a list of dicts, got dict"):
        trainer.rollout(ROWS[0])  # type: ignore[arg-type]


def test_a_million_rows_are_not_read_before_training(silent: Any, tmp_path: Path) -> None:
    class Million(Sequence[dict[str, Any]]):
        read = 0

        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, index: Any) -> Any:
            self.read += 1
            return ROWS[index % 4]

    rows = Million()
    make_trainer(tmp_path, rows=rows, generator=silent)
    assert rows.read <= 101  # the first row twice


def test_a_reset_that_fails_is_told_in_one_line(silent: Any, tmp_path: Path) -> None:
    class Down(Buttons):
        def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
            try:
                raise OSError("no route to host")
            except OSError as error:
                raise ConnectionError("the database is down") from error

    message = r"Down cannot begin an episode with row 0.*Error: the database is down \(File .*reset_task\)$"
    with pytest.raises(ValueError, match=message) as caught:
        make_trainer(tmp_path, environment=Down, generator=silent)
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_evaluation_rows_are_checked_too(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"row 0 of eval_dataset\['second'\]"):
        make_trainer(tmp_path, eval_rows={"first": ROWS, "second": [{"bad": 1}]}, generator=silent)


def test_a_row_without_its_environment(silent: Any, tmp_path: Path) -> None:
    rows = [{"environment": "buttons", "good": "left"}, {"environment": "button", "good": "left"}]
    with pytest.raises(ValueError, match=r"row 1 of train_dataset.*'buttons'.*got 'button'"):
        make_trainer(tmp_path, environment={"buttons": Buttons}, rows=rows, generator=silent)


def test_a_row_without_a_prompt(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no 'prompt'.*question"):
        make_trainer(tmp_path, environment=ToolEnv(), rows=[{"question": "?"}], generator=silent)


# Configuration.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_generations": 1}, "num_generations must be at least 2.*, got 1"),
        ({"num_generations": 3}, "= 8 episodes.*no multiple of num_generations=3"),
        ({"generation_batch_size": 12}, "generation_batch_size=12.*= 8"),
        ({"loss_type": "gpro"}, "loss_type must be one of grpo, bnpo, dr_grpo, dapo, .*, got 'gpro'"),
        ({"steps_per_generation": 2, "generation_batch_size": 16}, "steps_per_generation and generation_batch_size"),
        ({"normalize_advantages": True}, "normalize_advantages=True and scale_rewards='group'"),
        ({"loss_type": "rloo", "beta": 0.1}, "loss_type='rloo'.*beta=0"),
        ({"scale_rewards": "sometimes"}, "scale_rewards.*'sometimes'"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"beta": -1.0}, "beta.*-1"),
        ({"epsilon": 1.5}, r"epsilon must be in \[0, 1\), got 1.5"),
        ({"delta": 1.1}, "delta.*above 1 .*1.1"),
        ({"sapo_temperature_neg": 0.0}, "sapo_temperature_neg must be positive, got 0.0"),
        ({"loss_type": "reinforce", "num_iterations": 2}, "reinforce.*no ratio.*num_iterations=1"),
        ({"max_tokens_per_batch": 0}, "max_tokens_per_batch must be at least 1, got 0"),
        ({"num_iterations": 0}, "num_iterations must be at least 1, got 0"),
        ({"steps_per_generation": 0}, "steps_per_generation must be at least 1, got 0"),
        ({"num_generations_eval": 0}, "num_generations_eval must be at least 1, got 0"),
        ({"max_failure_rate": 2.0}, r"max_failure_rate must be in \[0, 1\], got 2.0"),
        ({"on_failure": "ignore"}, r"on_failure must be 'drop', 'retry\(n\)'.*'ignore'"),
        ({"overlong_prompts": "cut"}, "overlong_prompts must be one of fail, drop, raise, got 'cut'"),
        ({"max_completion_length": 0}, "max_completion_length must be at least 1, got 0"),
        ({"max_turns": 0}, "max_turns must be positive or None, got 0"),
        ({"max_concurrency": 0}, "max_concurrency.*0"),
        ({"top_p": 0.0}, "top_p.*0"),
        ({"remove_unused_columns": True}, "remove_unused_columns"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha"),
        ({"max_steps": 0}, "max_steps must be positive"),
        ({"log_episodes_steps": -1}, "log_episodes_steps must be at least 0, got -1"),
        ({"fsdp": "full_shard"}, "sharded weights are not supported yet"),
        ({"ignore_data_skip": True}, "ignore_data_skip.*skips no batch"),
        ({"bf16_full_eval": True}, "bf16_full_eval.*bf16=True"),
        ({"metric_for_best_model": "loss"}, "metric_for_best_model='loss'.*'reward'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_that_cannot_be(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_completion_length": 12.5}, "max_completion_length must be of type int, got float: 12.5"),
        ({"num_generations": "8"}, "num_generations must be of type int, got str: '8'"),
        ({"num_generation": 8}, r"GRPOConfig has no 'num_generation' \(did you mean 'num_generations'\?\)"),
        ({"per_device_batch_size": 4}, r"'per_device_batch_size' \(it is called per_device_train_batch_size\)"),
        ({"batch_size": 4}, r"'batch_size' \(it is called per_device_train_batch_size\)"),
        ({"max_new_tokens": 4}, r"'max_new_tokens' \(it is called max_completion_length\)"),
        ({"use_vllm": True}, r"GRPOConfig has no 'use_vllm' \(.*generator='vllm'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_names_and_types_of_options(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match=message):
            config(tmp_path, **options)
        HfArgumentParser(GRPOConfig)  # type: ignore[arg-type]  # it changes the fields of the dataclass


@pytest.mark.parametrize(
    ("name", "hint"),
    [("peft_config", "get_peft_model"), ("tools", "environment="), ("reward_func", "did you mean 'reward_funcs'")],
)
def test_arguments_of_trl(name: str, hint: str, tmp_path: Path) -> None:
    unknown: dict[str, Any] = {name: object()}
    with pytest.raises(TypeError, match=rf"GRPOTrainer has no '{name}' \(.*{hint}"):
        GRPOTrainer(model=model(), environment=Buttons(), **unknown)


def test_arguments_of_trl_without_an_environment() -> None:
    agent: Any = model()
    with pytest.raises(TypeError, match=r"GRPOTrainer has no 'environment_factory' \(pass environment="):
        GRPOTrainer(agent, environment_factory=Buttons)
    with pytest.raises(TypeError, match=r"'enviroment' \(did you mean 'environment'\?\)"):
        GRPOTrainer(agent, enviroment=Buttons())
    with pytest.raises(TypeError, match=r"GRPOTrainer needs environment="):
        GRPOTrainer(agent, train_dataset=ROWS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"environment": 3}, "got 3"),
        ({"train_dataset": ["What is 1 + 1?"]}, "row 0 of train_dataset must be a mapping, got str"),
        ({"eval_dataset": {"hard": []}}, r"eval_dataset\['hard'\] has no rows"),
    ],
)
def test_environment_and_data_are_checked_before_the_model_is_loaded(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    given = {"environment": Buttons(), "args": config(tmp_path), **arguments}
    with pytest.raises((TypeError, ValueError), match=message):
        GRPOTrainer("no/such-model", **given)


def test_a_boolean_scale_is_that_of_trl(tmp_path: Path) -> None:
    assert [config(tmp_path, scale_rewards=each).scale_rewards for each in (True, False)] == ["group", "none"]


def test_the_plateau_of_a_reward_is_a_maximum(tmp_path: Path) -> None:
    plateau = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 1}
    assert config(tmp_path, **plateau).lr_scheduler_kwargs == {"mode": "max"}
    given = config(tmp_path, **plateau, lr_scheduler_kwargs={"mode": "min", "factor": 0.5})
    assert given.lr_scheduler_kwargs == {"mode": "min", "factor": 0.5}


READ_OPTIONS = """
output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs
warmup_steps warmup_ratio optim optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules
gradient_accumulation_steps max_grad_norm bf16 fp16 tf32 gradient_checkpointing gradient_checkpointing_kwargs
torch_compile torch_compile_backend torch_compile_mode use_liger_kernel liger_kernel_config torch_empty_cache_steps
logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen
log_level log_level_replica disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id
trackio_static_space_id eval_strategy eval_steps eval_delay eval_on_start save_only_model save_strategy save_steps
save_on_each_node save_total_limit enable_jit_checkpoint push_to_hub hub_token hub_private_repo hub_model_id
hub_strategy hub_always_push hub_revision load_best_model_at_end metric_for_best_model greater_is_better
restore_callback_states_from_checkpoint full_determinism seed data_seed use_cpu accelerator_config
remove_unused_columns ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend
ddp_timeout fsdp_config debug skip_memory_metrics do_train do_eval resume_from_checkpoint local_rank logging_dir
"""


def test_every_option_of_transformers_is_read_or_warned_of_or_refused() -> None:
    """A new option of transformers fails this test until its meaning here is decided."""
    options = {each.name for each in dataclasses.fields(TrainingArguments)}
    assert options - set(READ_OPTIONS.split()) - WITHOUT_EFFECT - set(REFUSED) == set()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"per_device_eval_batch_size": 3}, ["per_device_eval_batch_size"]),
        ({"dataloader_num_workers": 2, "label_names": ["x"]}, ["dataloader_num_workers", "label_names"]),
        ({"dataloader_pin_memory": False}, ["dataloader_pin_memory"]),
        ({"average_tokens_across_devices": False}, ["average_tokens_across_devices"]),
        ({"accelerator_config": {"split_batches": True}}, ["accelerator_config.split_batches"]),
        ({"use_cache": True}, ["use_cache"]),
    ],
)
def test_options_without_effect_are_named(options: dict[str, Any], names: list[str], tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no effect in GRPOConfig") as caught:
        config(tmp_path, **options)
    assert all(name in str(caught[0].message) for name in names)


@pytest.mark.parametrize("config_class", [GRPOConfig, RLOOConfig])
def test_the_defaults_do_not_warn(config_class: Any, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config_class(output_dir=str(tmp_path), use_cpu=True)
    assert not [each for each in caught if "no effect" in str(each.message)]


@pytest.mark.parametrize(
    ("trainer_class", "args"),
    [(GRPOTrainer, TrainingArguments), (GRPOTrainer, RLOOConfig), (RLOOTrainer, GRPOConfig)],
)
def test_the_configuration_of_another(trainer_class: Any, args: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=f"args must be a {trainer_class.config_class.__name__}, got {args.__name__}"):
        trainer_class(model=model(), environment=Buttons(), args=args(output_dir=str(tmp_path), use_cpu=True))


# Models and tokenizers.


def trainer_with(folder: Path, generator: Any, *, agent: Any = None, words: Any = None) -> GRPOTrainer:
    return GRPOTrainer(
        model=agent or model(),
        environment=Buttons(),
        args=config(folder),
        train_dataset=ROWS,
        processing_class=words,
        generator=generator,
    )


def with_template(template: str | None) -> Any:
    words = copy.deepcopy(tokenizer())
    words.chat_template = template
    return words


PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_tokenizer_without_chat_template(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no chat template"):
        trainer_with(tmp_path, silent, words=with_template(None))


def test_an_argument_that_the_template_never_reads(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"the chat template has no 'add_generation_promt' \(did you mean"):
        make_trainer(tmp_path, generator=silent, chat_template_kwargs={"add_generation_promt": True})


def test_a_tokenizer_without_tools(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"\['look', 'left', 'right'\].*does not render tools"):
        trainer_with(tmp_path, silent, words=with_template(PLAIN))


def test_no_tokenizer(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="processing_class is needed"):
        trainer_with(tmp_path, silent)
    with pytest.raises(TypeError, match="processing_class must be a tokenizer, got str"):
        trainer_with(tmp_path, silent, words="Qwen/Qwen3-0.6B")


SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 32}


@pytest.mark.parametrize(
    "wrong",
    [
        torch.nn.Linear(2, 2),
        BertModel(BertConfig(vocab_size=8, **SMALL)),
        T5ForConditionalGeneration(T5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=1)),
        7,
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_model_of_the_wrong_kind(wrong: Any, silent: Any, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=r"model.*got|cannot be used as is for training"):
        trainer_with(tmp_path, silent, agent=wrong, words=tokenizer())


def test_options_for_loading_a_loaded_model(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model_init_kwargs"):
        make_trainer(tmp_path, generator=silent, model_init_kwargs={"dtype": "bfloat16"})


def test_the_tokenizer_comes_from_where_the_model_does(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def from_pretrained(name: str, **options: Any) -> Any:
        asked.append((name, options))
        return tokenizer()

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", from_pretrained)
    agent = model()
    agent.config._name_or_path = "some/model"
    places = {"revision": "v2", "trust_remote_code": True, "token": "secret", "cache_dir": "models"}
    assert load_tokenizer(agent, None, {**places, "dtype": "bfloat16"}) is tokenizer()
    assert asked == [("some/model", places)]


def test_an_option_of_the_own_generator_beside_another(silent: Any, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="generation_rows: no effect, because a generator was given"):
        make_trainer(tmp_path, generator=silent, generation_rows=7)


# Prompts.


def ones(completions: list[Any]) -> list[float]:
    return [1.0] * len(completions)


LONG = [{"prompt": "short"}, {"prompt": "long " * 200}]


@pytest.mark.parametrize("option", ["fail", "raise"])
def test_a_long_prompt_in_the_first_row_is_an_error(option: str, silent: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"environment": ToolEnv(), "reward_funcs": ones, "max_model_len": 100}
    with pytest.raises(ValueError, match=r"row 0 of train_dataset.*max_model_len=100.*overlong_prompts='drop'"):
        make_trainer(tmp_path, rows=LONG[1:], generator=silent, overlong_prompts=option, **options)


def test_a_long_prompt_fails_its_episode(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    generator = ScriptedGenerator(lambda request: call_ids("left"))
    options: dict[str, Any] = {"environment": ToolEnv(), "reward_funcs": ones, "max_model_len": 100}
    trainer = make_trainer(tmp_path, rows=LONG, generator=generator, **options)
    trainer.train()
    [logs] = [logs for logs in trainer.state.log_history if "loss" in logs]
    assert (logs["episodes/failed"], logs["prompts/overlong"], logs["groups/dropped"]) == (4, 0, 1)
    assert "4 of 8 episodes failed: 4 x policy: LongPromptError (the prompt of task 'train-1' has" in caplog.text


def test_a_long_prompt_can_stop_the_run_before_anything_is_sampled(silent: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"environment": ToolEnv(), "reward_funcs": ones, "max_model_len": 100}
    rows = [LONG[0], *LONG[1:] * 9]
    trainer = make_trainer(tmp_path, rows=rows, generator=silent, seed=1, overlong_prompts="raise", **options)
    with pytest.raises(ConfigurationError, match=r"task 'train-\d'.*max_model_len=100.*overlong_prompts='drop'"):
        trainer.train()


def test_a_long_prompt_is_dropped_and_counted(tmp_path: Path) -> None:
    class Talks(ToolEnv):
        def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
            return [{"role": "user", "content": task["prompt"]}]

    generator = ScriptedGenerator(lambda request: call_ids("left"))
    trainer = make_trainer(
        tmp_path,
        environment=Talks(),
        reward_funcs=ones,
        rows=[LONG[1], LONG[0]],
        max_model_len=100,
        overlong_prompts="drop",
        generator=generator,
    )
    trainer.train()
    [logs] = [logs for logs in trainer.state.log_history if "loss" in logs]
    assert logs["prompts/overlong"] == 4
    assert logs["episodes/played"] == 8
    assert logs["episodes/failed"] == 0
    assert logs["stop/context_overflow"] >= 0.5
    assert logs["groups/dropped"] == 1
    assert logs["turns/mean"] >= 1
    assert logs["completions/min_length"] > 0
    assert all(len(request.prompt_ids) < 100 for request in generator.requests)


def test_rounds_of_long_prompts_stop_training(silent: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_model_len": 100, "overlong_prompts": "drop"}
    trainer = make_trainer(
        tmp_path, environment=ToolEnv(), reward_funcs=ones, rows=[LONG[1]], generator=silent, max_steps=5, **options
    )
    with pytest.raises(RolloutError, match=r"last 3 rounds.*8 of 8 episodes had a prompt longer.*max_model_len"):
        trainer.train()


# Reward functions.


def takes_nothing() -> list[float]:
    return []


def takes_unknown(completions: Any, solution: Any) -> list[float]:
    return []


def fine(completions: Any) -> list[float]:
    return [0.0] * len(completions)


@pytest.mark.parametrize(
    ("functions", "options", "message"),
    [
        ([takes_nothing], {}, "'takes_nothing' takes none of"),
        ([takes_unknown], {}, r"'takes_unknown' requires \['solution'\]"),
        ([fine, fine], {}, "distinct names"),
        ([fine], {"reward_weights": [1.0, 2.0]}, "1 reward functions and 2 reward_weights"),
        ([], {"reward_weights": [1.0]}, "0 reward functions and 1 reward_weights"),
        (["fine"], {}, "callable"),
    ],
)
def test_reward_functions_of_the_wrong_shape(
    functions: Any, options: Any, message: str, silent: Any, tmp_path: Path
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make_trainer(tmp_path, reward_funcs=functions, generator=silent, **options)


@pytest.mark.parametrize(
    ("returned", "message"),
    [([1.0], "returned 1 rewards for 4 episodes"), ([float("nan")] * 4, "returned nan for episode 0 of 4")],
)
def test_reward_functions_that_return_nonsense(returned: list[float], message: str, tmp_path: Path) -> None:
    def nonsense(completions: Any) -> list[float]:
        return returned

    with pytest.raises(RolloutError, match=f"reward function 'nonsense': {message}"):
        make_trainer(tmp_path, reward_funcs=nonsense, max_steps=5).train()


# During training.


class Breaks(Buttons):
    """Breaks in the step of some episodes; the row says in which share of them."""

    made = 0

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        messages = super().reset_task(task)
        Breaks.made += 1
        self.breaks = self.np_random is not None and Breaks.made % task["of"] < task["broken"]
        return messages

    async def astep(self, action: Message) -> Any:
        if self.breaks:
            raise OSError("the button came off")
        return await super().astep(action)


def breaking(folder: Path, broken: int, of: int = 4, **options: Any) -> Any:
    Breaks.made = -1  # the row check makes one
    generator = ScriptedGenerator(lambda request: call_ids("left" if request.seed % 2 else "right"))
    rows = [{"good": "left", "broken": broken, "of": of}]
    return make_trainer(folder, environment=Breaks, rows=rows, generator=generator, **options)


def test_too_many_failures_stop_training(tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match=r"last (3|10) rounds.*6 of 8 episodes failed") as caught:
        breaking(tmp_path, 3, max_steps=12).train()
    assert "OSError: the button came off" in str(caught.value)
    assert "in astep" in str(caught.value)


class Picky(ToolEnv):
    """Fails for rows that say so, and rewards nothing itself."""

    gives_rewards = False

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        self.good = task["good"]
        return [{"role": "user", "content": "Press." + " word" * task.get("words", 0)}]

    @tool(final=True)
    def left(self) -> str:
        """Press the left button."""
        return "done"

    async def astep(self, action: Message) -> Any:
        if self.good == "broken":
            raise OSError("the button came off")
        return await super().astep(action)


BAD_ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "always fails": ({"good": "broken"}, {}),
    "no reward": ({"good": "left", "scored": False}, {}),
    "overlong": ({"good": "left", "words": 200}, {"max_model_len": 100}),
    "overlong and dropped": ({"good": "left", "words": 200}, {"overlong_prompts": "drop", "max_model_len": 100}),
    "no column": ({"bad": "left"}, {}),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_one_bad_row_never_ends_a_run(case: str, tmp_path: Path) -> None:
    """With the smallest batch a round is one group, so a bad row leaves its round without any."""

    def pressed(episodes: Any, scored: Any = None, **columns: Any) -> list[float | None]:
        scored = scored or [None] * len(episodes)
        return [
            None if each is False else float(episode.spec.member)
            for each, episode in zip(scored, episodes, strict=True)
        ]

    row, options = BAD_ROWS[case]
    trainer = make_trainer(
        tmp_path,
        environment=Picky,
        rows=[ROWS[0], ROWS[1], row],
        reward_funcs=pressed,
        generator=ScriptedGenerator(lambda request: call_ids("left")),
        per_device_train_batch_size=4,
        max_steps=6,
        shuffle_dataset=False,
        **options,
    )
    trainer.train()
    logs = [each for each in trainer.state.log_history if "loss" in each]
    assert [each["rounds/skipped"] for each in logs] == [0, 0, 1, 0, 0, 1]
    assert logs[0]["grad_norm"] > 0
    assert logs[2]["grad_norm"] == 0


def test_a_checkpoint_is_saved_before_an_error_ends_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(completions: Any) -> list[float]:
        if trainer.state.global_step == 2:
            raise RuntimeError("the judge is gone")
        return [1.0] * len(completions)

    trainer = make_trainer(tmp_path, reward_funcs=broken, on_failure="raise", max_steps=3)
    with pytest.raises(RuntimeError, match="the judge is gone"):
        trainer.train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]
    assert "train(resume_from_checkpoint=" in caplog.text


def test_an_error_is_raised_also_if_no_checkpoint_can_be_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(completions: Any) -> list[float]:
        if trainer.state.global_step == 1:
            (tmp_path / "checkpoint-1").write_text("a file where the folder belongs")
            raise RuntimeError("the judge is gone")
        return [1.0] * len(completions)

    trainer = make_trainer(tmp_path, reward_funcs=broken, on_failure="raise", max_steps=3)
    with pytest.raises(RuntimeError, match="the judge is gone"):
        trainer.train()
    assert "no checkpoint could be saved before the error below" in caplog.text


def test_a_step_without_episodes_leaves_the_weights_alone(tmp_path: Path) -> None:
    """Momentum and weight decay would move them."""
    seen: list[dict[str, Any]] = []

    class Sees(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append({name: value.detach().clone() for name, value in kwargs["model"].named_parameters()})

    def broken_later(completions: Any) -> list[float]:
        if trainer.state.global_step:
            raise RuntimeError("the judge is gone")
        return [float(index % 2) for index in range(len(completions))]

    options: dict[str, Any] = {"weight_decay": 0.1, "max_failure_rate": 1.0, "callbacks": [Sees()]}
    trainer = make_trainer(tmp_path, reward_funcs=broken_later, max_steps=2, **options)
    trainer.train()
    first, second = seen
    assert all(value.equal(second[name]) for name, value in first.items())


def test_few_failures_are_dropped_and_counted(tmp_path: Path) -> None:
    trainer = breaking(tmp_path, 1)
    trainer.train()
    logs = trainer.state.log_history[0]
    assert logs["episodes/failed"] == 2
    assert logs["stop/failed"] == 0.25
    assert logs["groups/dropped"] == 0


def test_failures_can_count_as_zero(tmp_path: Path) -> None:
    trainer = breaking(tmp_path, 1, on_failure="zero", reward_funcs=[fine])
    trainer.train()
    logs = trainer.state.log_history[0]
    assert logs["episodes/failed"] == 2
    assert logs["reward"] <= 6 / 8


def test_failures_can_be_tried_again(tmp_path: Path) -> None:
    trainer = breaking(tmp_path, 1, on_failure="retry(3)")
    trainer.train()
    assert trainer.state.log_history[0]["episodes/failed"] == 0
    assert trainer.state.log_history[0]["episodes/retried"] == 2


def test_failures_can_stop_at_once(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the button came off"):
        breaking(tmp_path, 1, on_failure="raise").train()


def test_a_generator_that_crashes(tmp_path: Path) -> None:
    def crash(request: Any) -> list[int]:
        raise ConnectionError("the engine is gone")

    with pytest.raises(RolloutError, match="8 of 8 episodes failed") as caught:
        make_trainer(tmp_path, generator=ScriptedGenerator(crash), max_steps=5).train()
    assert "ConnectionError: the engine is gone" in str(caught.value)


def test_an_evaluation_that_fails(tmp_path: Path) -> None:
    trainer = breaking(tmp_path, 3)
    with pytest.raises(RolloutError, match="6 of 8 episodes failed"):
        trainer.evaluate([{"good": "left", "broken": 3, "of": 4}] * 2)
    with pytest.raises(ValueError, match="needs an eval_dataset"):
        trainer.evaluate()


def test_training_needs_tasks(silent: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="train_dataset"):
        make_trainer(tmp_path, rows=None, generator=silent).train()


def test_an_environment_in_which_nothing_can_reward_warns(tmp_path: Path) -> None:
    class Forgotten(ToolEnv):
        def lookup(self, word: str) -> str:  # no @tool
            return word

    with pytest.warns(UserWarning, match=r"Forgotten has no tools and no reply\(\).*mark its methods with @tool"):
        make_trainer(tmp_path, environment=Forgotten(), rows=[{"prompt": "Hi."}])
    # With a reward function, plain answers can be rewarded.
    make_trainer(
        tmp_path,
        environment=Forgotten(),
        rows=[{"prompt": "Hi."}],
        reward_funcs=lambda completions: [1.0] * len(completions),
    )


def test_half_of_dr_grpo_is_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="half of its paper: the other half is scale_rewards='none', got 'group'"):
        config(tmp_path, loss_type="dr_grpo")
    config(tmp_path, loss_type="dr_grpo", scale_rewards="none")
