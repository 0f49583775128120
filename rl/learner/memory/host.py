"""Copies tensors of a device to the host's memory, or moves them there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

Key = tuple[str, int]
"""Name and number of a tensor. Tensors with equal keys use one buffer in turn."""


class HostBuffers:
    """Buffers in the host's memory, which are reused for copies of a GPU's tensors.

    The buffers are pinned: a GPU copies to pinned memory at the bus's full speed, but pinning takes
    longer than a copy. Copies of a CPU's tensors are plain tensors, freed after use.
    """

    def __init__(self) -> None:
        self._pinned: dict[Key, Tensor] = {}

    @torch.no_grad()
    def copies(self, tensors: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
        """A copy of each tensor, in the host's memory.

        A copy of a GPU's tensor is valid until the next copy with the same key overwrites it.
        """
        copies = {
            key: self._buffer(key, x).copy_(x, non_blocking=True) for key, x in tensors.items()
        }
        for device in {x.device for x in tensors.values() if x.is_cuda}:
            torch.cuda.synchronize(device)
        return copies

    def take(self, tensors: Mapping[Key, Tensor]) -> int:
        """Move the tensors to the host, in place.

        Returns the number of bytes freed on the device.
        """
        for key, copied in self.copies(tensors).items():
            tensors[key].data = copied
        return sum(x.nbytes for x in tensors.values())

    def _buffer(self, key: Key, x: Tensor) -> Tensor:
        if not x.is_cuda:
            return torch.empty_like(x, requires_grad=False)
        buffer = self._pinned.get(key)
        if buffer is None or (buffer.shape, buffer.dtype) != (x.shape, x.dtype):
            buffer = torch.empty_like(x, device="cpu", pin_memory=True, requires_grad=False)
            self._pinned[key] = buffer
        return buffer


def bring_back(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Move the tensors back to ``device``, in place, after :meth:`HostBuffers.take`."""
    for x in tensors:
        x.data = x.detach().to(device, non_blocking=True)
