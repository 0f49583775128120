"""A forward pass's input, and what the engine needs from a forward pass."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]


class Batch(NamedTuple):
    """Input of one forward pass: a token for each of the first rows, chunks for the next rows."""

    decode_ids: Ints
    """``[D]``: the newest token of rows 0 .. D-1."""
    chunk_ids: Ints
    """``[P, C]``: tokens of rows D .. D+P-1, right-padded."""
    chunk_sizes: Ints
    """``[P]``: number of tokens without padding. Padding is computed but never read."""
    starts: Ints
    """``[D + P]``: number of cached positions of each row before this forward pass."""


class Forward(Protocol):
    """Computes batches, and caches the keys and values of ``R`` rows. A new object has no rows."""

    kind: str
    shares_rows: bool
    """Whether rows can be shortened and copied to one another."""

    def reserve(self, num_rows: int, capacity: int) -> None:
        """Give the cache ``num_rows`` rows of ``capacity`` positions.

        Cached values are kept where both the former and the new cache have the row and position.
        """
        ...

    def run(self, batch: Batch) -> Tensor:
        """Logits of the decoding rows, ``[D, V]`` in fp32."""
        ...

    def experts(self, row: int, length: int) -> NDArray[np.integer[Any]] | None:
        """The experts that computed the first ``length`` tokens of a row: ``[length, layers, k]``.

        None if they are not recorded.
        """
        ...

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange two rows, which use at most ``length`` positions."""
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of row ``source`` to row ``target``."""
        ...

    def clear(self, row: int) -> None:
        """Empty the row."""
        ...

    def reset(self) -> None:
        """Empty every row, and free the cache's memory."""
        ...

    def refresh(self) -> None:
        """Recompute everything that depends on the weights, which changed."""
        ...
