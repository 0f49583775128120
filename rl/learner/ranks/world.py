"""The ranks that compute an update together, as an updater sees them; one process by default.

Each rank makes the same batch, the same advantages and the same optimizer steps. Only forward and
backward passes differ: a rank computes its share of the micro-batches. The ranks exchange scores
and the sums of metrics, so that each continues with the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Item = TypeVar("Item")
Keys = tuple[str | int, ...]
"""The keys that lead to a tensor in nested dictionaries."""
Place = tuple[Keys, tuple[int, ...]]
"""The keys that lead to a tensor, and its complete shape."""


class Root(nn.Module):
    """A module through which all forward passes go, so that ranks can divide its parameters."""

    also_forward: tuple[str, ...] = ()
    """Names of methods, besides ``forward``, that compute with the parameters."""

    def trunks(self) -> list[nn.Module]:
        """The transformers, whose layers are divided one by one."""
        raise NotImplementedError

    def precise(self) -> list[nn.Module]:
        """Modules that compute in the type of their weights, whatever the model's is."""
        return []


def nothing() -> None:
    """Do nothing: there is nothing to wait for."""


class World:
    """One process, which owns the whole model and computes every micro-batch.

    :class:`rl.learner.ranks.sharding.Ranks` is the world of several processes. Methods marked as
    collective must be called by all ranks in the same order.
    """

    rank = 0
    """This process's number, from 0."""
    size = 1
    """Number of ranks."""

    def shard(self, root: Root) -> None:
        """Divide the parameters of ``root`` among the ranks, in place. Collective."""

    def gather(self, value: Item) -> list[Item]:
        """The value of each rank, by rank. Collective."""
        return [value]

    def whole(self, x: Tensor) -> Tensor:
        """The complete tensor of which ``x`` may be this rank's part. Collective."""
        return x

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory for this rank's part of a tensor with this complete shape, on its device."""
        return torch.empty(*shape, dtype=dtype)

    def start_writing(
        self, state: Mapping[str, Any], folder: Path
    ) -> tuple[dict[str, Any], list[Place], Callable[[], None]]:
        """Copy this rank's parts of nested dictionaries, and begin to write them. Collective.

        Without ranks, nothing is divided, and nothing is written.

        Args:
            state: the dictionaries.
            folder: a folder on a file system that all ranks share; its parent exists.

        Returns:
            The dictionaries without divided tensors; the places of these; and a function that waits
            until all ranks have written, and raises what kept one from it.
        """
        return dict(state), [], nothing

    def own(self, x: Tensor) -> Tensor:
        """This rank's part of ``x``, which shares the memory of ``x``."""
        return x

    def part(self, whole: Tensor, like: Tensor) -> Tensor:
        """The part of a complete tensor that this rank keeps, divided as ``like`` is.

        A tensor of another shape, such as a count of steps, is not divided.
        """
        return whole

    def divided_as(self, like: Tensor, own: Tensor) -> Tensor:
        """The divided tensor of which ``own`` is this rank's part; the inverse of :meth:`own`."""
        return own

    def load(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """Load complete tensors into a module, which may be divided among the ranks."""
        module.load_state_dict(state)

    def share(self, items: Sequence[Item], cost: Callable[[Item], int]) -> list[tuple[Item, bool]]:
        """The items that this rank computes, each with whether its result counts.

        All ranks get equally many items, because a forward pass of sharded weights needs all ranks.
        In each round the ranks compute items of similar cost, the largest first. A rank without an
        item of its own in the last round repeats the cheapest, and its result does not count.

        Args:
            items: equal on all ranks.
            cost: the cost of an item, for example its number of tokens.
        """
        if self.size == 1:
            return [(item, True) for item in items]
        order = sorted(items, key=cost, reverse=True)
        share = [(item, True) for item in order[self.rank :: self.size]]
        if len(share) < math.ceil(len(order) / self.size):
            share.append((order[-1], False))
        return share

    def divided(
        self, cut: Callable[[int], list[Item]], limit: int, cost: Callable[[Item], int]
    ) -> list[Item]:
        """Items of at most ``limit``, small enough to occupy all ranks.

        Args:
            cut: cuts the work into items of at most a given cost.
            limit: maximum cost of an item.
            cost: the cost of an item.
        """
        items = cut(limit)
        if self.size == 1 or not items:
            return items
        rounds = math.ceil(len(items) / self.size)
        even = math.ceil(sum(map(cost, items)) / (rounds * self.size))
        # Items are not cut exactly: a little more room can save a round.
        candidates = [items, *(cut(min(limit, size)) for size in (even, even + even // 8))]
        return min(candidates, key=lambda found: self._duration(found, cost))

    def _duration(self, items: Sequence[Item], cost: Callable[[Item], int]) -> int:
        """The sum over the rounds of :meth:`share` of the round's largest cost."""
        return sum(sorted(map(cost, items), reverse=True)[:: self.size])


SOLO = World()
"""The world of a learner without ranks."""


def converted(state: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of nested dictionaries and lists, with ``change`` applied to every tensor."""
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, Mapping):
        return {key: converted(value, change) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(converted(value, change) for value in state)
    return state
