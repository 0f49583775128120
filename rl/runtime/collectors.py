"""Opens the collectors of a command: processes that play its episodes."""

from __future__ import annotations

import os
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from agents.policy import Policy
from agents.serving import ServerPolicy
from rl.cluster.cluster import Cluster
from rl.collectors.messages import CollectorSpec
from rl.collectors.pool import CollectorPool, PoolSettings
from rl.errors import UsageError
from rl.learner.seam import Learner, LearnerSpec
from rl.rollout.context import EpisodeLimits
from rl.run.process.activity import LEARNER, OPEN, Activities
from rl.run.process.closing import at_end
from rl.settings.parsing.files import as_values
from rl.settings.parsing.plain import to_plain
from rl.settings.run import RunConfig
from tools.sandbox.remote.wire import TOKEN_VARIABLE


async def open_collectors(
    config: RunConfig,
    policy: Policy,
    learner: Learner,
    spec: LearnerSpec,
    cluster: Cluster,
    logs: Path | None,
    activities: Activities,
    stack: AsyncExitStack,
) -> CollectorPool | None:
    """Open ``config.collectors`` processes; None if this process plays the episodes itself.

    Args:
        config: the command's settings.
        policy: the opened policy.
        learner: the opened learner.
        spec: the learner's specification.
        cluster: where the processes run.
        logs: folder for what they print, or None to drop it.
        activities: receives their activities.
        stack: closes them.

    Raises:
        UsageError: other processes cannot sample from the policy's servers, or the environment or a
            setting is refused.
        RunFailure: a collector does not start.
    """
    if config.collectors == 1:
        return None
    if not isinstance(policy, ServerPolicy):
        raise UsageError(
            f"collectors ({config.collectors}) must be 1 with policy={config.policy.name}: "
            "collectors sample from servers"
        )
    printed = logs or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-")))
    token = os.environ.get(TOKEN_VARIABLE)
    common = CollectorSpec(
        number=0,
        size=config.collectors,
        config_type=type(config),
        settings=as_values(to_plain(config)),
        # The servers of the cluster's sandboxes want it, also from other machines.
        environment={} if token is None else {TOKEN_VARIABLE: token},
        sandboxes=cluster.sandboxes,
        tokenizer=spec.tokenizer,
        end_token_ids=learner.facts.end_token_ids,
        context_window=learner.facts.context_window,
        guest=policy.guest_settings,
    )
    pool = CollectorPool(
        PoolSettings(
            size=config.collectors,
            start=cluster.start_collector,
            spec=lambda number: replace(common, number=number),
            printed=printed,
            retries=EpisodeLimits(context_length=1).retries,
        ),
        policy,
    )
    closes = at_end(pool.close, "the collectors", activities, config.close_s)
    await stack.enter_async_context(closes)
    with activities.doing(LEARNER, f"{config.collectors} collectors", OPEN):
        await pool.open()
    activities.elsewhere = pool
    return pool


def counts_together(config: RunConfig, cluster: Cluster) -> bool:
    """Whether the sandboxes of all processes count together, because they are one server."""
    return "://" in (cluster.sandboxes or getattr(config.env.options, "sandbox", ""))
