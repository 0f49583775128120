"""The placement of a run on a number of GPUs: the fastest split into samplers and learner."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rl.errors import UsageError
from rl.planning.costs import Costs
from rl.planning.gpus import NETWORK, NODE, Gpu
from rl.planning.step_time import (
    CONTROLLER,
    ENVIRONMENT,
    GENERATE,
    LEARN,
    SYNC,
    TAIL,
    Setup,
    StepTime,
    Work,
    predict,
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a placement may use."""

    gpus: int
    gpu: Gpu
    """Decides the bandwidth between the learner's ranks."""
    tensor: int = 1
    """Number of GPUs of a sampler."""
    least_ranks: int = 1
    """The fewest GPUs that hold the learner."""
    ranks: int = 0
    """The learner's GPUs; 0: the number with the fastest step."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A placement and its predicted step."""

    cluster: Cluster
    setup: Setup
    time: StepTime

    @property
    def shares(self) -> bool:
        """Whether samplers and learner take turns on the same GPUs."""
        return self.setup.staleness == 0

    @property
    def tokens_per_gpu(self) -> float:
        """Sampled tokens a second for each GPU."""
        return self.time.tokens / self.time.step_s / self.cluster.gpus

    @property
    def environments(self) -> float:
        """Mean number of environments that answer at the same time, over the step."""
        return self.time.environment_s / self.time.step_s


def place(work: Work, costs: Costs, setup: Setup, cluster: Cluster) -> Placement:
    """The placement with the fastest step.

    Without staleness, samplers and learner take turns on all GPUs. Otherwise each has GPUs of its
    own, and the split is searched: more GPUs for the learner make its part faster and the rollouts
    slower.

    Args:
        work: what an update asks for.
        costs: the costs of the parts.
        setup: the settings of the run; its numbers of samplers and ranks are not read.
        cluster: the GPUs.

    Raises:
        UsageError: the GPUs do not suffice.
    """
    least = max(cluster.least_ranks, cluster.ranks)
    if setup.staleness == 0:
        if cluster.gpus < max(least, cluster.tensor):
            raise UsageError(_too_few(cluster, max(least, cluster.tensor)))
        return _at(work, costs, setup, cluster, cluster.gpus)
    if cluster.gpus < least + cluster.tensor:
        raise UsageError(_too_few(cluster, least + cluster.tensor))
    if cluster.ranks:
        return _at(work, costs, setup, cluster, cluster.ranks)
    candidates = _candidates(cluster)
    low, high = 0, len(candidates) - 1
    tried: list[Placement] = []
    while low <= high:
        middle = (low + high) // 2
        tried.append(_at(work, costs, setup, cluster, candidates[middle]))
        # The learner waits for episodes: the samplers need GPUs more.
        if tried[-1].time.wait_s > tried[-1].time.idle_s:
            high = middle - 1
        else:
            low = middle + 1
    return min(tried, key=lambda one: one.time.step_s)


def _candidates(cluster: Cluster) -> list[int]:
    """Numbers of the learner's GPUs: each number in two nodes, and whole nodes beyond."""
    most = cluster.gpus - cluster.tensor
    counts = [n for n in range(cluster.least_ranks, most + 1) if n <= 2 * NODE or n % NODE == 0]
    return counts or [cluster.least_ranks]


def _at(work: Work, costs: Costs, setup: Setup, cluster: Cluster, ranks: int) -> Placement:
    left = cluster.gpus if setup.staleness == 0 else cluster.gpus - ranks
    bandwidth = cluster.gpu.link if ranks <= NODE else cluster.gpu.network
    placed = replace(
        setup,
        samplers=left // cluster.tensor,
        ranks=ranks,
        bandwidth=bandwidth * NETWORK,
    )
    return Placement(cluster, placed, predict(work, costs, placed))


def _too_few(cluster: Cluster, needed: int) -> str:
    return (
        f"gpus={cluster.gpus} is too few: the learner needs {cluster.least_ranks} and a sampler "
        f"{cluster.tensor}, so give gpus={needed} or more, or a smaller model"
    )


def advice(placement: Placement) -> str:
    """What moves the bottleneck of a placement."""
    time, setup = placement.time, placement.setup
    part = time.bottleneck
    if part == TAIL:
        share = time.tail_s / time.step_s
        what = "play ahead of the learner" if setup.staleness == 0 else "raise staleness"
        word = f"staleness={setup.staleness + 1}"
        return f"{share:.0%} of the step waits for the longest episodes: {what} ({word})"
    if part == ENVIRONMENT:
        return (
            f"{placement.environments:.0f} environments answer at once: serve them from more "
            "machines (env.sandbox, env.retriever), and let slow ones wait beside others "
            f"(staleness={setup.staleness + 1})"
        )
    if part == CONTROLLER:
        rollouts, update = (
            sum(time.parts[name] for name in names)
            for names in ((GENERATE, ENVIRONMENT), (LEARN, SYNC))
        )
        rest = max(rollouts, update) if setup.staleness else rollouts + update
        # The controller then takes a quarter of the other parts' seconds.
        needed = math.ceil(4 * time.loop_s / max(1e-9, rest))
        if needed > setup.collectors:
            return (
                f"the event loop is full: play the episodes in more processes (collectors={needed})"
            )
        return "the rewards and files of all episodes fill the run's process: fewer prompts"
    if part == SYNC:
        return "send less: an adapter (lora.rank=16), or only the elements that changed"
    if part == LEARN:
        return _learner_advice(placement)
    if time.rows < setup.slots / 4:
        more = f", or raise staleness ({setup.staleness + 1})" if setup.staleness else ""
        return f"{time.rows:.0f} rows decode on a sampler: give more tasks a step (prompts){more}"
    return "the samplers are full: more GPUs shorten the step"


def _learner_advice(placement: Placement) -> str:
    setup, time = placement.setup, placement.time
    if time.gathers:
        tokens = 2 * setup.micro_batch_tokens
        return (
            "the ranks wait for weights from each other: raise micro_batch_tokens "
            f"({tokens}), or prompts"
        )
    if time.row_bound:
        return "one row keeps a rank busy: more tasks a step (prompts), or shorter episodes"
    return "the learner computes all the time: more GPUs for it (learner.ranks)"
