"""Assigns GPUs to the servers that a run starts, so that no two share one by accident."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl.errors import UsageError

if TYPE_CHECKING:
    import torch

    from rl.policies.engine import RunSettings

VARIABLE = "CUDA_VISIBLE_DEVICES"


class TooFewGPUs(ValueError):
    """Raised if the servers need more GPUs than the learner leaves.

    Attributes:
        fits: the number of servers for which there are GPUs.
    """

    def __init__(self, message: str, fits: int) -> None:
        super().__init__(message)
        self.fits = fits


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers that a run starts."""

    count: int
    gpus_each: int = 1
    """Number of GPUs of one server, such as 2 for ``--tensor-parallel-size 2``."""
    share: bool = False
    """Whether the servers run on the learner's GPU."""
    ranks: int = 1
    """Number of GPUs of the learner: its own, or with several ranks the first ones."""


def ranks_of(config: RunSettings) -> int:
    """Number of processes of the run's learner, each with a GPU."""
    return config.effective_learner.settings.ranks


def on_cluster(config: RunSettings) -> bool:
    """Whether a cluster places the run's processes, instead of this machine."""
    return config.cluster.name != "local"


def visible_gpus() -> list[str]:
    """The GPUs that this process sees, each as ``CUDA_VISIBLE_DEVICES`` names it.

    A name is a number, or a UUID such as ``GPU-8932f937...`` or ``MIG-...``.
    """
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get(VARIABLE)
    if named is None:
        return [str(number) for number in range(count)]
    # CUDA ignores every name after an unknown one, so the list may be longer than the count.
    return [name.strip() for name in named.split(",")][:count]


def gpus_of_servers(learner: torch.device, servers: Servers, visible: list[str]) -> list[str]:
    """The value of ``CUDA_VISIBLE_DEVICES`` for each server.

    Servers that do not share the learner's GPU get the other GPUs, in order.

    Raises:
        TooFewGPUs: too few GPUs are visible.
    """
    own = (learner.index or 0) if servers.ranks == 1 else 0
    if servers.share:
        return visible[own : own + 1] * servers.count
    taken = range(own, own + servers.ranks)
    free = [name for number, name in enumerate(visible) if number not in taken]
    each = servers.gpus_each
    if len(free) < servers.count * each:
        raise TooFewGPUs(
            f"{servers.count} server(s) need {servers.count * each} GPU(s) beside the learner's, "
            f"{learner}; this process sees {len(visible)} in total ({_named(visible)})",
            len(free) // each,
        )
    return [",".join(free[n * each : (n + 1) * each]) for n in range(servers.count)]


def gpus_or_remedy(learner: torch.device, servers: Servers, remedy: str) -> list[str]:
    """:func:`gpus_of_servers` with this process's GPUs.

    Args:
        learner: the learner's device.
        servers: the servers that the run starts.
        remedy: settings with which one server needs no GPU of its own.

    Raises:
        UsageError: too few GPUs are visible, or servers that share a GPU need several.
    """
    if servers.share and servers.count * servers.gpus_each > 1:
        raise UsageError(
            f"policy.replicas ({servers.count}) must be 1, with one GPU ({servers.gpus_each} by "
            f"policy.arguments), for a server that shares the learner's GPU"
        )
    try:
        return gpus_of_servers(learner, servers, visible_gpus())
    except TooFewGPUs as error:
        one = "" if servers.count == 1 else "policy.replicas=1 "
        fix = f"policy.replicas={error.fits}" if error.fits else f"{one}{remedy}"
        raise UsageError(f"policy.replicas ({servers.count}): {error}: give {fix}") from error


def _named(visible: list[str]) -> str:
    return f"{VARIABLE}={','.join(visible)}" if VARIABLE in os.environ else f"{VARIABLE} is not set"
