"""Bad options: each is an error or a warning that names the option and the remedy."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from accelerate.utils import ParallelismConfig
from transformers import HfArgumentParser, TrainingArguments

from gymnast.trainer import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from .buttons import ROWS, Buttons, config, model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_generations": 3}, "= 8 episodes.*not a multiple of num_generations=3"),
        ({"generation_batch_size": 12}, "generation_batch_size=12.*= 8"),
        (
            {"steps_per_generation": 3, "generation_batch_size": 16},
            "steps_per_generation=3 and generation_batch_size=16",
        ),
        ({"normalize_advantages": True}, "normalize_advantages=True needs scale_rewards='none', got 'group'"),
        ({"loss_type": "rloo", "beta": 0.1}, "beta=0.1 needs kl_in='reward' or beta=0: loss_type='rloo' has no term"),
        (
            {"advantage_estimator": "reinforce++", "scale_rewards": "batch"},
            r"'reinforce\+\+' needs .*='none', got 'batch'",
        ),
        ({"advantage_estimator": "gae"}, "advantage_estimator must be one of grpo, rloo, max_rl, reinforce.*'gae'"),
        (
            {"advantage_estimator": "max_rl", "overlong_buffer": 8},
            "overlong_buffer=8 needs another estimator: .*max_rl",
        ),
        (
            {"advantage_estimator": "max_rl", "beta": 0.1, "kl_in": "reward"},
            "beta=0.1 needs another estimator: .*max_rl",
        ),
        ({"discount": 0.9}, "discount=0.9 needs credit='turn'"),
        ({"credit": "turn", "discount": 1.1}, r"discount must be in \[0, 1\], got 1.1"),
        ({"credit": "turn", "loss_type": "gspo"}, "credit='turn' needs a ratio for each token, .*'gspo'.*gspo_token"),
        ({"scale_rewards": "sometimes"}, "scale_rewards.*'sometimes'"),
        ({"use_bias_correction_kl": False}, "use_bias_correction_kl=False needs a divergence in the loss, got beta=0"),
        ({"use_bias_correction_kl": False, "beta": 0.1, "kl_in": "reward"}, "in the loss, got beta=0.1 and .*'reward'"),
        ({"overlong_buffer": 4, "overlong_penalty": 0.0}, "overlong_buffer=4 needs a penalty, and overlong_penalty=0"),
        ({"overlong_buffer": 65}, "overlong_buffer=65 needs to be at most max_completion_length=64"),
        ({"overlong_penalty": 2.0}, "overlong_penalty=2.0 needs overlong_buffer"),
        ({"epsilon": 1.5}, r"epsilon must be in \[0, 1\), got 1.5"),
        ({"delta": 1.1}, "delta=1.1 needs to be above 1 .*epsilon_high"),
        ({"delta": float("nan")}, "delta must be positive, got nan"),
        ({"loss_type": "sapo", "epsilon": 0.1}, "'sapo' does not read epsilon, got 0.1: .* use grpo or .*rloo"),
        ({"loss_type": "cispo", "delta": 4.0}, "'cispo' does not read delta, got 4.0"),
        ({"loss_type": "reinforce", "epsilon_high": 0.3}, "'reinforce' does not read epsilon_high, .* cispo"),
        ({"sapo_temperature_pos": 2.0}, "'dapo' does not read sapo_temperature_pos, got 2.0: .* use sapo"),
        (
            {"correction": "tis", "correction_min": 0.5},
            "needs a correction with .* bound: use one of icepop, geometric",
        ),
        ({"loss_type": "reinforce", "num_iterations": 2}, "'reinforce' needs each round in one step.* got 2, and .* 1"),
        ({"num_iterations": 0}, "num_iterations must be at least 1, got 0"),
        ({"max_failure_rate": 2.0}, r"max_failure_rate must be in \[0, 1\], got 2.0"),
        ({"stall_warning": 0.0}, "stall_warning must be positive, got 0.0"),
        ({"on_nonfinite": "ignore"}, "on_nonfinite must be one of skip, stop, got 'ignore'"),
        ({"enable_jit_checkpoint": True}, "enable_jit_checkpoint=True cannot work here: SIGTERM saves a checkpoint"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0"),
        ({"remove_unused_columns": True}, "remove_unused_columns"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"max_steps": 0}, "max_steps must be positive, or -1 .*, got 0"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size must be at least 1, got 0"),
        ({"num_train_epochs": -1}, "num_train_epochs must be positive, got -1"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be at least 0, got -1.0"),
        ({"weight_decay": float("inf")}, "weight_decay must be finite and at least 0, got inf"),
        ({"learning_rate": float("nan")}, "learning_rate must be finite and at least 0, got nan"),
        ({"success_reward": float("nan")}, "success_reward must be finite, got nan"),
        ({"parallelism_config": ParallelismConfig()}, r"(?s)parallelism_config.*FSDP2 and DeepSpeed shard weights"),
        (
            {"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 2}}},
            "num_steps=2 in accelerator_config: write gradient_accumulation_steps=2",
        ),
        ({"fsdp_config": {"min_num_params": 1}}, "fsdp_config=.* has no effect without fsdp=True"),
        ({"kl_in": "both", "beta": 0.1}, "kl_in must be one of loss, reward, got 'both'"),
        ({"kl_in": "reward"}, "kl_in='reward' needs a reference model, and with beta=0 there is none"),
        ({"sync_ref_model": True}, "sync_ref_model=True needs a reference model"),
        ({"ref_model_sync_steps": 2}, "ref_model_sync_steps=2 needs sync_ref_model=True"),
        ({"truncated": {"max_steps": "mask"}}, "truncated has no stop reason 'max_steps'; known are env_truncated"),
        ({"truncated": {"max_turns": "drop"}}, r"truncated\['max_turns'\] must be one of teach, mask, leave, got"),
        ({"top_entropy_quantile": 0.2, "loss_type": "gspo"}, "top_entropy_quantile=0.2 needs a ratio for .*'gspo'"),
        ({"top_entropy_quantile": 0.2, "entropy_coef": 0.1}, "entropy_coef=0.1 needs top_entropy_quantile=1"),
        (
            {"max_refills": 1, "advantage_estimator": "reinforce++", "scale_rewards": "none"},
            "needs max_refills=0: .*learns",
        ),
        (
            {"max_refills": 1, "kl_in": "reward", "beta": 0.1},
            "max_refills=1 needs beta=0 or kl_in='loss': .*divergence",
        ),
        ({"vllm_engine_kwargs": {}}, r"'transformers' does not read vllm_engine_kwargs, got {}: .* use vllm"),
        ({"metric_for_best_model": "loss"}, "metric_for_best_model='loss'.*'reward'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_impossible_options(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_completion_length": 12.5}, "max_completion_length must be of type int, got float: 12.5"),
        ({"per_device_batch_size": 4}, r"'per_device_batch_size' \(it is called per_device_train_batch_size\)"),
        ({"truncated": True}, "truncated must be 'teach', 'mask', 'leave', or a dict such as .*got True"),
        ({"mask_truncated_completions": True}, r"'mask_truncated_completions' \(give truncated='mask'"),
        ({"stop_tool_names": ["submit"]}, r"no 'stop_tool_names' \(.*ToolEnv\(tools, stop_tool_names="),
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
    [
        ("ref_model", "as it was at the start, which sync_ref_model=True moves, or its adapter named 'ref'; another "),
        ("reward_func", "did you mean 'reward_funcs'"),
        ("reward_weights", r"it is an option: args=GRPOConfig\(reward_weights=\.\.\.\)"),
    ],
)
def test_arguments_of_trl(name: str, hint: str, tmp_path: Path) -> None:
    unknown: dict[str, Any] = {name: object()}
    with pytest.raises(TypeError, match=rf"GRPOTrainer has no '{name}' \(.*{hint}"):
        GRPOTrainer(model=model(), environment=Buttons(), **unknown)


def test_arguments_of_trl_without_an_environment() -> None:
    agent: Any = model()
    with pytest.raises(TypeError, match=r"GRPOTrainer has no 'environment_factory' \(pass environment="):
        GRPOTrainer(agent, environment_factory=Buttons)
    with pytest.raises(TypeError, match=r"GRPOTrainer needs environment="):
        GRPOTrainer(agent, train_dataset=ROWS)


def test_a_boolean_scale_rewards_means_the_same_as_in_trl(tmp_path: Path) -> None:
    assert [config(tmp_path, scale_rewards=item).scale_rewards for item in (True, False)] == ["group", "none"]


@pytest.mark.parametrize("scheduler", ["reduce_lr_on_plateau", "greedy"])
def test_a_scheduler_that_follows_a_metric_waits_for_a_higher_reward(scheduler: str, tmp_path: Path) -> None:
    plateau = {"lr_scheduler_type": scheduler, "eval_strategy": "steps", "eval_steps": 1}
    by_default = config(tmp_path, **plateau)
    assert (by_default.metric_for_best_model, by_default.lr_scheduler_kwargs) == ("reward", {"mode": "max"})
    given = config(tmp_path, **plateau, lr_scheduler_kwargs={"mode": "min", "factor": 0.5})
    assert given.lr_scheduler_kwargs == {"mode": "min", "factor": 0.5}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"per_device_eval_batch_size": 3}, ["per_device_eval_batch_size"]),
        ({"dataloader_num_workers": 2, "label_names": ["x"]}, ["dataloader_num_workers", "label_names"]),
        ({"dataloader_in_order": False}, ["dataloader_in_order"]),
        ({"average_tokens_across_devices": False}, ["average_tokens_across_devices"]),
        ({"accelerator_config": {"split_batches": True}}, ["accelerator_config.split_batches"]),
        ({"use_cache": True}, ["use_cache (generation always has the cache"]),
        ({"accelerator_config": {"non_blocking": True}}, ["accelerator_config.non_blocking"]),
        ({"resume_from_checkpoint": "runs/x"}, ["call trainer.train(resume_from_checkpoint=...)"]),
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
    assert not [failure for failure in caught if "no effect" in str(failure.message)]


@pytest.mark.parametrize(
    ("trainer_class", "args"), [(GRPOTrainer, TrainingArguments), (GRPOTrainer, RLOOConfig), (RLOOTrainer, GRPOConfig)]
)
def test_the_configuration_of_another_trainer(trainer_class: Any, args: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=f"args must be a {trainer_class.config_class.__name__}, got {args.__name__}"):
        trainer_class(model=model(), environment=Buttons(), args=args(output_dir=str(tmp_path), use_cpu=True))


SAPO = {"loss_type": "sapo", "sapo_temperature_pos": 2.0, "sapo_temperature_neg": 2.0}
TWICE = {"num_iterations": 2}  # each round is used twice


@pytest.mark.parametrize(
    ("options", "message", "better"),
    [
        ({"loss_type": "gspo", **TWICE}, "'gspo'.*0.2.*its paper uses epsilon=3e-4 and .*=4e-4", {"epsilon": 3e-4}),
        ({"loss_type": "gspo_token", **TWICE}, "'gspo_token'.*0.2.*its paper uses", {"num_iterations": 1}),
        ({"loss_type": "dr_grpo"}, "the other half is scale_rewards='none', got 'group'", {"scale_rewards": "none"}),
        ({"epsilon_high": 0.28}, "^epsilon_high has no effect: each round is used in one step", TWICE),
        ({"epsilon_high": 0.28}, "^epsilon_high has no effect: each round", {"steps_per_generation": 2}),
        (SAPO, "^sapo_temperature_pos, sapo_temperature_neg have no effect", TWICE),
    ],
)
def test_options_that_need_another_warn(options: Any, message: str, better: Any, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=message) as warned:
        GRPOConfig(str(tmp_path), use_cpu=True, **options)
    assert [warning.filename for warning in warned] == [__file__]
    config(tmp_path, **(options | better))  # warnings are errors
