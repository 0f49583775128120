"""Copies tensors of a device to the host's memory, or moves them there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

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


class WaitingWeights:
    """The weights of a model that only scores, which can wait in the host's memory.

    The host's copy is made once and stays, so that only the way to the device takes time. The
    weights may change only while they wait.

    Args:
        model: a model on its device.
    """

    def __init__(self, model: nn.Module) -> None:
        parameters = list(model.parameters())
        self._device = parameters[0].device
        self._weights: dict[Key, Tensor] = {("", i): p for i, p in enumerate(parameters)}
        self._copies: dict[Key, Tensor] = {}
        self.waits = False
        """Whether the weights are in the host's memory."""

    def offload(self) -> None:
        """Free the device's memory."""
        if not self._copies:
            self._copies = HostBuffers().copies(self._weights)
        for key, copied in self._copies.items():
            self._weights[key].data = copied
        self.waits = True

    def onload(self) -> None:
        """Move the weights back to their device, if they wait."""
        if self.waits:
            bring_back(self._weights.values(), self._device)
        self.waits = False


def bring_back(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Move the tensors back to ``device``, in place, after :meth:`HostBuffers.take`."""
    for x in tensors:
        x.data = x.detach().to(device, non_blocking=True)
