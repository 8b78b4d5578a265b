"""Every option of `transformers.TrainingArguments`, in one of three lists: read, without effect, or an error.

A test fails when transformers has an option that is in none of them.
"""

from __future__ import annotations

from .fields import AT_LEAST_0, AT_LEAST_1, POSITIVE, WEIGHT, Range

_READ = """
    per_device_train_batch_size gradient_accumulation_steps num_train_epochs max_steps learning_rate lr_scheduler_type
    lr_scheduler_kwargs warmup_steps max_grad_norm optim optim_args optim_target_modules weight_decay adam_beta1
    adam_beta2 adam_epsilon
    bf16 fp16 tf32 gradient_checkpointing gradient_checkpointing_kwargs torch_compile torch_compile_backend
    torch_compile_mode torch_empty_cache_steps use_liger_kernel liger_kernel_config use_cpu accelerator_config
    full_determinism
    logging_strategy logging_steps logging_first_step log_on_each_node log_level log_level_replica disable_tqdm
    include_num_input_tokens_seen skip_memory_metrics report_to run_name project debug trackio_space_id
    trackio_bucket_id trackio_static_space_id
    eval_strategy eval_steps eval_delay eval_on_start output_dir save_strategy save_steps save_total_limit
    save_only_model save_on_each_node load_best_model_at_end metric_for_best_model greater_is_better
    restore_callback_states_from_checkpoint push_to_hub hub_token hub_private_repo hub_model_id hub_strategy
    hub_always_push hub_revision
    ddp_backend ddp_timeout ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph fsdp
    fsdp_config deepspeed
    seed data_seed remove_unused_columns
"""
READ = frozenset(_READ.split())
"""Options that work as transformers documents them; `transformers.Trainer` reads most of them."""

RANGES: dict[str, Range] = {
    **dict.fromkeys(("per_device_train_batch_size", "gradient_accumulation_steps", "save_total_limit"), AT_LEAST_1),
    **dict.fromkeys(("max_grad_norm", "eval_delay", "seed", "data_seed"), AT_LEAST_0),
    **dict.fromkeys(("num_train_epochs", "eval_steps", "save_steps"), POSITIVE),
    "weight_decay": WEIGHT,
    "max_steps": Range("positive, or -1 (num_train_epochs decides)", lambda n: n == -1 or n > 0),
}
"""The ranges of options for which transformers accepts senseless values, or fails later."""

_NO_LABELS = "there are no labels and no predictions"
_SCRIPT = "transformers leaves it to your own script, and so does gymnast"
_OF_LOADERS = """
    dataloader_drop_last dataloader_num_workers dataloader_prefetch_factor dataloader_in_order
    dataloader_persistent_workers dataloader_multiprocessing_context dataloader_pin_memory train_sampling_strategy
    length_column_name"""
_OF_LABELS = """
    label_names label_smoothing_factor prediction_loss_only include_for_metrics eval_accumulation_steps
    eval_do_concat_batches eval_use_gather_object batch_eval_metrics"""

WITHOUT_EFFECT = {
    **dict.fromkeys(_OF_LOADERS.split(), "episodes are played by the engine, not by a data loader"),
    **dict.fromkeys(_OF_LABELS.split(), _NO_LABELS),
    "logging_nan_inf_filter": "a step whose loss is not finite is skipped, and is in no mean (`on_nonfinite`)",
    "per_device_eval_batch_size": "evaluation plays all its episodes at once, max_concurrency of them at a time",
    "use_cache": "generation always has the cache, and training never",
    "average_tokens_across_devices": "a loss always counts the tokens of all processes",
    "do_train": f"{_SCRIPT}: call trainer.train()",
    "do_eval": f"{_SCRIPT}: eval_strategy decides when training evaluates",
    "do_predict": _NO_LABELS,
    "resume_from_checkpoint": f"{_SCRIPT}: call trainer.train(resume_from_checkpoint=...)",
    "local_rank": "the launcher's environment variables decide",
}
"""Options without effect, each with the reason; setting one is a warning."""

LOADER_OPTIONS = ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking")
"""Options inside `accelerator_config` that concern data loaders; setting one is a warning, too."""

_SHARDING = "FSDP2 and DeepSpeed shard weights here: fsdp, deepspeed, or `accelerate launch` with examples/accelerate"

REFUSED = {
    "auto_find_batch_size": "a smaller batch would split groups",
    "bf16_full_eval": "evaluation plays episodes with the weights in training; use bf16=True",
    "fp16_full_eval": "evaluation plays episodes with the weights in training; use fp16=True",
    "neftune_noise_alpha": "with noise in its embeddings the model differs from the one that sampled",
    "enable_jit_checkpoint": "SIGTERM saves a checkpoint in any case, as Ctrl-C does",
    "ignore_data_skip": "resuming never replays batches to skip them: it continues with the next batch at once",
    "parallelism_config": _SHARDING,
}
"""Options that would break training, each with the reason; setting one is an error."""
