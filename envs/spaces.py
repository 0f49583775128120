"""The space of all texts."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Space

_LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz "))


class Unicode(Space[str]):
    """Any ``str``. Gymnasium's own Text space knows only a listed alphabet and a length.

    Args:
        sample_length: length of what :meth:`sample` draws, in characters.
    """

    def __init__(self, sample_length: int = 32, seed: int | None = None) -> None:
        super().__init__(shape=(), dtype=None, seed=seed)
        self.sample_length = sample_length

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Lower-case letters and spaces, uniformly.

        Raises:
            ValueError: a mask or probability is given; a text has none.
        """
        if mask is not None or probability is not None:
            raise ValueError("the space of all texts takes no mask and no probability")
        return "".join(self.np_random.choice(_LETTERS, self.sample_length))

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a text."""
        return isinstance(x, str)

    @property
    def is_np_flattenable(self) -> bool:
        """False: a text has no fixed-size array form."""
        return False

    def __repr__(self) -> str:
        return "Unicode()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unicode)

    __hash__ = None  # type: ignore[assignment]
