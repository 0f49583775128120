"""The seconds of a run by lane and state, with those of its collectors."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from rl.run.process.ledger import IDLE

_WALL = "time/wall"


def with_collectors(
    own: Mapping[str, float], reported: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """The seconds of a run's process and of its collectors, as those of one process.

    Of the own idle seconds of a lane, as many become busy as in the busiest collector. They are
    divided among the states as the busy seconds of all collectors are. The states of each lane
    still add up to the wall time.

    Args:
        own: seconds by ``time/LANE/STATE``, and the wall time; see ``Activities.take``.
        reported: those of each collector.
    """
    result = dict(own)
    for lane, seconds in _busy_by_lane(reported).items():
        states: Counter[str] = Counter()
        for one in seconds:
            states.update(one)
        total = states.total()
        idle = f"time/{lane}/{IDLE}"
        busy = min(result.get(idle, own[_WALL]), max(sum(one.values()) for one in seconds))
        result[idle] = result.get(idle, own[_WALL]) - busy
        for state, share in states.items():
            name = f"time/{lane}/{state}"
            result[name] = result.get(name, 0.0) + busy * share / total
    return result


def _busy_by_lane(reported: Sequence[Mapping[str, float]]) -> dict[str, list[dict[str, float]]]:
    """For each lane with busy seconds, each collector's seconds by state."""
    lanes: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    for one in reported:
        own: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for key, seconds in one.items():
            if key != _WALL and seconds > 0:
                _, lane, state = key.split("/")
                if state != IDLE:
                    own[lane][state] = seconds
        for lane, states in own.items():
            lanes[lane].append(states)
    return lanes
