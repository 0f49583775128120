"""Search with simulated latency: most answers are quick, a few are very slow."""

from __future__ import annotations

import asyncio
import math
import random

from envs.episode import Action, Reply
from envs.search.env import SearchQAEnv

MEAN_S, SIGMA = 0.2, 1.5
"""Of the log-normal latency: its mean is 0.2 s, its median 0.065 s; 1% take over 2.1 s."""


class SlowSearchEnv(SearchQAEnv):
    """``search-qa`` with a simulated latency before each turn's answer.

    Two episodes that ask the same wait differently, as callers of a busy service do.
    """

    async def turn(self, action: Action) -> Reply:
        """Wait, then answer."""
        await asyncio.sleep(_LATENCY.lognormvariate(math.log(MEAN_S) - SIGMA**2 / 2, SIGMA))
        return await super().turn(action)


_LATENCY = random.Random(0)
