"""Complete weights of divided models, and checkpoints that all ranks write together.

A rank copies its part to the host's memory, which stops it, and writes it while it goes on. When
all have written, rank 0 makes the files of complete weights from those of the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl.errors import RunFailure
from rl.learner.checkpoint import SHARDS, begin_checkpoint, save_checkpoint
from rl.learner.lora import is_adapted, trained_state
from rl.learner.model import kept_in_float32
from rl.learner.ranks.world import Place, World, nothing
from rl.learner.updater import Updater

RESTS, PLACES = "learner", "learner_shards"
"""Keys in a trainer's state: what all ranks have, and the places of what they divide."""


@dataclass(frozen=True)
class Saving:
    """The weights and the checkpoints of a learner, whose methods all ranks call together."""

    model: PreTrainedModel
    world: World
    dtype: torch.dtype
    """The type of complete weights, except those that stay in float32. An adapter has its own."""

    def complete(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The complete tensors of a part of the model's state, on the host of rank 0.

        Other ranks get none: many share a host, and one copy is enough.
        """
        # Tied weights have two names and are collected once.
        names = {name: id(p) for name, p in self.model.named_parameters(remove_duplicate=False)}
        keys = {name: names.get(name, id(x)) for name, x in state.items()}
        kept = kept_in_float32(self.model, self.dtype)
        found: dict[int, Tensor] = {}
        for name, x in {keys[name]: (name, x) for name, x in state.items()}.values():
            whole = self.world.whole(x)
            if self.world.rank == 0:
                as_is = is_adapted(self.model) or name in kept
                found[keys[name]] = (whole if as_is else whole.to(self.dtype)).cpu()
        return {name: found[key] for name, key in keys.items() if key in found}

    def prepare(
        self,
        folder: Path,
        tokenizer: PreTrainedTokenizerBase | None,
        state: Mapping[str, Any] | None,
        updater: Updater | None,
    ) -> Callable[[], None]:
        """Copy what a checkpoint holds, and return a function that completes it.

        Args:
            folder: the checkpoint.
            tokenizer: the tokenizer to save.
            state: the trainer's state.
            updater: saved as well, if given.

        Raises:
            RunFailure: rank 0 cannot begin the checkpoint; all ranks raise it.
        """
        hidden, written, places = self._begin(folder), nothing, {}
        if updater is not None:
            rest, divided, written = self.world.start_writing(updater.state_dict(), hidden / SHARDS)
            state = {**(state or {}), RESTS: rest, PLACES: divided}
            places = self._places(updater)
        own = trained_state(self.model).items()
        collected = self.complete({name: x for name, x in own if name not in places})
        if self.world.rank:
            return written

        def weights() -> dict[str, Tensor]:
            written()
            return collected | self._from_files(hidden / SHARDS, places)

        return partial(save_checkpoint, folder, self.model, tokenizer, state, weights)

    def _begin(self, folder: Path) -> Path:
        begun: Path | RunFailure = folder
        try:
            if self.world.rank == 0:
                begun = begin_checkpoint(folder)
        except RunFailure as error:
            begun = error
        begun = self.world.gather(begun)[0]
        if isinstance(begun, RunFailure):
            raise begun
        return begun

    def _places(self, updater: Updater) -> dict[str, Place]:
        """The places of the model's weights in the state of its updater, by name."""
        copies, state = updater.optimizer.places_of_copies(), trained_state(self.model)
        return {
            name: (("optimizer", *copies[id(x)]), tuple(x.shape))
            for name, x in self.model.named_parameters(remove_duplicate=False)
            if name in state and id(x) in copies
        }

    def _from_files(self, shards: Path, places: Mapping[str, Place]) -> dict[str, Tensor]:
        if not places:
            return {}
        from rl.learner.ranks.shards import read_tensors  # loads torch's distributed checkpoint

        kept = kept_in_float32(self.model, self.dtype)
        as_is = {x for name, x in places.items() if is_adapted(self.model) or name in kept}

        def rounded(shape: Any, dtype: torch.dtype) -> Tensor:
            return torch.empty(*shape, dtype=self.dtype)

        def exact(shape: Any, dtype: torch.dtype) -> Tensor:
            return torch.empty(*shape, dtype=dtype)

        try:
            found = read_tensors(list(set(places.values()) - as_is), shards, rounded)
            found |= read_tensors(list(as_is), shards, exact)
        except ValueError as error:
            raise RunFailure(
                f"{error}: give out=FOLDER on a file system that all machines share"
            ) from error
        return {name: found[keys] for name, (keys, _) in places.items()}


def learner_state(folder: Path, state: dict[str, Any], world: World) -> dict[str, Any]:
    """Take the state of an updater from the trainer's, with what ranks wrote in files.

    Raises:
        ValueError: a file is missing or damaged.
    """
    rest: dict[str, Any] = state.pop(RESTS)
    places = state.pop(PLACES, [])  # One process writes none.
    if not places:
        return rest
    from rl.learner.ranks.shards import read_shards

    return read_shards(rest, places, folder / SHARDS, world.empty)
