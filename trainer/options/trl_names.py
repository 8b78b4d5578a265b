"""TRL_NAMES: options and arguments that TRL has and gymnast lacks, each with the advice for people who come from TRL.

A test compares the table with TRL's signatures, and docs/from_trl.md shows it.
"""

from __future__ import annotations

_ADVICE = {
    # The model.
    "trust_remote_code": "give model_init_kwargs={'trust_remote_code': True}",
    "quantization_config": "give model_init_kwargs={'quantization_config': ...}",
    "disable_dropout": "set the rates to 0 in the model's config; a warning names those that are not",
    "cast_lm_head_to_fp32": "log-probabilities are computed in float32 anyway, and the head in the model's precision",
    "router_aux_loss_coef": "the load-balancing loss of a mixture of experts is not added",
    "ds3_gather_for_generation": "weights that ZeRO-3 shards are not sampled from: generator='vllm-server'",
    # Environments, rewards and data.
    "environment_factory tools rollout_func": "pass environment=..., a class with @tool methods",
    "max_tool_calling_iterations": "give max_turns, or max_tool_calls",
    "max_prompt_length": "prompts are never cut: give max_model_len, and overlong_prompts='drop'",
    "reward_clip_range": "clip in the environment or in the reward function",
    "multi_objective_aggregation": "rewards are added up with reward_weights, then normalised by scale_rewards",
    "compute_metrics": "environments report metrics in self.metrics, and reward_funcs see whole episodes",
    "data_collator": "there is nothing to collate: episodes become batches here",
    "pad_to_multiple_of": "rows of similar length share a batch, and are padded to its longest",
    # Sampling and generation.
    "use_vllm vllm_mode": "choose with generator='vllm' (in this process) or generator='vllm-server'",
    "vllm_server_base_url vllm_server_host vllm_server_port": "give vllm_server_urls=['http://host:port']",
    "vllm_tensor_parallel_size": "give generator='vllm-server', and --tensor-parallel-size to the servers",
    "vllm_max_model_length": "it is called max_model_len",
    "vllm_model_impl": "give vllm_engine_kwargs={'model_impl': ...}, or --model-impl to the servers",
    "vllm_structured_outputs_regex repetition_penalty": "samples would come from another distribution than the one "
    "that is trained",
    "generation_kwargs": "give temperature, top_p, top_k and min_p",
    "cache_implementation": "the generator has its own cache",
    "use_transformers_continuous_batching use_transformers_paged transformers_continuous_batching_config": "the "
    "generator batches requests itself; generation_rows limits a batch",
    # The objective.
    "importance_sampling_level": "it follows from loss_type: 'gspo' and 'rloo' have one ratio for each sequence",
    "vllm_importance_sampling_correction": "give correction=..., one of trainer.CORRECTIONS; 'none' switches it off",
    "vllm_importance_sampling_mode": "give correction=..., one of trainer.CORRECTIONS",
    "vllm_importance_sampling_clip_max vllm_importance_sampling_cap": "it is called correction_max",
    "vllm_importance_sampling_clip_min": "it is called correction_min",
    "off_policy_mask_threshold": "correction='geometric_mask' leaves out sequences that are too far from the policy",
    "mask_truncated_completions": "give truncated='mask', or a treatment for each stop reason",
    "scale_advantages": "it is called scale_rewards",
    "use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target": "entropy_coef stays "
    "the same during training",
    "vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg": "gymnast has no VESPO; loss_type is one of "
    "trainer.LOSSES",
    # Records.
    "log_completions log_completions_hub_repo log_unique_prompts log_multimodal num_completions_to_print": "give "
    "log_episodes_steps=n: whole episodes go to episodes.jsonl",
    # Names that people try, though TRL has dropped them or never had them.
    "stop_tool_names": "an option of the environment: ToolEnv(tools, stop_tool_names=[...]); or mark your own tools "
    "with @tool(final=True)",
    "ref_model": "the reference is the model as it was at the start, which sync_ref_model=True moves, or its adapter "
    "named 'ref'; another model cannot be given yet",
    "tokenizer": "it is called processing_class",
    "config": "it is called args",
    "batch_size per_device_batch_size": "it is called per_device_train_batch_size",
    "max_tokens max_new_tokens": "it is called max_completion_length",
    "lr": "it is called learning_rate",
}

TRL_NAMES = {name: advice for names, advice in _ADVICE.items() for name in names.split()}
"""The advice that the error for an unknown name gives."""
