"""The stage itself: opened from a configuration, it plays episodes and evaluates."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

import envs
from agents.completion import SamplingParams
from agents.local import TorchThread
from agents.policy import Observable, Policy, Serving, Sleeper
from agents.published_templates import TEMPLATES
from agents.renderer import Renderer
from agents.vllm import VLLMServerPolicy
from rl.config import RunConfig, SFTConfig, TrainConfig
from rl.errors import UsageError
from rl.external.collector import collector_type
from rl.imitation.demonstrations import NoDemonstrations
from rl.learner.lora import check_lora
from rl.learner.model import check_model
from rl.learner.registration import open_of
from rl.learner.seam import Host, Learner, LearnerSpec, TrainingSpec
from rl.rollout.collector import Collector, EpisodeLimits
from rl.rollout.trajectory import TrajectoryGroup
from rl.rollout.vine import VineConfig
from rl.run.activity import LEARNER, OPEN, POLICY, Activities
from rl.run.closing import InTime, at_end
from rl.run.metrics import PassRate, pass_rate_of_tasks, success_of
from rl.run.services import ServiceMeter
from rl.settings.chat import OWN_TEMPLATE
from rl.settings.lora import NO_LORA, LoraConfig
from rl.stage.model import device_of, dtype_of, load_tokenizer
from rl.stage.policies import WeightSource, check_policy, cores_of_learner, open_policy
from rl.stage.tiny import make_tiny

TRAIN, VALIDATION, TEST, EVALUATE, DISTILL = 0, 1, 2, 3, 4
"""First number after the seed in a collection's seed key: no two kinds share random numbers."""


@dataclass
class Stage:
    """Everything that playing episodes needs; made by :func:`open_stage`."""

    config: RunConfig
    services: Mapping[str, Any]
    learner: Learner
    """Owns the model."""
    tokenizer: PreTrainedTokenizerBase
    policy: Policy
    renderer: Renderer
    meter: ServiceMeter
    """What the services count."""
    activities: Activities
    """What everything does at this moment."""
    thread: TorchThread
    """Computes everything of this process that uses several cores."""
    on_evaluated: Callable[[str, Sequence[TrajectoryGroup]], None] = lambda split, groups: None
    """Called with the split and the episodes of each evaluation."""

    @property
    def success_score(self) -> str:
        """The environment's score that says an episode succeeded."""
        return envs.env_type(self.config.env.env_id).success_score

    def best_success(self, split: str) -> float:
        """What a right episode has: a score of 1, or the environment's best return."""
        if self.success_score:
            return 1.0
        options = dataclasses.replace(self.config.env.options, split=split)
        env = envs.make_from(self.config.env.env_id, options, self.services)
        return env.reward_range[1]

    def collector(
        self, split: str, sampling: SamplingParams, vine: VineConfig | None = None
    ) -> Collector:
        """Whoever plays episodes of a split, and values their turns if asked."""
        config = self.config
        collector = collector_type(config.env.env_id)(
            config.env.env_id,
            dataclasses.replace(config.env.options, split=split),
            self.services,
            policy=self.policy,
            renderer=self.renderer,
            sampling=sampling,
            limits=EpisodeLimits(
                context_length=config.context_length or self.learner.facts.context_window,
                episode_timeout_s=config.episode_timeout_s,
                # A wave has room for one request of each episode.
                requests_at_once=int(config.deterministic),
            ),
            vine=vine,
        )
        collector.activities = self.activities
        return collector

    async def evaluate(
        self, split: str, num_tasks: int, kind: int, sampling: SamplingParams, episodes: int = 1
    ) -> tuple[PassRate, list[TrajectoryGroup]]:
        """Play the first ``num_tasks`` tasks of a split, ``episodes`` times each.

        The same sampling seeds every time: two evaluations differ by their weights alone. The
        interval is of tasks like these.
        """
        collector = self.collector(split, sampling)
        tasks = range(min(num_tasks, len(collector.make_env().tasks)))
        total = len(tasks) * episodes
        collector.on_episode = self.activities.counter(f"{split} episodes", total)
        groups = await collector.collect(tasks, episodes, (self.config.seed, kind))
        score = self.success_score
        by_task = [[success_of(t, score) for t in group.finished] for group in groups]
        self.on_evaluated(split, groups)
        return pass_rate_of_tasks(by_task), groups

    async def publish(self) -> None:
        """Have the policy sample from the learner's weights as they are now.

        Raises:
            PolicyFailure: the policy cannot.
        """
        version = self.learner.version
        with self.activities.busy(POLICY, "sync"):
            weights = None
            if not self.policy.shares_weights:
                handle = await self.learner.weights(version)
                # A server that was started with the base model takes the adapter alone.
                complete = not isinstance(self.policy, VLLMServerPolicy)
                weights = await handle.tensors(complete=complete)
            await self.policy.load_weights(weights, version)
        self.activities.progressed("weights that arrived")

    @asynccontextmanager
    async def learning(self) -> AsyncIterator[None]:
        """While this is open the learner has the device; a policy that shares it may sleep."""
        if not isinstance(self.policy, Sleeper):
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
        """What a run depends on beside its configuration."""
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
async def open_stage(
    config: RunConfig,
    say: Callable[[str], None],
    logs: Path | None = None,
    own_weights: bool = False,
    activities: Activities | None = None,
) -> AsyncIterator[Stage]:
    """Open the environment's services, load or make the model, and start the policy.

    Args:
        config: the command's.
        say: tells the user.
        logs: a folder for what servers say that the run starts; None: it is not kept.
        own_weights: whether the policy goes on while the model is trained, so it needs a copy.
        activities: where everything says what it does.

    Raises:
        Unclosed: a part took longer to close than ``close_s``.
        UsageError: the model does not exist, or a setting contradicts it.
        PolicyFailure: a server of the policy's cannot be used.
    """
    device, lora = _settle(config)
    activities = activities or Activities()
    async with AsyncExitStack() as stack:
        thread = TorchThread(cores_of_learner(config, own_weights))
        closes = at_end(thread.close, "the torch thread", activities, config.close_s)
        await stack.enter_async_context(closes)
        # Until here and no further, a ValueError is about what the user asked for.
        try:
            services = await _open_services(config, stack, activities)
            _check_isolation(config, services, say)
            path = await _model_path(config, services, thread, say, activities)
            spec = _spec(config, path, device, lora)
            learner = await _open_learner(config, spec, thread, activities, stack)
            renderer = Renderer(spec.tokenizer, learner.facts.end_token_ids)
        except ValueError as error:
            raise UsageError(str(error)) from error
        activities.progressed("the model that was loaded")
        for notice in (*renderer.notices, *_rules_twice(config), *_no_tools(config, renderer)):
            say(f"chat template: {notice}")
        closed_first = await stack.enter_async_context(
            InTime(AsyncExitStack(), "the policy", activities, config.close_s)
        )
        with activities.doing(LEARNER, "the policy", OPEN):
            source = WeightSource(learner, spec, None if own_weights else thread)
            policy = await open_policy(config, source, logs=logs, say=say, stack=closed_first)
        if isinstance(policy, Observable):
            activities.watch(policy)
        if isinstance(policy, Serving):
            policy.account(activities.lane)
        activities.progressed("the policy that was opened")
        meter = ServiceMeter(services)
        await meter.take()  # a warm start's programs belong to no step
        yield Stage(
            *(config, services, learner, spec.tokenizer, policy),
            *(renderer, meter, activities, thread),
        )


async def _open_learner(
    config: RunConfig,
    spec: LearnerSpec,
    thread: TorchThread,
    activities: Activities,
    stack: AsyncExitStack,
) -> Learner:
    """The learner that the run is configured for; ``stack`` closes it, in time."""
    name = config.learner if isinstance(config, TrainConfig) else "local"
    host = Host(thread, lambda: activities.progressed("a micro-batch"))
    with activities.doing(LEARNER, f"the model {spec.model}", OPEN):
        learner = await open_of(name)(spec, host)
    await stack.enter_async_context(
        at_end(learner.close, "the learner", activities, config.close_s)
    )
    window = learner.facts.context_window
    if config.context_length > window:
        raise UsageError(
            f"context_length ({config.context_length}) must be at most the model's window, "
            f"{window} tokens"
        )
    return learner


async def _open_services(
    config: RunConfig, stack: AsyncExitStack, activities: Activities
) -> Mapping[str, Any]:
    """The environment's services; ``stack`` closes them, in time."""
    opened = envs.env_type(config.env.env_id).open_services(config.env.options)
    what = "the environment's services"
    with activities.doing(LEARNER, what, OPEN):
        return await stack.enter_async_context(InTime(opened, what, activities, config.close_s))


def _settle(config: RunConfig) -> tuple[torch.device, LoraConfig]:
    """What holds for the process; returns the device that the model is for, and its adapter.

    Raises:
        UsageError: it is not here, or the policy or the adapter is not possible.
    """
    lora = config.lora if isinstance(config, TrainConfig | SFTConfig) else NO_LORA
    device = device_of(config)
    check_policy(config, device, lora)
    try:
        check_lora(lora, config.model)
    except ValueError as error:
        raise UsageError(str(error)) from error
    transformers_logging.disable_progress_bar()
    # What uses several cores goes to the one thread that may.
    torch.set_num_threads(1)
    return device, lora


def _spec(config: RunConfig, path: str, device: torch.device, lora: LoraConfig) -> LearnerSpec:
    """Everything that the run's learner is made of.

    Raises:
        ValueError: there is no model at the path, or it has no tokenizer.
    """
    check_model(path)
    training = None
    if isinstance(config, TrainConfig):
        training = TrainingSpec(
            algorithm=config.algorithm,
            optimizer=config.optimizer_in_force,
            temperature=config.sampling.temperature,
            micro_batch_tokens=config.micro_batch_tokens,
        )
    return LearnerSpec(
        model=path,
        tokenizer=load_tokenizer(path, config.chat),
        device=str(device),
        dtype=str(dtype_of(config)).removeprefix("torch."),
        lora=lora,
        seed=config.seed,
        training=training,
    )


async def _model_path(
    config: RunConfig,
    services: Mapping[str, Any],
    thread: TorchThread,
    say: Callable[[str], None],
    activities: Activities,
) -> str:
    """Where the model is loaded from; the tiny one is made first."""
    if config.model != "tiny":
        return config.model
    if config.chat != OWN_TEMPLATE:
        raise UsageError(
            "chat must be left out with model=tiny, whose warm start has a template of its own: "
            "give model=FOLDER or a Hugging Face id"
        )
    try:
        made = await make_tiny(
            config.env.env_id,
            config.env.options,
            services,
            seed=config.seed,
            recipe=config.tiny,
            thread=thread,
            say=say,
            count=activities.counted,
        )
    except NoDemonstrations as error:
        without = "or take another model than model=tiny: model=FOLDER or a Hugging Face id"
        raise UsageError(f"{error}, {without}") from error
    return str(made)


def _rules_twice(config: RunConfig) -> list[str]:
    """A notice where a published prompt's rules and the environment's stand in one prompt."""
    name = config.chat.template
    if name not in TEMPLATES or not getattr(config.env.options, "instructions", False):
        return []
    return [
        f"{name} has rules of its own, and the environment's stand behind them in the first "
        f"message: env.instructions=false leaves these out"
    ]


def _no_tools(config: RunConfig, renderer: Renderer) -> list[str]:
    """A notice where calls are to go through a template that has no place for tools."""
    if getattr(config.env.options, "syntax", "") != "chat" or renderer.takes_tools:
        return []
    return [
        "it has no place for tools: they stand in the system message, and calls are to be written "
        "as Hermes writes them"
    ]


@runtime_checkable
class Confining(Protocol):
    """A service that runs programs, and says what stands between them and this machine."""

    @property
    def backend(self) -> str:
        """What confines them."""
        ...

    @property
    def isolation(self) -> str:
        """How strongly; "none" is not at all."""
        ...


def _check_isolation(
    config: RunConfig, services: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Say which isolation is in force, and refuse to run a model's programs without any.

    Raises:
        UsageError: there is none, and the user did not allow that.
    """
    for name, service in services.items():
        if not isinstance(service, Confining):
            continue
        say(f"{name}: {service.backend}, isolation {service.isolation}")
        if service.isolation == "none" and not config.allow_unsafe:
            raise UsageError(
                f"{name} ({service.backend}) would run a model's programs with no isolation: "
                f"choose another backend, or say allow_unsafe=true"
            )
