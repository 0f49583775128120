"""The runtime of a command, which plays episodes and evaluates."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

import envs
from agents.completion import SamplingParams
from agents.policy import Observable, Policy, Serving, Sleeper
from agents.renderer import Renderer
from agents.torch_thread import TorchThread
from rl.cluster.cluster import Cluster
from rl.cluster.opening import open_cluster
from rl.collectors.collector import RemoteCollector
from rl.collectors.opening import open_collectors
from rl.collectors.pool import CollectorPool
from rl.errors import UsageError
from rl.external.collector import make_collector
from rl.learner.lora import check_lora
from rl.learner.model import check_model
from rl.learner.registration import opening_of
from rl.learner.seam import Learner
from rl.policies.engine import PolicyContext
from rl.rollout.collector import Collector, KeptEpisodes
from rl.rollout.context import Partner
from rl.rollout.trajectory import TrajectoryGroup
from rl.rollout.vine import VineConfig
from rl.run.metrics.episodes import success_of
from rl.run.metrics.intervals import PassRate, pass_rate_of_tasks
from rl.run.metrics.service_metrics import ServiceMetrics
from rl.run.process.activity import LEARNER, OPEN, POLICY, Activities
from rl.run.process.closing import InTime, at_end
from rl.run.process.cores import report_busy
from rl.runtime.deterministic import deterministic_kernels
from rl.runtime.isolation import Confining, check_isolation
from rl.runtime.learner import learner_spec, model_path, open_learner
from rl.runtime.model import cores_of_learner, device_of
from rl.runtime.notices import no_tools, rules_twice
from rl.runtime.partner import check_partner, open_partners
from rl.runtime.playing import Playing, open_services
from rl.settings.finetuning import SFTConfig
from rl.settings.lora import NO_LORA, LoraConfig
from rl.settings.run import RunConfig
from rl.settings.train import TrainConfig

TRAIN, VALIDATION, TEST, EVALUATE, DISTILL = 0, 1, 2, 3, 4
"""Kinds of episodes, as numbers in seed keys: two kinds of episodes share no random numbers."""


@dataclass
class Runtime:
    """Everything needed to play episodes; created by :func:`open_runtime`."""

    config: RunConfig
    services: Mapping[str, Any]
    learner: Learner
    """The learner, which owns the model."""
    tokenizer: PreTrainedTokenizerBase
    policy: Policy
    renderer: Renderer
    service_metrics: ServiceMetrics
    """Metrics of the services."""
    activities: Activities
    """The current activities of all components."""
    thread: TorchThread
    """The thread for computations of this process on several cores."""
    partners: Mapping[str, Partner] = dataclasses.field(default_factory=dict)
    """Who plays roles that are not trained, by role."""
    collectors: CollectorPool | None = None
    """Processes that play the episodes; None if this process does."""
    on_evaluated: Callable[[str, Sequence[TrajectoryGroup]], None] = lambda split, groups: None
    """Called after each evaluation with the split and the episodes."""

    @property
    def success_score(self) -> str:
        """The name of the environment's success score, or "" if it has none."""
        return envs.env_type(self.config.env.env_id).success_score

    def collector(
        self, split: str, sampling: SamplingParams, vine: VineConfig | None = None
    ) -> Collector:
        """A collector that plays episodes of a split. If ``vine`` is set, it also values turns."""
        playing = Playing(
            config=self.config,
            services=self.services,
            policy=self.policy,
            renderer=self.renderer,
            partners=self.partners,
            activities=self.activities,
            context_window=self.learner.facts.context_window,
        )
        context = playing.context(split, sampling)
        if self.collectors is not None:
            return RemoteCollector(context, vine, self.collectors)
        return make_collector(context, vine)

    async def evaluate(
        self,
        split: str,
        num_tasks: int,
        kind: int,
        sampling: SamplingParams,
        episodes: int = 1,
        kept: KeptEpisodes | None = None,
    ) -> tuple[PassRate, list[TrajectoryGroup]]:
        """Play the first ``num_tasks`` tasks of a split, ``episodes`` times each.

        The sampling seeds are the same every time, so the results of two evaluations differ only
        because of the weights. The success has a 95% interval for the population of such tasks.
        Episodes in ``kept`` are not played again, and ``kept`` receives each new episode.
        """
        collector = self.collector(split, sampling)
        groups = await collector.play_first(num_tasks, episodes, (self.config.seed, kind), kept)
        score = self.success_score
        by_task = [[success_of(t, score) for t in group.finished] for group in groups]
        self.on_evaluated(split, groups)
        return pass_rate_of_tasks(by_task), groups

    async def publish(self) -> None:
        """Load the learner's current weights into the policy.

        Raises:
            PolicyFailure: the policy cannot load the weights.
        """
        version = self.learner.version
        with self.activities.busy(POLICY, "sync"):
            weights = None
            if not self.policy.shares_weights:
                handle = await self.learner.weights(version)
                # A server with the base model takes only the adapter.
                complete = not self.config.policy.settings.loads_adapters
                weights = await handle.tensors(complete=complete)
            await self.policy.load_weights(weights, version)
        self.activities.progressed("weights that arrived")

    @asynccontextmanager
    async def learning(self) -> AsyncIterator[None]:
        """Give the learner the device while the context lasts.

        A policy on the same device can sleep meanwhile.
        """
        if not isinstance(self.policy, Sleeper) or not self.policy.sleeps:
            yield
            return
        await self.policy.sleep()
        try:
            await self.learner.onload()
            try:
                yield
            finally:
                await self.learner.offload()
        finally:
            await self.policy.wake()

    def facts(self) -> dict[str, Any]:
        """Facts on which a run depends and that its configuration does not state."""
        model = self.learner.facts
        return {
            "device": model.device,
            "dtype": model.dtype,
            "num_parameters": model.num_parameters,
            "num_trained": model.num_trained,
            **self.policy.facts(),
            "isolation": {
                name: f"{service.backend}, {service.isolation}"
                for name, service in self.services.items()
                if isinstance(service, Confining)
            },
            "template_difference": self.renderer.difference,
        }


@asynccontextmanager
async def open_runtime(
    config: RunConfig,
    report: Callable[[str], None],
    logs: Path | None = None,
    own_weights: bool = False,
    activities: Activities | None = None,
) -> AsyncIterator[Runtime]:
    """Open the environment's services, load or make the model, and start the policy.

    Args:
        config: the command's settings.
        report: called with a line for the user.
        logs: folder for the logs of servers that are started, or None to drop the logs.
        own_weights: whether the policy samples during training, and so needs a copy of the weights.
        activities: receives the activities of all components.

    Raises:
        Unclosed: a component took longer than ``close_s`` to close.
        UsageError: the model does not exist, or a setting contradicts it.
        PolicyFailure: a server of the policy is unusable.
    """
    activities = activities or Activities()
    async with AsyncExitStack() as stack:
        device, lora = _prepare(config, report, stack)
        thread = TorchThread(cores_of_learner(config, own_weights))
        closes = at_end(thread.close, "the torch thread", activities, config.close_s)
        await stack.enter_async_context(closes)
        cluster = await _open_cluster(config, device, activities, stack)
        # A ValueError in this block is about the user's settings.
        try:
            services = await open_services(config, stack, activities, cluster.sandboxes)
            check_isolation(config, services, report)
            path = await model_path(config, services, thread, report, activities)
            spec = learner_spec(config, path, device, lora)
            learner = await open_learner(config, spec, thread, cluster, activities, stack)
            renderer = Renderer(spec.tokenizer, learner.facts.end_token_ids)
        except ValueError as error:
            raise UsageError(str(error)) from error
        activities.progressed("the model that was loaded")
        _report_notices(config, renderer, report)
        closed_first = await stack.enter_async_context(
            InTime(AsyncExitStack(), "the policy", activities, config.close_s)
        )
        if config.policy.settings.sleeps:
            await learner.offload()  # The policy needs the room, and the first update comes later.
        with activities.doing(LEARNER, "the policy", OPEN):
            own_thread = None if own_weights else thread
            context = PolicyContext(
                *(config, learner, spec, own_thread, logs, report, closed_first, cluster)
            )
            policy = await config.policy.settings.open(context)
            shared = (own_thread, activities, closed_first, report)
            partners = await open_partners(config, spec.model, *shared)
        _observe(policy, activities)
        collectors = await open_collectors(config, context, policy, activities)
        service_metrics = await _measure(services, collectors)
        yield Runtime(
            *(config, services, learner, spec.tokenizer, policy, renderer),
            *(service_metrics, activities, thread, partners, collectors),
        )


async def _measure(services: Mapping[str, Any], collectors: CollectorPool | None) -> ServiceMetrics:
    """The metrics of services, from now on: the programs of a warm start count to no step."""
    metrics = ServiceMetrics(services, None if collectors is None else collectors.healths)
    await metrics.take()
    return metrics


def _report_notices(config: RunConfig, renderer: Renderer, report: Callable[[str], None]) -> None:
    """Show what the chat template changes or leaves out."""
    for notice in (*renderer.notices, *rules_twice(config), *no_tools(config, renderer)):
        report(f"chat template: {notice}")


def _observe(policy: Policy, activities: Activities) -> None:
    """Report an opened policy, and from now on its progress and its servers' seconds."""
    if isinstance(policy, Observable):
        activities.watch(policy)
    if isinstance(policy, Serving):
        policy.account(activities.lane)
    activities.progressed("the policy that was opened")


async def _open_cluster(
    config: RunConfig, device: torch.device, activities: Activities, stack: AsyncExitStack
) -> Cluster:
    """Reserve room for the run's processes. ``stack`` frees it within ``close_s``."""
    ranks = config.effective_learner.settings.ranks
    gpus = [int(device.type == "cuda")] * (ranks if ranks > 1 else 0)
    servers = config.policy.settings.gpus_of_servers(device.type)
    with activities.doing(LEARNER, f"the cluster {config.cluster.name}", OPEN):
        collectors = config.collectors if config.collectors > 1 else 0
        opened = open_cluster(config.cluster, gpus, servers, collectors)
        return await stack.enter_async_context(
            InTime(opened, "the cluster", activities, config.close_s)
        )


def _prepare(
    config: RunConfig, report: Callable[[str], None], stack: AsyncExitStack
) -> tuple[torch.device, LoraConfig]:
    """Refuse what can be refused before anything is opened, and set up torch for this process.

    Returns:
        The model's device and adapter.

    Raises:
        UsageError: the device is missing, or the policy, the learner, the adapter, the partner or
            the context's length is impossible.
    """
    stack.enter_context(deterministic_kernels(config))
    lora = config.lora if isinstance(config, TrainConfig | SFTConfig) else NO_LORA
    device = device_of(config)
    config.policy.settings.check(config, device, lora)
    opening_of(config.effective_learner)
    check_partner(config)
    if config.model == "tiny" and config.context_length > config.tiny.context_length:
        raise UsageError(
            f"context_length ({config.context_length}) must be at most tiny.context_length "
            f"({config.tiny.context_length}), the window of model=tiny"
        )
    try:
        check_lora(lora, config.model)
        if config.model != "tiny":
            check_model(config.model)
    except ValueError as error:
        raise UsageError(str(error)) from error
    transformers_logging.disable_progress_bar()
    if device.type == "cpu":
        report_busy(config.num_threads, report)
    # Only the torch thread computes on several cores.
    torch.set_num_threads(1)
    return device, lora
