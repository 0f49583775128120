"""Keys and values of rows."""

from __future__ import annotations

import torch
from torch import Tensor


class KeyValueCache:
    """Keys and values of rows, in every layer.

    Args:
        weight: a weight of the model, which gives type and device.
        num_layers: number of layers.
        num_heads: number of key-value heads.
        head_dim: size of a head.
    """

    def __init__(self, weight: Tensor, num_layers: int, num_heads: int, head_dim: int) -> None:
        self._empty = weight.new_empty(0)
        self._heads = (num_heads, head_dim)
        self.keys: list[Tensor] = [self._empty.view(0, num_heads, 0, head_dim)] * num_layers
        """Keys of each layer, ``[R, heads, capacity, head_dim]``.

        In fp32, the positions are adjacent in memory: the product of few queries with all keys is
        then up to twice as fast. The fused kernel of the other types needs adjacent dimensions."""
        self.values = list(self.keys)
        """Values of each layer, ``[R, heads, capacity, head_dim]``."""
        self.num_rows = self.capacity = 0

    @property
    def num_heads(self) -> int:
        """Number of key-value heads."""
        return self._heads[0]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the keys and values."""
        return self._empty.dtype

    @property
    def device(self) -> torch.device:
        """Device of the keys and values."""
        return self._empty.device

    @property
    def position_bytes(self) -> int:
        """Bytes of the keys and values of one position in one layer."""
        heads, head_dim = self._heads
        return 2 * heads * head_dim * self.dtype.itemsize

    def empty(self) -> KeyValueCache:
        """A cache of the same kind without rows."""
        return KeyValueCache(self._empty, len(self.keys), *self._heads)

    def resize(self, num_rows: int, capacity: int) -> None:
        """Change the numbers of rows and of positions per row. Values that fit are kept.

        Layers are replaced one by one, so that memory never holds two whole caches.
        """
        heads, head_dim = self._heads
        # Zeros, because values beyond a row's length are masked, and masking needs finite values.
        for index in range(len(self.keys)):
            if self.dtype == torch.float32:
                wide = self._empty.new_zeros(num_rows, heads, head_dim, capacity)
                self.keys[index] = _kept(self.keys[index], wide.transpose(2, 3))
            else:
                keys = self._empty.new_zeros(num_rows, heads, capacity, head_dim)
                self.keys[index] = _kept(self.keys[index], keys)
            values = self._empty.new_zeros(num_rows, heads, capacity, head_dim)
            self.values[index] = _kept(self.values[index], values)
        self.num_rows, self.capacity = num_rows, capacity

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange two rows, which use at most ``length`` positions."""
        for cached in (*self.keys, *self.values):
            first, second = cached[a, :, :length], cached[b, :, :length]
            kept = first.clone()
            first.copy_(second)
            second.copy_(kept)

    def copy(self, origin: KeyValueCache, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of row ``source`` of ``origin`` to row ``target``."""
        for own, other in ((self.keys, origin.keys), (self.values, origin.values)):
            for layer, former in zip(own, other, strict=True):
                layer[target, :, :length] = former[source, :, :length]


def _kept(former: Tensor, resized: Tensor) -> Tensor:
    """``resized``, with the values of ``former`` that fit."""
    rows, width = min(len(former), len(resized)), min(former.shape[2], resized.shape[2])
    resized[:rows, :, :width] = former[:rows, :, :width]
    return resized
