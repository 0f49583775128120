"""Opens the partner of a command, which plays roles that are not trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

import envs
from agents.torch_thread import TorchThread
from rl.errors import UsageError
from rl.policies.partner import PartnerContext, check_roles
from rl.rollout.context import Partner
from rl.run.process.activity import Activities
from rl.runtime.model import device_of, dtype_of, load_tokenizer
from rl.settings.run import RunConfig


def check_partner(config: RunConfig) -> None:
    """Check the partner of a command before anything is opened.

    Raises:
        UsageError: the environment does not declare the role, or the partner's model or function
            does not exist.
    """
    engine = config.partner.settings
    if not engine.roles:
        return
    env = envs.make_from(config.env.env_id, config.env.options)
    env.close()
    check_roles(engine, config.env.env_id, env.roles)
    engine.find()


async def open_partners(
    config: RunConfig,
    model: str,
    thread: TorchThread | None,
    activities: Activities,
    stack: AsyncExitStack,
    report: Callable[[str], None],
) -> Mapping[str, Partner]:
    """The partners by role. Without ``partner=...``, there are none.

    Args:
        config: the command's settings.
        model: the command's own model as it is at the start, or "" if it loads none.
        thread: the thread on which learner and policy compute in turns, or None.
        activities: receives the partner's progress.
        stack: closes the partner.
        report: called with a line for the user.

    Raises:
        UsageError: the partner cannot be opened.
    """
    engine = config.partner.settings
    if not engine.roles:
        return {}
    local = config.partner.name == "local"
    context = PartnerContext(
        model=model,
        device=str(device_of(config)) if local else "cpu",
        dtype=str(dtype_of(config)).removeprefix("torch.") if local else "float32",
        num_threads=max(1, config.num_threads // 2),
        seed=config.seed,
        slots=config.sampling.slots,
        timeout_s=config.episode_timeout_s,
        thread=thread,
        load_tokenizer=load_tokenizer,
        watch=activities.watch,
        stack=stack,
    )
    try:
        partner = await engine.find().open(context)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"partner: {error}") from error
    report(f"partner={config.partner.name} plays {', '.join(engine.roles)}, and is not trained")
    return dict.fromkeys(engine.roles, partner)
