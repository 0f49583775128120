"""Settings with which a run fits into the device's memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from rl.planning.memory import FRAGMENTS, SCORERS, MemoryPlan, Planner
from rl.settings.train import TrainConfig

USUAL_ROW = 4096
"""Minimum length of episodes, in tokens, that is suggested before an adapter is suggested."""
MIN_ROW = 512
"""Minimum length of episodes, in tokens, that is suggested at all."""


def settings_that_fit(planner: Planner, config: TrainConfig) -> str:
    """Words of the command line with which the run would fit, or "" if no such words were found.

    Changes that cost less come first. Each change keeps the previous changes.
    """
    words: list[str] = []
    for change in CHANGES:
        plan = planner.plan(config)
        if plan.fits:
            break
        changed = change(planner, config, plan)
        if changed is not None:
            word, config = changed
            words = [w for w in words if w.split("=")[0] != word.split("=")[0]] + [word]
    return " ".join(words) if planner.plan(config).fits else ""


Change = tuple[str, TrainConfig] | None


def _checkpoints(planner: Planner, config: TrainConfig, plan: MemoryPlan) -> Change:
    """Turn on activation checkpointing: activations are computed twice instead of kept."""
    memory = config.memory
    if memory.activation_checkpointing != "off" and planner.on_gpu:
        return None
    if memory.activation_checkpointing in ("on", "offload"):
        return None
    on = replace(memory, activation_checkpointing="on")
    return "memory.activation_checkpointing=on", replace(config, memory=on)


def _sleep(planner: Planner, config: TrainConfig, plan: MemoryPlan) -> Change:
    """Let the policy free its memory while the learner learns, if the policy can do so."""
    settings: Any = config.policy.settings
    if getattr(settings, "sleep", None) is not False or config.staleness:
        return None
    awake = replace(config.policy, settings=replace(settings, sleep=True))
    return "policy.sleep=true", replace(config, policy=awake)


def _smaller_cache(planner: Planner, config: TrainConfig, plan: MemoryPlan) -> Change:
    """Lower ``cache_gb``, the memory of keys and values, but to no less than an episode needs."""
    settings: Any = config.policy.settings
    if not hasattr(settings, "cache_gb"):
        return None
    over = max(sum(p.values()) - plan.capacity for p in (plan.learn, plan.generate) if p["policy"])
    copied = config.staleness or not config.learner.in_process
    own = planner.weights(config) if copied else 0
    cache = plan.generate["policy"] - own - over / (1 + FRAGMENTS)
    fits = int(cache / 2**30 * 10) / 10
    if over <= 0 or fits * 2**30 < planner.episode_cache(config):
        return None
    smaller = replace(config.policy, settings=replace(settings, cache_gb=fits))
    return f"policy.cache_gb={fits:g}", replace(config, policy=smaller)


def _adapter(planner: Planner, config: TrainConfig, plan: MemoryPlan) -> Change:
    """Train an adapter instead of all weights."""
    if config.lora.rank or importlib.util.find_spec("peft") is None:
        return None
    return "lora.rank=16", replace(config, lora=replace(config.lora, rank=16))


def _quantised(
    planner: Planner, config: TrainConfig, plan: MemoryPlan, bits: Literal[4, 8]
) -> Change:
    """Quantise the base model under an adapter, which changes what the adapter is trained over."""
    lora, settings = config.lora, config.policy.settings
    if not config.learner.in_process:
        return None  # Ranks divide weights, and cannot divide quantised ones.
    if not lora.rank or lora.base_bits in (4, bits) or getattr(settings, "urls", []):
        return None
    if importlib.util.find_spec("bitsandbytes") is None:
        return None
    return f"lora.base_bits={bits}", replace(config, lora=replace(lora, base_bits=bits))


def _offload_scorers(planner: Planner, config: TrainConfig, plan: MemoryPlan) -> Change:
    """Let models that only score wait in the host's memory."""
    scorers = plan.learn.get("reference", 0) + plan.learn[SCORERS]
    alone = config.learner.in_process
    if config.memory.offload_scorers or not (alone and planner.on_gpu and scorers):
        return None
    waiting = replace(config.memory, offload_scorers=True)
    return "memory.offload_scorers=true", replace(config, memory=waiting)


def _shorter(planner: Planner, config: TrainConfig, plan: MemoryPlan) -> Change:
    """Shorten the episodes, but not below :data:`USUAL_ROW` tokens."""
    return _shortened(planner, config, plan, USUAL_ROW)


def _shortest(planner: Planner, config: TrainConfig, plan: MemoryPlan) -> Change:
    """Shorten the episodes, but not below :data:`MIN_ROW` tokens."""
    return _shortened(planner, config, plan, MIN_ROW)


def _shortened(planner: Planner, config: TrainConfig, plan: MemoryPlan, least: int) -> Change:
    half = planner.plan(replace(config, context_length=plan.row // 2))
    # Without a mask, memory is linear in the row.
    each = max(1.0, (plan.peak - half.peak) / (plan.row - half.row))
    fits = int(half.row + (plan.capacity - half.peak) / each) // 64 * 64
    if fits < least:
        return None
    return f"context_length={fits}", replace(config, context_length=fits)


CHANGES: tuple[Callable[[Planner, TrainConfig, MemoryPlan], Change], ...] = (
    *(_checkpoints, _offload_scorers, _sleep, _smaller_cache, _shorter, _adapter),
    *(partial(_quantised, bits=8), partial(_quantised, bits=4), _shortest),
)
"""Changes of a run, in the order in which they are tried."""
