"""The divided part of a checkpoint: each rank writes the rows that it keeps, and reads its own.

The files are safetensors, whose headers state which rows they hold (torch's distributed checkpoint,
``HuggingFaceStorageWriter``). Any number of ranks reads them, and reading them runs no code.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.tensor import DTensor

from rl.learner.ranks.world import Keys, Place

FILE_BYTES = 2**28
"""Bytes of a rank's tensors after which it begins another file."""
Empty = Callable[[Sequence[int], torch.dtype], Tensor]
"""Allocates a tensor of this complete shape, or a rank's part of it."""


class ExchangeFailed(Exception):
    """An exchange of the ranks about what they wrote failed: a rank has ended, or hangs."""


def take_apart(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, DTensor], list[Place]]:
    """Nested dictionaries without their divided tensors, these by name, and their places."""
    found = list(_divided(state))
    tensors = {_name(keys): x for keys, x in found}
    return _rest(state), tensors, [(keys, tuple(x.shape)) for keys, x in found]


def start_writing(
    tensors: Mapping[str, DTensor], folder: Path, group: ProcessGroup
) -> Callable[[], None]:
    """Copy this rank's parts to the host's memory, and begin to write them into ``folder``.

    Collective. Until the files are written, ``group`` is in use and cannot make other exchanges.

    Returns:
        A function that waits until all ranks have written. It raises, in every rank, what kept one
        from it, or ExchangeFailed if a rank ended.
    """
    sizes = (x.numel() * x.element_size() // group.size() for x in tensors.values())
    # A file is made in memory before it is written.
    files = {n: 1 + end // FILE_BYTES for n, end in zip(tensors, accumulate(sizes), strict=True)}
    writer = HuggingFaceStorageWriter(str(folder), files, save_distributed=True)
    writing = async_save(dict(tensors), storage_writer=writer, process_group=group)
    assert isinstance(writing, Future), "the default has copied when it returns"

    def written() -> None:
        try:
            writing.result()
        except CheckpointException as error:
            for failure, _ in error.failures.values():
                raise failure from error
            raise
        except RuntimeError as error:
            raise ExchangeFailed(str(error)) from error

    return written


def read_shards(
    rest: Mapping[str, Any], places: Sequence[Place], folder: Path, empty: Empty
) -> dict[str, Any]:
    """The nested dictionaries that :func:`take_apart` took apart; see there.

    Raises:
        ValueError: a file is missing or damaged.
    """
    state = _rest(rest)
    for keys, x in read_tensors(places, folder, empty).items():
        inner = state
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = x
    return state


def read_tensors(places: Sequence[Place], folder: Path, empty: Empty) -> dict[Keys, Tensor]:
    """Read tensors into memory of ``empty``, whose type they get.

    Raises:
        ValueError: a file is missing or damaged.
    """
    with _readable(folder):
        reader = HuggingFaceStorageReader(str(folder))
        found: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
    tensors = {}
    for keys, shape in places:
        entry = found.get(_name(keys))
        size = 0 if entry is None else sum(math.prod(chunk.sizes) for chunk in entry.chunks)
        if entry is None or size != math.prod(shape):
            raise ValueError(
                f"{folder} has {size} of the {math.prod(shape)} numbers of {_name(keys)}: the file "
                "of a rank is missing"
            )
        tensors[keys] = empty(shape, entry.properties.dtype)
    with _readable(folder), warnings.catch_warnings():
        # It warns that it reads without the other ranks.
        warnings.simplefilter("ignore", UserWarning)
        named: dict[str, Any] = {_name(keys): x for keys, x in tensors.items()}
        load(named, storage_reader=reader, no_dist=True)
    return tensors


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError, CheckpointException) as error:
        raise ValueError(f"{folder} cannot be read: {error}") from error


def _divided(state: Mapping[Any, Any], before: Keys = ()) -> Iterator[tuple[Keys, DTensor]]:
    for key, value in state.items():
        if isinstance(value, DTensor):
            yield (*before, key), value
        elif isinstance(value, Mapping):
            yield from _divided(value, (*before, key))


def _rest(state: Mapping[Any, Any]) -> dict[Any, Any]:
    return {
        key: _rest(value) if isinstance(value, Mapping) else value
        for key, value in state.items()
        if not isinstance(value, DTensor)
    }


def _name(keys: Keys) -> str:
    return ".".join(map(str, keys))
