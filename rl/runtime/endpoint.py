"""The runtime of an evaluation whose model is behind a chat API; no model is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import envs
from agents.agent import Agent
from agents.chat import ChatAgent, ChatClient, ChatPolicy
from agents.renderer import Renderer
from rl.errors import UsageError
from rl.external.env import AgentEnv
from rl.policies.openai import OpenAIEndpoint
from rl.rollout.collector import Collector, KeptEpisodes
from rl.rollout.context import EpisodeContext, EpisodeLimits
from rl.rollout.trajectory import TrajectoryGroup
from rl.run.metrics.service_metrics import ServiceMetrics
from rl.run.process.activity import Activities
from rl.runtime.isolation import check_isolation
from rl.runtime.partner import check_partner, open_partners
from rl.runtime.playing import open_services
from rl.settings.run import RunConfig


@dataclass(kw_only=True)
class ChatContext(EpisodeContext):
    """The context of episodes whose model reads messages."""

    renderer: Renderer = field(init=False)
    """Never set: the server turns messages into tokens."""
    client: ChatClient

    def new_agent(self, session: str, turn_seed: Callable[[int], int]) -> Agent:
        """An agent that sends messages."""
        return ChatAgent(self.client, self.sampling, session=session, turn_seed=turn_seed)


@dataclass
class EndpointRuntime:
    """Everything needed to play episodes of a model behind a chat API."""

    config: RunConfig
    context: ChatContext
    service_metrics: ServiceMetrics

    async def play(
        self, split: str, num_tasks: int, kind: int, episodes: int, kept: KeptEpisodes | None
    ) -> list[TrajectoryGroup]:
        """Play the first tasks of a split, as :meth:`rl.runtime.runtime.Runtime.evaluate`."""
        options = dataclasses.replace(self.config.env.options, split=split)
        collector = Collector(dataclasses.replace(self.context, options=options))
        return await collector.play_first(num_tasks, episodes, (self.config.seed, kind), kept)


@asynccontextmanager
async def open_endpoint(
    config: RunConfig, report: Callable[[str], None], activities: Activities
) -> AsyncIterator[EndpointRuntime]:
    """Open the environment's services and the connection to the API.

    Args:
        config: the command's settings, with ``policy=openai``.
        report: called with a line for the user.
        activities: receives the activities of all components.

    Raises:
        UsageError: the environment cannot be played through a chat API.
    """
    endpoint = config.policy.settings
    assert isinstance(endpoint, OpenAIEndpoint)
    if issubclass(envs.env_type(config.env.env_id), AgentEnv):
        raise UsageError(
            f"env ({config.env.env_id}) calls its model itself, and policy={config.policy.name} "
            "has none to give: call the API in your program"
        )
    check_partner(config)
    async with AsyncExitStack() as stack:
        try:
            services = await open_services(config, stack, activities)
            check_isolation(config, services, report)
        except ValueError as error:
            raise UsageError(str(error)) from error
        client = await stack.enter_async_context(endpoint.connect())
        metrics = ServiceMetrics(services)
        await metrics.take()
        partners = await open_partners(config, "", None, activities, stack, report)
        context = ChatContext(
            env_id=config.env.env_id,
            options=config.env.options,
            services=services,
            policy=ChatPolicy(client),
            client=client,
            sampling=config.sampling_params,
            limits=EpisodeLimits(
                # Only the server knows its window.
                context_length=config.context_length,
                episode_timeout_s=config.episode_timeout_s,
            ),
            partners=partners,
            activities=activities,
        )
        yield EndpointRuntime(config, context, metrics)
