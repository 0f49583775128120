"""What changed between two versions of published weights, for machines elsewhere.

A step at a small learning rate moves most bfloat16 weights by less than half of their last digit,
so that few of them change.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST_SHARE = 0.5
"""A delta of more than this share of the file is not worth its work."""
_CHUNK = 2**26
"""Words that are compared at once."""
_FAR = 2**16 - 1
Words = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Delta:
    """The words of 16 bits that differ between two files of the same size."""

    gaps: Words
    """Distance of each word from the one before it; the first from word -1."""
    words: Words
    """The new words."""
    digest: str
    """SHA-256 of the new file."""


def delta_of(old: bytes, new: bytes) -> Delta | None:
    """The delta from ``old`` to ``new``; None if the files differ in size or in too many words."""
    if len(old) != len(new) or len(new) % 2:
        return None
    before, after = np.frombuffer(old, np.uint16), np.frombuffer(new, np.uint16)
    found = [
        first + np.flatnonzero(before[first : first + _CHUNK] != after[first : first + _CHUNK])
        for first in range(0, len(after), _CHUNK)
    ]
    places = _with_stops(np.concatenate([np.empty(0, np.int64), *found]))
    if 2 * len(places) > _MOST_SHARE * len(after):
        return None
    gaps = np.diff(places, prepend=-1).astype(np.uint16)
    return Delta(gaps, after[places], hashlib.sha256(new).hexdigest())


def applied(old: bytes, delta: Delta) -> bytes | None:
    """The new file; None if ``old`` is not the file from which the delta was made."""
    words = np.frombuffer(old, np.uint16).copy() if len(old) % 2 == 0 else np.empty(0, np.uint16)
    places = np.cumsum(delta.gaps, dtype=np.int64) - 1
    if len(places) and places[-1] >= len(words):
        return None
    words[places] = delta.words
    new = words.tobytes()
    return new if hashlib.sha256(new).hexdigest() == delta.digest else None


def _with_stops(places: NDArray[Any]) -> NDArray[Any]:
    """Increasing places, with further ones wherever a gap would have more than 16 bits."""
    gaps = np.diff(places, prepend=-1)
    far = np.flatnonzero(gaps > _FAR)
    if not len(far):
        return places
    stops = [
        np.arange(places[i] - gaps[i] + _FAR, places[i], _FAR)
        for i in far  # At most one for each 65,535 words.
    ]
    return np.sort(np.concatenate([places, *stops]))
