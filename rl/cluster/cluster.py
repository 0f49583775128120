"""Starts a run's processes on this machine; :mod:`rl.cluster.ray_cluster` does so elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from agents.serving import EngineRunner, ServerProcess, WeightPublisher
    from rl.cluster.child import ChildProcess
    from rl.learner.ranks.process import RankGroup


class Cluster:
    """This machine, where the run's own process is, too."""

    assigns_gpus = False
    """Whether the cluster assigns GPUs to servers. Otherwise the policy does."""
    sandboxes = ""
    """URLs of the cluster's sandbox servers, separated by commas; empty if it has none."""

    def start_ranks(self, size: int) -> RankGroup:
        """Start ``size`` ranks of the learner, and block until they are connected.

        Raises:
            LearnerLost: a rank cannot be started.
        """
        from rl.learner.ranks.process import start_here

        return start_here(size)

    def start_collector(self, number: int, printed: Path) -> ChildProcess:
        """Start a collector, and block until it is connected.

        Args:
            number: the collector's number, from 0.
            printed: file that receives what it prints, if it is on this machine.

        Raises:
            LearnerLost: it cannot be started.
        """
        from rl.cluster.child import LocalChild

        return LocalChild(f"collector {number}", "rl.collectors.process", number, printed, {})

    def server(self, number: int, process: ServerProcess) -> EngineRunner:
        """What starts the policy's server with this number, and ends it."""
        return process

    def publisher(self, publisher: WeightPublisher) -> WeightPublisher:
        """A publisher whose weights each server of the cluster sees."""
        return publisher


THIS_MACHINE = Cluster()
"""The cluster of a run whose processes are all here."""
