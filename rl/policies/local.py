"""``policy=local``: a transformers model in this process."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl.policies.engine import PolicyContext, PolicyEngine
from rl.policies.memory import DeviceFacts, PolicyMemory

if TYPE_CHECKING:
    from agents.local import LocalPolicy


@dataclass(frozen=True, kw_only=True)
class Local(PolicyEngine):
    """A transformers model in this process, with the learner's own weights."""

    supports_deterministic = True

    def device_memory(self, device: DeviceFacts) -> PolicyMemory:
        """The cache of all slots, and a copy of the weights if both compute at once.

        The cache grows by a quarter, and the smaller one exists until its content is copied.
        """
        cache = device.slots * device.episode_cache()
        own = device.weights if device.ahead else 0
        return PolicyMemory(generating=own + cache * 9 // 5, learning=own + cache)

    async def open(self, context: PolicyContext) -> LocalPolicy:
        """Sample from the learner's own model, or from a copy if the learner computes meanwhile."""
        # Heavy imports come here, so that the command line's help starts quickly.
        from agents.local import Limits, LocalPolicy
        from rl.learner.local import LocalWeights, load_policy_model

        config, learner, thread = context.config, context.learner, context.thread
        weights = await learner.weights(learner.version)
        in_place = isinstance(weights, LocalWeights)
        if isinstance(weights, LocalWeights):
            model = weights.model if thread is not None else copy.deepcopy(weights.model)
        else:
            model = await asyncio.to_thread(load_policy_model, context.spec)
        policy = LocalPolicy(
            model,
            context.spec.tokenizer,
            max_slots=config.sampling.slots,
            # An episode's own deadline comes first.
            limits=Limits(
                context_window=context.context_window,
                thread=thread,
                num_threads=max(1, config.num_threads // 2),
                completion_s=config.episode_timeout_s,
                wave_s=config.episode_timeout_s,
            ),
            seed=config.seed,
            deterministic=config.deterministic,
            shares_weights=in_place and thread is not None,
        )
        context.stack.push_async_callback(policy.close)
        if not in_place:
            await policy.load_weights(await weights.tensors(complete=True), weights.version)
        return policy
