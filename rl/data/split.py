"""Splits rows into training rows and held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np


class Prompted(Protocol):
    """A row with a prompt."""

    @property
    def prompt(self) -> tuple[Any, ...]:
        """Everything before the answer."""
        ...


P = TypeVar("P", bound=Prompted)


def split_by_prompt(rows: Sequence[P], share: float, seed: int) -> tuple[list[P], list[P]]:
    """Split rows into training rows and held-out rows. All rows of a prompt are on the same side.

    Args:
        rows: comparisons or labelled solutions, in any order.
        share: share of the prompts to hold out. Each side gets at least one prompt.
        seed: seed of the random choice.

    Raises:
        ValueError: all rows have the same prompt.
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
