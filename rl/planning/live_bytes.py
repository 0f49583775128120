"""Counts the memory of a computation without using it, on tensors that have shapes but no data.

A formula for activations would hold for one architecture and would age with the learner's code.
Here the learner's own code runs on fake tensors instead (``torch._subclasses.fake_tensor``), and
each new storage counts until it is freed.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Self
from unittest import mock

import torch.distributed as dist
from torch import Tensor, UntypedStorage
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
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
        self._watching = contextlib.ExitStack()

    def __enter__(self) -> Self:
        resize = UntypedStorage.resize_

        def resized(storage: UntypedStorage, size: int) -> Any:
            found = resize(storage, size)
            self._measure(storage)
            return found

        # FSDP2 frees gathered weights so, which is no operation on tensors.
        self._watching.enter_context(mock.patch.object(UntypedStorage, "resize_", resized))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *ending: Any) -> None:
        super().__exit__(*ending)  # type: ignore[no-untyped-call]
        self._watching.close()

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
        storage = _own(tensor).untyped_storage()
        if storage._cdata not in self._sizes:
            self._sizes[storage._cdata] = 0
            self._measure(storage)
            weakref.finalize(storage, self._free, storage._cdata)

    def _measure(self, storage: UntypedStorage) -> None:
        """Count the current size of a storage that is counted."""
        if (former := self._sizes.get(storage._cdata)) is not None:
            self._sizes[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes() - former
            self.peak = max(self.peak, self.now)

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


@contextlib.contextmanager
def pretended_ranks(size: int) -> Iterator[DeviceMesh]:
    """The first of ``size`` ranks, whose exchanges with the others do nothing."""
    # Torch's own tests plan sharded models with it. It has no public name.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield init_device_mesh("cpu", (size,))
    finally:
        dist.destroy_process_group()


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' storages, of divided tensors this rank's. A shared one counts once."""
    storages = [_own(tensor).untyped_storage() for tensor in tensors]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def _own(tensor: Tensor) -> Tensor:
    """A tensor, or this rank's part of it."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def gib(size: float) -> str:
    """A size in GiB, with one digit after the point."""
    return f"{size / 2**30:.1f} GiB"
