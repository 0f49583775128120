"""Seconds and bytes on a device."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.gpu.figures import Setup


def synchronize(setup: Setup) -> None:
    """Wait until the device has done all its work."""
    if setup.on_gpu:
        torch.cuda.synchronize(torch.device(setup.device))


def seconds_of(work: Callable[[], object], setup: Setup, repeats: int = 10, warm: int = 3) -> float:
    """Median seconds of a call after ``warm`` calls, until the device has done its work."""
    for _ in range(1 if setup.small else warm):
        work()
    times = []
    for _ in range(2 if setup.small else repeats):
        synchronize(setup)
        start = time.perf_counter()
        work()
        synchronize(setup)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


class Memory:
    """Bytes of the device that torch holds. On a CPU everything is None."""

    def __init__(self, setup: Setup) -> None:
        self._device = torch.device(setup.device) if setup.on_gpu else None

    def restart(self) -> None:
        """Give unused memory back, and forget the peaks so far."""
        gc.collect()  # Models may be parts of circles.
        if self._device is not None:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)

    def allocated(self) -> int | None:
        """Bytes of all tensors."""
        return None if self._device is None else torch.cuda.memory_allocated(self._device)

    def peak(self) -> int | None:
        """The largest number of bytes of tensors since :meth:`restart`."""
        return None if self._device is None else torch.cuda.max_memory_allocated(self._device)

    def reserved(self) -> int | None:
        """The largest number of bytes that the allocator held since :meth:`restart`."""
        return None if self._device is None else torch.cuda.max_memory_reserved(self._device)

    def context(self) -> int | None:
        """Bytes in use outside of torch's allocator: CUDA's context, and other processes."""
        if self._device is None:
            return None
        free, total = torch.cuda.mem_get_info(self._device)
        return int(total - free - torch.cuda.memory_reserved(self._device))


def gib(size: int | None) -> float | None:
    """Bytes as GiB."""
    return None if size is None else size / 2**30
