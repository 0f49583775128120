"""Opens the collectors of a command: processes that play its episodes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from agents.policy import Policy
from agents.serving import ServerPolicy
from rl.collectors.messages import CollectorSpec
from rl.collectors.pool import CollectorPool, PoolSettings
from rl.errors import UsageError
from rl.policies.engine import PolicyContext
from rl.run.process.activity import LEARNER, OPEN, Activities
from rl.run.process.closing import at_end
from rl.settings.parsing.files import as_values
from rl.settings.parsing.plain import to_plain
from rl.settings.run import RunConfig
from tools.sandbox.remote.wire import TOKEN_VARIABLE


async def open_collectors(
    config: RunConfig, context: PolicyContext, policy: Policy, activities: Activities
) -> CollectorPool | None:
    """Open ``config.collectors`` processes; None if this process plays the episodes itself.

    Args:
        config: the command's settings.
        context: what the policy was opened with.
        policy: the opened policy.
        activities: receives their activities.

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
    stack, sandboxes, printed = context.stack, context.cluster.sandboxes, context.logs
    if printed is None:
        dropped = tempfile.TemporaryDirectory(prefix="turnwise-collectors-")
        printed = Path(stack.enter_context(dropped))
    facts, tokenizer = context.learner.facts, context.spec.tokenizer
    model = (tokenizer, facts.end_token_ids, facts.context_window)
    common = spec_of(config, policy, *model, sandboxes)
    settings = PoolSettings(
        size=config.collectors,
        start=context.cluster.start_collector,
        spec=lambda number: replace(common, number=number),
        printed=printed,
        counts_together="://" in (sandboxes or getattr(config.env.options, "sandbox", "")),
    )
    pool = CollectorPool(settings, policy)
    closes = at_end(pool.close, "the collectors", activities, config.close_s)
    await stack.enter_async_context(closes)
    with activities.doing(LEARNER, f"{config.collectors} collectors", OPEN):
        await pool.open()
    activities.elsewhere = pool
    return pool


def spec_of(
    config: RunConfig,
    policy: ServerPolicy,
    tokenizer: PreTrainedTokenizerBase,
    end_token_ids: Sequence[int],
    context_window: int,
    sandboxes: str = "",
) -> CollectorSpec:
    """What the first collector of a command is opened with; see :class:`CollectorSpec`."""
    token = os.environ.get(TOKEN_VARIABLE)
    return CollectorSpec(
        number=0,
        size=config.collectors,
        config_type=type(config),
        settings=as_values(to_plain(config)),
        # Sandbox servers want it, also from collectors on other machines.
        environment={} if token is None else {TOKEN_VARIABLE: token},
        sandboxes=sandboxes,
        tokenizer=tokenizer,
        end_token_ids=tuple(end_token_ids),
        context_window=context_window,
        guest=policy.guest_settings,
    )
