"""Base class of policy engines whose servers load copies of the weights."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rl.errors import UsageError
from rl.files import make_folder
from rl.policies.engine import PolicyContext, PolicyEngine, RunSettings

if TYPE_CHECKING:
    import torch

    from agents.serving import Prober, ServerPolicy, Timeouts, WeightPublisher
    from rl.settings.lora import LoraConfig

_DEADLINES = ("start_s", "load_s", "stall_s")


@dataclass(frozen=True, kw_only=True)
class ServerEngine(PolicyEngine):
    """Base class of engines whose servers load the weights after each update.

    A probe verifies the servers' weights. A subclass makes an :class:`agents.serving.ServerPolicy`
    in ``open`` and passes it to :meth:`start`.
    """

    weights: str = ""
    """Folder for the transfer of weights, which this process and the servers see under the same
    path. If empty, this machine's shared memory is used."""
    tolerance: float = 0.0
    """Maximum difference, in nats, between the log-probabilities of servers and learner after an
    update. 0 means four times the model's own noise, which is measured at the start, or 12 times
    up to 1e-3, but at least 1e-4 for float32 and 0.25 for bfloat16."""
    start_s: float = 600.0
    """Seconds that a server may take to start."""
    load_s: float = 120.0
    """Seconds that a server may take to load weights."""
    stall_s: float = 60.0
    """Seconds without a token after which a server that has requests counts as hanging."""

    def __post_init__(self) -> None:
        for name in _DEADLINES:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} ({getattr(self, name)}) must be above 0")
        if not self.tolerance >= 0:
            raise ValueError(f"tolerance ({self.tolerance}) must be >= 0")

    def deadlines(self) -> Mapping[str, float]:
        """Deadlines in seconds for a server's start, for a load of weights, and for a token."""
        return {name: getattr(self, name) for name in _DEADLINES}

    def check(self, config: RunSettings, device: torch.device, lora: LoraConfig) -> None:
        """Reject a context length that is too small for the probe, and an unwritable folder.

        Raises:
            UsageError: ``context_length`` is too small, or ``weights`` cannot be written.
        """
        from agents.serving import PROBE_TOKENS

        if 0 < config.context_length < PROBE_TOKENS:
            raise UsageError(
                f"context_length ({config.context_length}) must be at least {PROBE_TOKENS} with "
                f"policy={config.policy.name}: the probe that verifies each update has that many "
                "tokens"
            )
        if self.weights:
            make_folder(Path(self.weights), "policy.weights")

    async def prober(self, context: PolicyContext) -> Prober:
        """A prober that verifies servers against the learner, with the configured tolerance."""
        from agents.serving import Prober

        learner, config = context.learner, context.config
        return Prober(
            learner.score,
            learner.facts.vocab_size,
            sampling=config.sampling_params,
            tolerance=self.tolerance or await learner.tolerance(config.seed),
            seed=config.seed,
            context=context.context_window,
        )

    def publisher(self, context: PolicyContext) -> WeightPublisher:
        """A publisher of weights as folders: the adapter alone, if the engine can load it."""
        from agents.serving import WeightFolders

        parent = Path(self.weights) if self.weights else None
        return WeightFolders(parent, context.learner.facts.adapter if self.loads_adapters else None)

    def timeouts(self, config: RunSettings) -> Timeouts:
        """Deadlines of the policy's requests and servers."""
        from agents.serving import Timeouts

        return Timeouts(request_s=config.episode_timeout_s, stall_s=self.stall_s)

    async def start(self, policy: ServerPolicy, context: PolicyContext) -> None:
        """Start a policy's servers, load the learner's weights on them, and verify them.

        Raises:
            PolicyFailure: a server cannot be started or reached, or cannot load the weights.
        """
        context.stack.push_async_callback(policy.close)
        await policy.open()
        weights = await context.learner.weights(context.learner.version)
        tensors = await weights.tensors(complete=not self.loads_adapters)
        await policy.load_weights(tensors, weights.version)
        context.report(f"{policy.engine}: {policy.description}")


async def base_model(context: PolicyContext) -> str:
    """The model that servers load when they start: the run's, or a copy with rounded weights.

    The copy is for ``lora.base_bits``: its weights have the values with which the learner computes.
    It is deleted after the policy has closed.
    """
    from rl.learner.local import save_rounded_base
    from rl.learner.lora import base_of

    spec = context.spec
    bits = spec.lora.base_bits
    if not bits:
        return base_of(spec.model)
    if context.logs is None:
        home = Path(context.stack.enter_context(TemporaryDirectory(prefix="turnwise-base-")))
    else:
        home = context.logs.parent
    folder = home / "base-for-servers"
    context.stack.callback(shutil.rmtree, folder, ignore_errors=True)
    context.report(f"writing the base model, rounded to {bits} bits, in full precision: {folder}")
    await asyncio.to_thread(save_rounded_base, spec, folder)
    return str(folder)
