"""Copies between the host and the learner's device, with as few waits as possible.

A GPU runs behind the host, which queues the GPU's work. The host stops at each copy from pageable
memory and at each number that Python reads, and the GPU then has nothing to do. Updates therefore
copy only with the functions of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

UPLOAD_BYTES = 2**28
"""Maximum size of one upload: 256 MiB, 4 million tokens. A larger item is an upload of its own."""
_ALIGNMENT = 16


class Movable(Protocol):
    """A group of tensors."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """A copy with ``change`` applied to every tensor."""
        ...


Item = TypeVar("Item", bound=Movable)


def uploaded(items: Sequence[Item], device: torch.device) -> Iterator[Item]:
    """Copies of the items on ``device``, one after the other.

    On a GPU, all tensors of the items travel as one copy of pinned memory, for which the host does
    not wait. Items that exceed :data:`UPLOAD_BYTES` together travel as several copies.
    """
    if device.type == "cpu":
        for item in items:
            yield item.map(lambda x: x)
        return
    tensors = [_tensors(item) for item in items]
    sizes = [[-(-x.nbytes // _ALIGNMENT) * _ALIGNMENT for x in group] for group in tensors]
    for span in _spans([sum(group) for group in sizes]):
        chosen = [x for i in span for x in tensors[i]]
        lengths = [size for i in span for size in sizes[i]]
        pinned = torch.empty(sum(lengths), dtype=torch.uint8, pin_memory=True)
        for part, x in zip(pinned.split(lengths), chosen, strict=True):
            _seen_as(part, x).copy_(x)
        parts = iter(pinned.to(device, non_blocking=True).split(lengths))
        for i in span:
            yield items[i].map(partial(_next_as, parts))


def read(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of the tensors on the host, as float64. The host waits for the device once."""
    if not tensors:
        return []
    flat = torch.cat([x.detach().double().flatten() for x in tensors])
    if flat.is_cuda:
        pinned = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
        pinned.copy_(flat, non_blocking=True)
        # Unlike a synchronising copy, an event is allowed by torch.cuda.set_sync_debug_mode.
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(flat.device))
        arrived.synchronize()
        flat = pinned
    parts = flat.split([x.numel() for x in tensors])
    return [part.view(x.shape) for part, x in zip(parts, tensors, strict=True)]


def _tensors(item: Movable) -> list[Tensor]:
    found: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        found.append(x)
        return x

    item.map(note)
    return found


def _spans(sizes: Sequence[int]) -> Iterator[range]:
    """Ranges of neighbouring items of at most :data:`UPLOAD_BYTES` together.

    A larger item has a range of its own.
    """
    first = total = 0
    for i, size in enumerate(sizes):
        if i > first and total + size > UPLOAD_BYTES:
            yield range(first, i)
            first, total = i, 0
        total += size
    if sizes:
        yield range(first, len(sizes))


def _next_as(parts: Iterator[Tensor], x: Tensor) -> Tensor:
    return _seen_as(next(parts), x)


def _seen_as(part: Tensor, x: Tensor) -> Tensor:
    """The first bytes of ``part``, seen as a tensor with the type and shape of ``x``."""
    return part[: x.nbytes].view(x.dtype).view(x.shape)
