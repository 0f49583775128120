"""A model's weights in memory that several processes share."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tensors lie in the shared memory."""

    tensors: Mapping[str, tuple[int, tuple[int, ...], torch.dtype]]
    """For each name, the offset in bytes, the shape and the type."""
    size: int
    """Number of bytes of the memory."""

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> Layout:
        """The layout of a ``state_dict``. Tied tensors are stored once, under their first name."""
        tensors, seen, end = {}, set(), 0
        for name, tensor in state.items():
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                tensors[name] = (end, tuple(tensor.shape), tensor.dtype)
                end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        return cls(tensors, max(end, 1))


def create(layout: Layout) -> int:
    """Reserve the memory, and return its file descriptor. The last process to close it frees it."""
    fd = os.memfd_create("turnwise-weights", os.MFD_CLOEXEC)
    os.ftruncate(fd, layout.size)
    return fd


def tensors(fd: int, layout: Layout) -> dict[str, Tensor]:
    """The tensors in the memory ``fd``. Writing to them is seen by every process at once."""
    memory = memoryview(mmap.mmap(fd, layout.size))
    found = {}
    for name, (offset, shape, dtype) in layout.tensors.items():
        count = torch.Size(shape).numel()
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)
        found[name] = flat.view(shape)
    return found


def write(target: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Copy the weights ``state`` into ``target``, the tensors of the shared memory."""
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(state[name])
