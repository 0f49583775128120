"""Rows of data that are learned from, and rows that are held out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np


class Prompted(Protocol):
    """What begins with a prompt."""

    @property
    def prompt(self) -> tuple[Any, ...]:
        """All that was said before the answer."""
        ...


P = TypeVar("P", bound=Prompted)


def split_by_prompt(rows: Sequence[P], share: float, seed: int) -> tuple[list[P], list[P]]:
    """Those to learn from, and those held out; a prompt's are all on one side.

    Args:
        rows: comparisons or labelled solutions, in any order.
        share: of the prompts that are held out; at least one prompt stays on either side.
        seed: of the choice.

    Raises:
        ValueError: there is one prompt only, so that nothing could be held out.
    """
    prompts = list(dict.fromkeys(row.prompt for row in rows))
    if len(prompts) < 2:
        raise ValueError(
            "data has one prompt only, and held_out takes whole prompts: give it two or more"
        )
    count = min(max(1, round(share * len(prompts))), len(prompts) - 1)
    chosen = np.random.default_rng(seed).permutation(len(prompts))[:count]
    held = {prompts[i] for i in chosen.tolist()}
    learned = [row for row in rows if row.prompt not in held]
    return learned, [row for row in rows if row.prompt in held]
