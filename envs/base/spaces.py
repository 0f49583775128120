"""The space of all texts, which also supports the shared memory of Gymnasium's vectors."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector.utils import (
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)

SHARED_BYTES = 2**20
"""Maximum size of one environment's text in shared memory, in bytes of UTF-8."""
_LENGTH_BYTES = 4

_LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz "))


class Unicode(Space[str]):
    """The space of all ``str`` values. Gymnasium's Text space requires an alphabet and a length.

    Args:
        sample_length: length of samples, in characters.
    """

    def __init__(self, sample_length: int = 32, seed: int | None = None) -> None:
        super().__init__(shape=(), dtype=None, seed=seed)
        self.sample_length = sample_length

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """A random text of lower-case letters and spaces.

        Raises:
            ValueError: a mask or probability was passed; texts support neither.
        """
        if mask is not None or probability is not None:
            raise ValueError("the space of all texts takes no mask and no probability")
        return "".join(self.np_random.choice(_LETTERS, self.sample_length))

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a text."""
        return isinstance(x, str)

    @property
    def is_np_flattenable(self) -> bool:
        """Always False, because a text has no array form of fixed size."""
        return False

    def __repr__(self) -> str:
        return "Unicode()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unicode)

    __hash__ = None  # type: ignore[assignment]


class SharedTexts(Sequence[str]):
    """A view of the texts in shared memory; a deep copy is a tuple of texts.

    Gymnasium requests the view once, and expects it to show all later changes of the memory.
    """

    def __init__(self, memory: Any, count: int) -> None:
        self._bytes = memoryview(memory).cast("B")
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        """One text, or a tuple of a slice's texts."""
        chosen = range(self._count)[index]
        return self._text(chosen) if isinstance(chosen, int) else tuple(map(self._text, chosen))

    def __iter__(self) -> Iterator[str]:
        return map(self._text, range(self._count))

    def __deepcopy__(self, memo: Any) -> tuple[str, ...]:
        return tuple(self)

    def _text(self, index: int) -> str:
        start = index * SHARED_BYTES
        text = start + _LENGTH_BYTES
        length = int.from_bytes(self._bytes[start:text], "little")
        return bytes(self._bytes[text : text + length]).decode("utf-8", "surrogatepass")


@create_shared_memory.register(Unicode)
def _create(space: Unicode, n: int = 1, ctx: Any = multiprocessing) -> Any:
    # The kernel allocates only touched pages.
    return ctx.RawArray("c", n * SHARED_BYTES)


@read_from_shared_memory.register(Unicode)
def _read(space: Unicode, shared_memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(shared_memory, n)


@write_to_shared_memory.register(Unicode)
def _write(space: Unicode, index: int, value: str, shared_memory: Any) -> None:
    encoded = value.encode("utf-8", "surrogatepass")
    if len(encoded) > SHARED_BYTES - _LENGTH_BYTES:
        raise ValueError(
            f"an observation of {len(encoded)} bytes is more than shared memory holds "
            f"({SHARED_BYTES - _LENGTH_BYTES}): make_vec(..., vector_kwargs="
            f'{{"shared_memory": False}})'
        )
    start = index * SHARED_BYTES
    written = len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded
    memoryview(shared_memory).cast("B")[start : start + len(written)] = written
