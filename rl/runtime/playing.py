"""What a process needs to play episodes: the environment's services, and what episodes share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import envs
from agents.completion import SamplingParams
from agents.policy import Policy
from agents.renderer import Renderer
from envs.env import watches_ended
from rl.errors import UsageError
from rl.rollout.context import EpisodeContext, EpisodeLimits, Partner
from rl.run.process.activity import LEARNER, OPEN, Activities
from rl.run.process.closing import InTime
from rl.settings.environment import NO_ENV
from rl.settings.run import RunConfig
from tools.references import files_held


async def open_services(
    config: RunConfig, stack: AsyncExitStack, activities: Activities, sandboxes: str = ""
) -> Mapping[str, Any]:
    """Open the environment's services. ``stack`` closes them within ``close_s``.

    Until then the tasks stay as they are, even if their files change.

    Args:
        config: the settings.
        stack: closes the services.
        activities: receives the activity.
        sandboxes: URLs of sandbox servers that take the place of ``env.sandbox``, if given.

    Raises:
        UsageError: there are sandbox servers, but the environment has no sandbox.
    """
    if config.env.env_id == NO_ENV:
        return {}
    stack.enter_context(files_held())
    stack.enter_context(watches_ended())
    options: Any = config.env.options
    if sandboxes:
        if not hasattr(options, "sandbox"):
            raise UsageError(
                f"cluster.sandboxes must be 0 with env={config.env.env_id}: it has no env.sandbox"
            )
        options = dataclasses.replace(options, sandbox=sandboxes)
    opened = envs.env_type(config.env.env_id).open_services(options)
    what = "the environment's services"
    with activities.doing(LEARNER, what, OPEN):
        return await stack.enter_async_context(InTime(opened, what, activities, config.close_s))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Playing:
    """What all episodes of a command share."""

    config: RunConfig
    services: Mapping[str, Any]
    policy: Policy
    renderer: Renderer
    partners: Mapping[str, Partner]
    """Who plays roles that are not trained, by role."""
    activities: Activities
    context_window: int
    """The model's own context window, in tokens."""

    def context(self, split: str, sampling: SamplingParams) -> EpisodeContext:
        """What episodes of a split share."""
        config = self.config
        return EpisodeContext(
            env_id=config.env.env_id,
            options=dataclasses.replace(config.env.options, split=split),
            services=self.services,
            policy=self.policy,
            renderer=self.renderer,
            sampling=sampling,
            limits=EpisodeLimits(
                context_length=config.context_length or self.context_window,
                episode_timeout_s=config.episode_timeout_s,
                # A deterministic wave holds one request of each episode.
                requests_at_once=int(config.deterministic),
            ),
            partners=self.partners,
            compaction=config.context,
            activities=self.activities,
        )
