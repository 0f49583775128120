"""Counts the memory of a computation without using it, on tensors that have shapes but no data.

A formula for activations would hold for one architecture and would age with the learner's code.
Here the learner's own code runs on fake tensors instead (``torch._subclasses.fake_tensor``), and
each new storage counts until it is freed.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import masking_utils


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of storages that operations in this context made and that still exist."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}

    def count(self, tensors: Iterable[Tensor]) -> int:
        """Count tensors that exist already, and return the number of bytes added."""
        before = self.now
        for tensor in tensors:
            self._add(tensor)
        return self.now - before

    def restart(self) -> None:
        """Reset the peak to the current number of bytes."""
        self.peak = self.now

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.now -= self._sizes.pop(key)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self._add(leaf)
        return made


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """Context in which new tensors have shapes and no data."""
    # Transformers reads the positions to find packed rows, and makes a mask of T x T if the
    # positions have no data. The learner's rows need no such mask.
    no_search = mock.patch.object(masking_utils, "find_packed_sequence_indices", lambda ids: None)
    with no_search, FakeTensorMode(allow_non_fake_inputs=True):
        yield


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' storages. A shared storage counts once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def gib(size: float) -> str:
    """A size in GiB, with one digit after the point."""
    return f"{size / 2**30:.1f} GiB"
