"""Faults of a run whose servers, ranks and collectors are on another machine."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.serving.chaos import GONE_S, Plan
from benchmarks.serving.chaos_faults import SERVER, signalled
from benchmarks.serving.chaos_run import Elsewhere, Way
from benchmarks.serving.far_machine import FarMachine, until

RANK = ("RankActor",)
"""The command line of a rank contains this."""
COLLECTOR = ("CollectorActor",)
"""The command line of a collector contains this."""
LOST_S = 30.0
"""Seconds after which a machine that is cut off has long counted as lost."""
MOMENT_S = 3.0
"""Seconds of a cut that a machine survives."""


@contextmanager
def far_machine(folder: Path) -> Iterator[Elsewhere]:
    """Another machine, with the run's ranks, servers and collectors.

    Args:
        folder: for the logs of Ray's daemons.
    """
    with FarMachine(folder, cpus=6, lost_soon=True) as far:

        def to(names: Sequence[str], number: signal.Signals) -> Way:
            def send(_: int, rng: random.Random) -> str:
                until(lambda: bool(far.running(*names)))
                return signalled(far.running(*names), rng, number)

            return send

        def lose(_: int, rng: random.Random) -> str:
            far.cut()
            time.sleep(LOST_S)
            far.heal()
            far.restart()
            return f"for {LOST_S:g} s, and Ray started again there"

        def cut(_: int, rng: random.Random) -> str:
            far.cut()
            time.sleep(MOMENT_S)
            far.heal()
            return f"for {MOMENT_S:g} s"

        def left() -> dict[str, list[str]]:
            end = time.monotonic() + GONE_S
            while (found := _left(far)) and time.monotonic() < end:
                time.sleep(1.0)
            return {"on the other machine": found}

        yield Elsewhere(
            words=["cluster=ray", f"cluster.address={far.address}"],
            environment=far.environment,
            faults={
                "kill the server": to(SERVER, signal.SIGKILL),
                "hang a server": to(SERVER, signal.SIGSTOP),
                "kill a rank": to(RANK, signal.SIGKILL),
                "hang a rank": to(RANK, signal.SIGSTOP),
                "kill a collector": to(COLLECTOR, signal.SIGKILL),
                "lose the machine": lose,
                "cut the network": cut,
            },
            left=left,
        )


def _left(far: FarMachine) -> list[str]:
    """Processes and weights of a run on the other machine."""
    processes = [f"process {pid}" for pid in far.running(*SERVER, *RANK, *COLLECTOR)]
    return processes + far.shared_memory("chaos-*/*")


CLUSTER = Plan(
    faults={
        "kill the server": 4,
        "hang a server": 1,
        "kill a rank": 4,
        "hang a rank": 1,
        "kill a collector": 4,
        "lose the machine": 2,
        "cut the network": 2,
        "kill the learner": 2,
        "fill the disk": 1,
    },
    words=[
        *("learner.ranks=2", "learner.timeout_s=30", "learner.restarts=100"),
        *("policy.replicas=2", "collectors=2"),
    ],
    elsewhere=far_machine,
)
