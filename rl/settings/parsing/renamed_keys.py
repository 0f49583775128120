"""Names of settings in earlier versions and in other trainers, with their keys here."""

from __future__ import annotations

from collections.abc import Collection, Mapping

RENAMED: dict[str, str] = {
    f"algo.{old}": f"algo.{new}"
    for old, new in {
        **{
            key: f"advantage.{key}"
            for key in (
                "baseline",
                "std",
                "gamma",
                "gamma_turn",
                "turn_weight",
                "lam",
                "lam_alpha",
                "whiten_rewards",
                "token_coef",
            )
        },
        "vine_rollouts": "advantage.rollouts",
        **{
            key: f"surrogate.{key}"
            for key in ("clip_low", "clip_high", "dual_clip", "tau", "loss_coef")
        },
        "correction_low": "correction.low",
        "correction_high": "correction.high",
        "drop_divergence": "correction.drop_divergence",
        "kl_coef": "kl.coef",
        "kl_estimator": "kl.estimator",
        "kl_ratio": "kl.ratio",
        "kl_place": "kl.place",
        "kl_target": "kl.target",
        "kl_horizon": "kl.horizon",
        "ref_every": "kl.ref_every",
        "token_beta": "token_rewards.beta",
        "token_lr_ratio": "token_rewards.lr_ratio",
        "value_coef": "value.coef",
        "value_clip": "value.clip",
        "critic": "value.critic",
        # The name of a group is no longer a key.
        "correction": "correction.kind",
        "token_rewards": "token_rewards.kind",
    }.items()
}
"""New keys by old key. If a user gives an old key, the error names the new key."""

_ELSEWHERE = {
    "model": (
        "model_name_or_path model_name model_path model.path policy.model.path base_model "
        "pretrain pretrained_model_name_or_path model_id"
    ),
    "group_size|episodes": (
        "num_generations rollout.n rollout_n n_samples_per_prompt rollouts_per_example "
        "num_return_sequences rollouts_per_prompt samples_per_prompt num_samples_per_task"
    ),
    "prompts|batch_size": (
        "batch_size train_batch_size per_device_train_batch_size gen_batch_size "
        "generation_batch_size rollout_batch_size prompts_per_step num_prompts"
    ),
    "steps": (
        "max_steps num_train_epochs total_epochs trainer.epochs total_training_steps num_steps "
        "training_steps train_steps total_steps total_timesteps total_episodes num_episodes "
        "max_epochs num_epochs n_epochs epoch"
    ),
    "algo.epochs|steps": "num_iterations ppo_epochs update_epochs_per_batch num_ppo_epochs epochs",
    "algo.minibatches": (
        "ppo_mini_batch_size mini_batch_size policy_mini_batch_size num_mini_batches "
        "critic_mini_batch_size num_minibatches"
    ),
    "micro_batch_tokens": (
        "gradient_accumulation_steps ppo_micro_batch_size micro_batch_size "
        "ppo_micro_batch_size_per_gpu micro_batch_size_per_gpu ppo_max_token_len_per_gpu "
        "log_prob_micro_batch_size_per_gpu log_prob_max_token_len_per_gpu "
        "log_prob_micro_batch_size forward_max_token_len_per_gpu forward_micro_batch_size_per_gpu "
        "micro_train_batch_size micro_train_batch_size_per_gpu micro_forward_batch_size_per_gpu "
        "micro_rollout_batch_size max_token_len_per_gpu accumulation_steps grad_accum"
    ),
    "packing": (
        "use_remove_padding padding_free use_dynamic_bsz log_prob_use_dynamic_bsz "
        "use_sample_packing sample_packing packing_strategy packing_samples use_prefix_grouper"
    ),
    "optimizer.lr": "learning_rate lr actor_lr actor_learning_rate actor.optim.lr optim.lr",
    "optimizer.critic_lr": (
        "critic_lr critic.optim.lr critic_learning_rate critic.optimizer_config.lr"
    ),
    "optimizer.warmup_steps": (
        "lr_warmup_steps num_warmup_steps warmup_ratio lr_warmup_steps_ratio lr_warmup_ratio warmup"
    ),
    "optimizer.decay_steps": (
        "lr_scheduler_type lr_scheduler scheduler lr_decay warmup_style min_lr_ratio "
        "lr_scheduler_kwargs lr_schedule"
    ),
    "optimizer.max_grad_norm": (
        "grad_clip clip_grad max_norm gradient_clipping gradient_clip_val clip_grad_norm "
        "max_gradient_norm"
    ),
    "optimizer.betas": "adam_beta1 adam_beta2 adam_betas beta1 beta2",
    "optimizer.state_bits": "optim adam8bit use_8bit_adam optimizer_impl",
    "algo.kl.coef": (
        "beta kl_coef kl_loss_coef init_kl_coef kl_beta kl_ctrl.kl_coef use_kl_loss kl "
        "kl_penalty_coef kl_weight kl_loss_weight kl_ctl"
    ),
    "algo.kl.place": "use_kl_in_reward",
    "algo.kl.estimator": "kl_penalty kl_loss_type kl_estimator kl_estimator_type",
    "algo.kl.target": "target_kl kl_target kl_ctrl.type",
    "algo.kl.horizon": "kl_horizon kl_ctrl.horizon",
    "algo.kl.ref_every": (
        "sync_ref_model ref_model_sync_steps ref_model_mixup_alpha ref_update_steps"
    ),
    "algo.surrogate.clip_low": "epsilon_low clip_ratio_low eps_clip_low clip_eps_low",
    "algo.surrogate.clip_high": "epsilon_high clip_ratio_high eps_clip_high clip_eps_high",
    "algo.surrogate.dual_clip": "delta clip_ratio_c",
    "algo.value.clip": "cliprange_value value_clip clip_range_vf",
    "algo.value.coef": "vf_coef value_loss_coef vf_coeff",
    "algo.entropy_coef": (
        "entropy_coeff ent_coef entropy_loss_coef entropy_beta entropy_coefficient"
    ),
    "algo.advantage.gamma|algo=ppo algo.advantage.gamma": "gamma discount discount_factor",
    "algo.advantage.lam|algo=ppo algo.advantage.lam": "lam lambda gae_lambda gae_lam lmbda lambd",
    "algo.advantage.std": (
        "scale_rewards norm_adv_by_std_in_grpo grpo_norm_by_std normalize_advantage std_norm"
    ),
    "algo": "algorithm adv_estimator advantage_estimator algorithm.name algo.name rl_algorithm",
    "algo.surrogate": "loss_mode policy_loss_type policy_loss surrogate",
    "algo.surrogate=gspo": "importance_sampling_level",
    "algo.aggregation": "loss_type loss_agg_mode loss_reduction loss_aggregation",
    "algo.mask_truncated": (
        "mask_truncated_completions zero_truncated_completions apply_overlong_filtering "
        "overlong_filter"
    ),
    "algo.correction.kind": (
        "vllm_importance_sampling_correction vllm_importance_sampling_mode rollout_is use_tis tis "
        "use_rollout_importance_sampling"
    ),
    "algo.correction.high": (
        "vllm_importance_sampling_cap vllm_importance_sampling_clip_max rollout_is_threshold "
        "tis_imp_ratio_cap"
    ),
    "algo.correction.low": "vllm_importance_sampling_clip_min",
    "replay_routing": "enable_rollout_routing_replay router_replay.mode",
    "sampling.max_tokens": (
        "max_new_tokens max_completion_length response_length max_response_length "
        "max_generate_length generate_max_len max_gen_len max_output_tokens max_tokens_per_turn "
        "max_completion_tokens completion_length"
    ),
    "eval.temperature": (
        "val_kwargs.temperature val_temperature eval_temperature eval_sampling_params.temperature"
    ),
    "eval.top_p": "val_kwargs.top_p eval_sampling_params.top_p",
    "eval.top_k": "val_kwargs.top_k eval_sampling_params.top_k",
    "sampling.temperature": "temp rollout.temperature sampling_params.temperature",
    "sampling.slots": (
        "max_num_seqs max_concurrent max_concurrency num_envs n_envs per_device_eval_batch_size"
    ),
    "context_length": (
        "max_prompt_length max_model_len vllm_max_model_length max_length max_seq_length "
        "max_seq_len prompt_max_len prompt_length seq_len max_model_length max_input_length "
        "max_len model_max_length"
    ),
    "env.max_turns": (
        "max_tool_calling_iterations max_assistant_turns max_user_turns max_num_turns num_turns "
        "max_episode_steps"
    ),
    "data|env.tasks": (
        "dataset_name dataset train_dataset train_files train_data dataset_path data_path "
        "prompt_data train_file data_files data.path data"
    ),
    "env.columns": "prompt_key input_key reward_fn_key dataset_text_field",
    "env.tools": "tools tool_config_path",
    "env": "environment env_name env_id env_class environment_id task_name env.name env.id",
    "env.seed": "data_seed data.seed",
    "eval.every": (
        "eval_steps test_freq eval_interval eval_strategy eval_every val_check_interval "
        "evaluation_strategy eval_freq evaluate_every"
    ),
    "eval.tasks": (
        "val_batch_size eval_batch_size val_max_samples num_eval_episodes num_eval_samples"
    ),
    "eval.test_tasks": "val_before_train eval_on_start eval_before_train test_size",
    "save_every": (
        "save_steps save_freq save_interval ckpt_interval save_strategy checkpoint_every "
        "checkpoint_interval checkpoint_freq"
    ),
    "resume": (
        "resume_from_checkpoint resume_mode resume_path resume_from_path resume_from "
        "load_checkpoint"
    ),
    "out": (
        "output_dir default_local_dir ckpt_path save_path run_dir save_dir checkpoint_dir "
        "logging_dir output output_path"
    ),
    "log.name": "run_name experiment_name exp_name wandb_run_name wandb_name",
    "log.project": "project_name project wandb_project",
    "log": "report_to logger log_to log_with tracker loggers reporters",
    "log=wandb": "wandb use_wandb wandb_mode",
    "log=tensorboard": "tensorboard use_tensorboard",
    "log=mlflow": "mlflow use_mlflow",
    "log=trackio": "trackio",
    "log.episodes": "log_completions log_val_generations num_completions_to_print",
    "dtype": (
        "bf16 fp16 precision torch_dtype mixed_precision model_dtype fsdp_config.dtype "
        "rollout.dtype half"
    ),
    "device": "no_cuda cuda gpu",
    "device=cpu": "use_cpu cpu",
    "memory.activation_checkpointing": (
        "gradient_checkpointing enable_gradient_checkpointing gradient_checkpointing_enable "
        "enable_activation_offload gradient_checkpointing_kwargs activation_checkpointing_kwargs "
        "activation_offloading"
    ),
    "memory.offload_scorers": "param_offload cpu_offload ref_offload offload",
    "learner.ranks": (
        "n_gpus_per_node num_gpus nproc_per_node world_size nnodes fsdp fsdp_config fsdp_size "
        "num_processes deepspeed actor.strategy zero_stage tensor_parallel_size n_gpus gpus "
        "policy_num_gpus_per_node ulysses_sequence_parallel_size strategy"
    ),
    "lora.rank": "lora_rank lora_r peft_config use_peft use_lora lora.r peft",
    "lora.alpha": "lora_alpha",
    "lora.targets": "target_modules lora_target_modules lora_targets lora.target_modules",
    "lora.base_bits": "load_in_4bit load_in_8bit use_qlora qlora quantization",
    "staleness": (
        "steps_per_generation max_async_level max_staleness_steps async_steps "
        "max_off_policy_steps off_policy_steps max_staleness"
    ),
    "curriculum.order": "shuffle shuffle_dataset data.shuffle sampler shuffle_data",
    "curriculum.max_draws": (
        "filter_groups filter_groups.enable dynamic_sampling max_num_gen_batches "
        "dynamic_sampling.type"
    ),
    "policy": "policy.kind policy.name policy.type engine rollout_engine",
    "policy=vllm-server": (
        "use_vllm vllm vllm_mode rollout.name inference_engine generator.backend rollout.mode"
    ),
    "policy=vllm-server policy.url": (
        "vllm_server_base_url vllm_server_host vllm_server_port vllm_url server_url base_url"
    ),
    "policy=vllm-server policy.start_s": "vllm_server_timeout",
    "policy=vllm-server policy.gpu_memory": "gpu_memory_utilization vllm_gpu_memory_utilization",
    "policy=vllm-server policy.replicas": (
        "num_inference_engines vllm_num_engines rollout.data_parallel_size"
    ),
    "policy=vllm-server policy.arguments": (
        "tensor_model_parallel_size vllm_tensor_parallel_size engine_kwargs.vllm enforce_eager "
        "max_num_batched_tokens enable_prefix_caching enable_chunked_prefill vllm_model_impl "
        "inference_engine_tensor_parallel_size"
    ),
    "policy=vllm-engine policy.sleep=true": "vllm_enable_sleep_mode free_cache_engine",
    "chat.template": "chat_template chat_template_path custom_chat_template",
    "chat.template_kwargs": "chat_template_kwargs apply_chat_template_kwargs",
    "shaping": (
        "reward_weights reward_model.model.path reward_model_path reward_model_name_or_path "
        "reward_model.enable overlong_buffer reward_pretrain"
    ),
    "deterministic=true": "full_determinism",
    "collectors": "num_workers agent.num_workers num_rollout_workers",
    "curriculum.pool": "train_max_samples max_train_samples",
    "max_seconds": "max_time time_limit",
    # Settings that our own commands name differently.
    "batch_size": "prompts",
    "group_size": "episodes",
    "episodes": "group_size",
    "tasks": "eval.tasks",
    "test_tasks|tasks": "eval.test_tasks",
    "eval.test_tasks|tasks": "test_tasks",
}
"""Our keys, with the names of the same settings elsewhere: other commands, TRL 1.16 (GRPOConfig,
SFTConfig, DPOConfig), verl (ppo_trainer.yaml), SkyRL, OpenRLHF, verifiers, Stable-Baselines3. Of
keys with "|" between them, the first that the command has is meant."""
_ABSENT = {
    "the environment computes the reward: write it in the environment, or add to it with shaping": (
        "reward_funcs reward_function reward_fn reward_func custom_reward_function "
        "custom_reward_function.path custom_reward_function.name reward_manager reward_kwargs "
        "compute_score remote_rm_url"
    ),
    "the environment selects the tasks of each split: see docs/data.md": (
        "val_files eval_dataset val_data eval_data data.val_data test_files dataset_config "
        "dataset_kwargs validation_data"
    ),
    "every step is logged, in metrics.jsonl": (
        "logging_steps log_interval logging_strategy log_every logging_first_step log_freq"
    ),
    "every episode is kept, in trajectories/": (
        "rollout_data_dir validation_data_dir dump_eval_results"
    ),
    "the newest checkpoints and the best one are kept": (
        "save_total_limit load_best_model_at_end max_actor_ckpt_to_keep max_critic_ckpt_to_keep "
        "max_ckpt_num max_ckpts_to_keep metric_for_best_model greater_is_better save_only_model"
    ),
    "upload a run's model with python -m rl.push": (
        "push_to_hub hub_model_id hub_token hub_strategy hub_private_repo hub_revision "
        "hub_always_push"
    ),
    "the learner computes the probabilities of what was sampled, and knows temperature, "
    "top_p and top_k only": (
        "min_p repetition_penalty presence_penalty frequency_penalty generation_kwargs do_sample "
        "length_penalty no_repeat_ngram_size num_beams ignore_eos"
    ),
    "the reference is the initial model": (
        "ref_model ref_model_path ref.model.path reference_model ref_pretrain"
    ),
    "the optimizer is AdamW with its usual epsilon": (
        "adam_epsilon adam_eps optim_args optimizer_name override_optimizer_config optim.optimizer"
    ),
    "it has no counterpart here": (
        "do_train do_eval do_predict debug eval_delay data_parallel parallelism_config label_names "
        "eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics "
        "batch_eval_metrics prediction_loss_only optim_target_modules ignore_data_skip "
        "restore_callback_states_from_checkpoint enable_jit_checkpoint save_on_each_node "
        "train_sampling_strategy length_column_name average_tokens_across_devices "
        "logging_nan_inf_filter include_num_input_tokens_seen multi_objective_aggregation "
        "use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target "
        "off_policy_mask_threshold ds3_gather_for_generation "
        "trust_remote_code torch_compile use_torch_compile tf32 disable_dropout lora_dropout "
        "neftune_noise_alpha label_smoothing label_smoothing_factor remove_unused_columns "
        "group_by_length ddp_backend ddp_timeout ddp_find_unused_parameters local_rank "
        "dataloader_num_workers dataloader_pin_memory dataloader_drop_last disable_tqdm "
        "use_liger_kernel use_liger liger_kernel_config use_fused_kernels attn_implementation "
        "flash_attn use_flash_attention_2 auto_find_batch_size model_init_kwargs use_cache "
        "top_entropy_quantile router_aux_loss_coef cast_lm_head_to_fp32 pad_to_multiple_of "
        "optimizer_offload critic_warmup balance_batch filter_overlong_prompts truncation "
        "truncation_mode log_level skip_memory_metrics accelerator_config use_bias_correction_kl "
        "num_generations_eval cache_implementation f_divergence_type precompute_ref_log_probs "
        "completion_only_loss assistant_only_loss eos_token pad_token nccl_timeout hybrid_engine"
    ),
}
"""Sentences, with the names elsewhere that have no key here."""
_OTHER_GROUPS = ("actor_rollout_ref", "critic", "algorithm", "trainer", "reward_model", "generator")
"""Groups of settings of verl and SkyRL."""
_OTHER_PREFIXES = (
    *("dataloader_", "ddp_", "trackio_", "vespo_", "sapo_", "torch_", "hub_", "fp16_", "bf16_"),
    *("vllm_", "transformers_", "use_transformers_", "fsdp_", "deepspeed_", "sglang_"),
)
"""Starts of names that only other trainers have."""


def _by_name(table: Mapping[str, str]) -> dict[str, str]:
    return {name: ours for ours, names in table.items() for name in names.split()}


ELSEWHERE, ABSENT = _by_name(_ELSEWHERE), _by_name(_ABSENT)


def counterpart(name: str, known: Collection[str]) -> str:
    """The first of a name's counterparts that the command has, or ""."""
    return next(
        (
            words
            for words in ELSEWHERE.get(name, "").split("|")
            if words.partition(" ")[0].partition("=")[0] in known
        ),
        "",
    )


def elsewhere(name: str, known: Collection[str]) -> str:
    """What another trainer's name is here: "Did you mean ...?", a sentence, or "" if unknown.

    Args:
        name: the name, with or without the groups that it is in: ``rollout.n``.
        known: the keys of the command.
    """
    parts = name.split(".")
    # An environment's own options may have such names.
    starts = range(1 if parts[0] == "env" else len(parts))
    for tail in (".".join(parts[start:]) for start in starts):
        if tail in ABSENT:
            return f"{ABSENT[tail][0].upper()}{ABSENT[tail][1:]}."
        if words := counterpart(tail, known):
            return f"Did you mean {words!r}?"
        if tail in ELSEWHERE:
            return "This command has no counterpart." if tail not in known else ""
    of_others = parts[0] in _OTHER_GROUPS if parts[1:] else name.startswith(_OTHER_PREFIXES)
    if of_others and parts[-1] not in {key.rpartition(".")[2] for key in known}:
        return "It has no counterpart here."
    return ""
