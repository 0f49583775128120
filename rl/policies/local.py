"""``policy=local``: a transformers model in this process."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl.errors import UsageError
from rl.policies.engine import PolicyContext, PolicyEngine, RunSettings
from rl.policies.memory import DeviceFacts, PolicyMemory

if TYPE_CHECKING:
    import torch

    from agents.local import LocalPolicy
    from agents.local.processes import MultiProcessPolicy
    from rl.settings.lora import LoraConfig

_SHARE = 0.3
"""Share of a GPU's memory for keys and values if ``cache_gb`` is 0."""


@dataclass(frozen=True, kw_only=True)
class Local(PolicyEngine):
    """A transformers model in this process, with the learner's own weights."""

    supports_deterministic = True

    cache_gb: float = 0.0
    """GiB for keys and values. Requests beyond that wait. 0 means 30% of a GPU's memory, but at
    least one episode of the longest kind; on a CPU it means no maximum."""

    processes: int = 1
    """Number of processes that sample, on a CPU. With 2, a small model samples up to twice as fast
    on two cores. Each further process has a copy of the weights; all share one more copy."""

    def __post_init__(self) -> None:
        if self.cache_gb < 0:
            raise ValueError(f"cache_gb ({self.cache_gb}) must be at least 0")
        if self.processes < 1:
            raise ValueError(f"processes ({self.processes}) must be at least 1")

    def check(self, config: RunSettings, device: torch.device, lora: LoraConfig) -> None:
        """Reject several processes where they cannot sample, or not the same tokens twice.

        Raises:
            UsageError: the model is on a GPU, or the run is to be deterministic.
        """
        if self.processes > 1 and device.type != "cpu":
            raise UsageError(
                f"policy.processes={self.processes} samples on a CPU, device is {device}: remove "
                "policy.processes, or set device=cpu"
            )
        if self.processes > 1 and config.deterministic:
            raise UsageError(
                f"deterministic=true samples in one process, policy.processes is {self.processes}: "
                "remove one of the two settings"
            )

    def cache_bytes(self, gpu_bytes: int, episode_bytes: int) -> int | None:
        """Maximum bytes of keys and values, or None for no maximum.

        Args:
            gpu_bytes: memory of the GPU; 0 on a CPU.
            episode_bytes: keys and values of the longest episode.
        """
        if self.cache_gb:
            return int(self.cache_gb * 2**30)
        return max(int(_SHARE * gpu_bytes), episode_bytes) if gpu_bytes else None

    def device_memory(self, device: DeviceFacts) -> PolicyMemory:
        """Memory of the keys and values of all slots, and of the policy's own weights, if any.

        Keys and values take at most :meth:`cache_bytes`. Without a maximum, the copy of each prompt
        that a group shares is not counted. On a GPU, the cache is freed before an update, unless
        the policy samples during updates.
        """
        episode = device.episode_cache()
        cache = device.slots * episode
        most = self.cache_bytes(device.capacity if device.on_gpu else 0, episode)
        if most is not None:
            cache = min(cache, most)
        copies = int(device.ahead or not device.in_place)
        copies += self.processes if self.processes > 1 else 0
        kept = copies * device.weights
        if device.ahead:
            return PolicyMemory(kept + cache, kept + cache)
        return PolicyMemory(generating=kept + cache, learning=0 if device.on_gpu else kept + cache)

    async def open(self, context: PolicyContext) -> LocalPolicy | MultiProcessPolicy:
        """Start the policy with the learner's own model, or with a copy if both compute at once."""
        # Heavy imports come here, so that the command line's help starts quickly.
        from agents.local import Limits, LocalPolicy, position_bytes
        from agents.local.processes import MultiProcessPolicy
        from rl.learner.local import LocalWeights, load_policy_model

        config, learner, thread = context.config, context.learner, context.thread
        weights = await learner.weights(learner.version)
        in_place = isinstance(weights, LocalWeights)
        if isinstance(weights, LocalWeights):
            model = weights.model if thread is not None else copy.deepcopy(weights.model)
        else:
            model = await asyncio.to_thread(load_policy_model, context.spec)
        episode = context.context_window * position_bytes(model)
        limits = Limits(
            context_window=context.context_window,
            cache_bytes=self.cache_bytes(_gpu_bytes(model.device), episode),
            thread=thread,
            num_threads=max(1, config.num_threads // (1 if thread is not None else 2)),
            # An episode's own deadline comes first.
            completion_s=config.episode_timeout_s,
            wave_s=config.episode_timeout_s,
        )
        given = (model, context.spec.tokenizer)
        slots, shares = config.sampling.slots, in_place and thread is not None
        policy: LocalPolicy | MultiProcessPolicy
        if self.processes > 1:
            policy = MultiProcessPolicy(
                *given,
                processes=self.processes,
                max_slots=slots,
                seed=config.seed,
                limits=limits,
                shares_weights=shares,
            )
        else:
            policy = LocalPolicy(
                *given,
                max_slots=slots,
                seed=config.seed,
                deterministic=config.deterministic,
                limits=limits,
                shares_weights=shares,
            )
        context.stack.push_async_callback(policy.close)
        if not in_place:
            await policy.load_weights(await weights.tensors(complete=True), weights.version)
        return policy


def _gpu_bytes(device: torch.device) -> int:
    """Memory of a GPU, or 0 for a CPU."""
    import torch

    if device.type != "cuda":
        return 0
    size: int = torch.cuda.get_device_properties(device).total_memory
    return size
