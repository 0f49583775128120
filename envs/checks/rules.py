"""The rules of :func:`envs.check_env`.

Each rule yields its violations. A rule that raises an exception counts as broken. Rules play copies
of the environment (``env.group``) and other instances with the same options; the environment itself
stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from envs.checks.copies import copies, faces, pickles, side_by_side
from envs.checks.episodes import determinism, gymnasium_check, info, order, splits, terminal, types
from envs.checks.neighbours import group, interleaved, no_leak, threads
from envs.checks.probe import Probe
from envs.checks.resources import close, free_loop
from envs.checks.rewards import floor, gold, low_floor, rewards
from envs.checks.tools import tools

RULES: dict[str, Callable[[Probe], Iterator[str]]] = {
    # First: the other rules take long if a turn blocks.
    "free loop": free_loop,
    "types": types,
    "determinism": determinism,
    "splits": splits,
    "no leak": no_leak,
    "group": group,
    "interleaved": interleaved,
    "threads": threads,
    "order": order,
    "last observation": terminal,
    "tools": tools,
    "gold policy": gold,
    "reward floor": floor,
    "low floor": low_floor,
    "rewards": rewards,
    "info": info,
    "copies": copies,
    "pickle": pickles,
    "side by side": side_by_side,
    "faces": faces,
    "gymnasium": gymnasium_check,
    "close": close,
}
"""Every rule by name."""
