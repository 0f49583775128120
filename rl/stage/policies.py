"""Opens the policy that a run is configured for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agents.local import Limits, LocalPolicy
from agents.policy import Policy
from agents.vllm import Member, Prober, ServerConfig, Timeouts, VLLMServerPolicy, WeightFolders
from agents.vllm.arguments import split_words
from rl.config import RunConfig
from rl.learner.model import score_tokens
from rl.settings.policy import VLLMServerConfig

TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-4}
"""Largest difference of a log-probability between server and learner, in nats, by weights' type."""
COARSE_TOLERANCE = 0.25
"""For types with few digits, whose kernels round in their own ways."""


async def open_policy(
    config: RunConfig,
    path: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    logs: Path | None,
    own_weights: bool,
    say: Callable[[str], None],
    stack: AsyncExitStack,
) -> Policy:
    """The configured policy, sampling from the weights of ``model``; ``stack`` closes it.

    Args:
        config: the run's.
        path: where the model was loaded from.
        model: the learner's.
        tokenizer: its tokenizer.
        logs: a folder for what servers say; None: they say it to nobody.
        own_weights: whether the policy must not share the model's.
        say: tells the user.
        stack: closes it in the end.

    Raises:
        PolicyFailure: a server cannot be started or reached, or does not take the weights.
        ValueError: a setting is wrong.
    """
    settings = config.policy.settings
    if isinstance(settings, VLLMServerConfig):
        return await _open_servers(config, settings, path, model, logs, say, stack)
    policy = LocalPolicy(
        copy.deepcopy(model) if own_weights else model,
        tokenizer,
        max_slots=config.sampling.slots,
        # An episode's own deadline comes first.
        limits=Limits(
            num_threads=config.threads,
            completion_s=config.episode_timeout_s,
            wave_s=config.episode_timeout_s,
        ),
        seed=config.seed,
        deterministic=config.deterministic,
        shares_weights=not own_weights,
    )
    stack.push_async_callback(policy.close)
    return policy


async def _open_servers(
    config: RunConfig,
    settings: VLLMServerConfig,
    path: str,
    model: PreTrainedModel,
    logs: Path | None,
    say: Callable[[str], None],
    stack: AsyncExitStack,
) -> VLLMServerPolicy:
    prober = Prober(
        lambda token_ids, temperature: score_tokens(model, token_ids, temperature),
        model.get_output_embeddings().out_features,
        temperature=config.sampling.temperature,
        tolerance=settings.tolerance or TOLERANCES.get(model.dtype, COARSE_TOLERANCE),
        seed=config.seed,
    )
    window: int = model.config.max_position_embeddings
    window = config.context_length or window
    member = partial(Member, prober, start_s=settings.start_s, load_s=settings.load_s)
    if settings.urls:
        members = [member(url=url) for url in settings.urls]
    else:
        arguments = split_words(settings.arguments)
        members = [
            member(
                config=ServerConfig(
                    model=path,
                    context_window=window,
                    dtype=str(model.dtype).removeprefix("torch."),
                    cpu=model.device.type == "cpu",
                    max_num_seqs=config.sampling.slots,
                    python=settings.python,
                    arguments=arguments,
                    log=logs / f"vllm-{number}.log" if logs is not None else None,
                ),
            )
            for number in range(settings.replicas)
        ]
        say(f"starting vLLM, {settings.replicas} server(s)")
    folders = WeightFolders(Path(settings.weights) if settings.weights else None)
    policy = VLLMServerPolicy(
        members,
        folders,
        prober,
        context_window=window,
        timeouts=Timeouts(request_s=config.episode_timeout_s, stall_s=settings.stall_s),
        max_num_seqs=config.sampling.slots,
    )
    stack.push_async_callback(policy.close)
    await policy.open()
    await policy.load_weights(model.state_dict(), version=0)
    say(f"vLLM: {', '.join(m.replica.url for m in members)}, endpoint {policy.path}")
    return policy
