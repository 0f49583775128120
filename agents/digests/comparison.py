"""Compares the digests of the tensors that were sent with those of an engine's parameters."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from agents.digests.turnwise_digests import digest

if TYPE_CHECKING:
    import torch

MODULE_FOLDER = Path(__file__).parent
"""Folder of the module that vLLM's workers import."""


@dataclass(frozen=True, slots=True)
class SentDigests:
    """The digests of the tensors that the learner sends."""

    by_name: Mapping[str, int]
    tied: Mapping[str, str]
    """Tensors that share their memory with an earlier one, and its name."""


@dataclass(frozen=True, slots=True)
class LoadedDigests:
    """The digests of an engine's parameters after it loaded weights."""

    by_name: Mapping[str, int | None]
    """By the engine's names; None: the parameter was not loaded."""
    packed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Layers that the engine stacks: ``{"qkv_proj": ["q_proj", "k_proj", "v_proj"]}``."""
    buffers: Mapping[str, int] = field(default_factory=dict)
    """The engine's persistent buffers, by its names. Some are its own and were never sent."""

    @classmethod
    def of_workers(cls, answers: Sequence[str]) -> Self | None:
        """The digests in the workers' answers; None: each worker has a part of the parameters."""
        if len(answers) != 1:
            return None
        found = json.loads(answers[0])
        return cls(found["digests"], found["packed"], found.get("buffers", {}))


@dataclass(frozen=True, slots=True)
class Comparison:
    """How an engine's parameters differ from what was sent."""

    wrong: list[str]
    """Names of the parameters that differ."""
    transformed: list[str]
    """Those of them that the engine loaded, and may have changed on loading."""
    tensors: Mapping[str, Sequence[str]]
    """The sent tensors that were compared under each name."""


def module_path(own: str | None = None) -> str:
    """``PYTHONPATH`` for workers: ``own`` (None: this process's), and the module's folder."""
    former = os.environ.get("PYTHONPATH", "") if own is None else own
    return os.pathsep.join(filter(None, (former, str(MODULE_FOLDER))))


def digests_of(weights: Mapping[str, torch.Tensor]) -> SentDigests:
    """The digest of each tensor; tensors that share memory are read once."""
    first: dict[tuple[object, ...], str] = {}
    found: dict[str, int] = {}
    tied = {}
    for name, tensor in weights.items():
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        known = first.setdefault(key, name)
        found[name] = digest(tensor) if known == name else found[known]
        if known != name:
            tied[name] = known
    return SentDigests(found, tied)


def compare(sent: SentDigests, loaded: LoadedDigests) -> Comparison:
    """Compare the engine's parameters with what was sent.

    A stacked parameter is compared with the sum of its parts. Tensors without a parameter of their
    name, as a mixture's experts, are compared as one sum, which is named after the first of them.
    """
    whole_of = {part: whole for whole, parts in loaded.packed.items() for part in parts}
    wholes = {n: ".".join(whole_of.get(word, word) for word in n.split(".")) for n in sent.by_name}
    names = set(wholes.values())
    found = {n: x for n, x in loaded.buffers.items() if n in names} | dict(loaded.by_name)
    memory = {name: sent.tied.get(name, name) for name in wholes}
    expected: dict[str, int] = {}
    tensors: dict[str, list[str]] = {}
    place: dict[str, str] = {}
    for name, whole in wholes.items():
        if whole in found:
            expected[whole] = (expected.get(whole, 0) + sent.by_name[name]) % 2**64
            tensors.setdefault(whole, []).append(name)
            place.setdefault(memory[name], whole)
    wrong = [name for name, number in expected.items() if found[name] != number]
    transformed = [name for name in wrong if found[name] is not None]
    left = []
    for name, whole in wholes.items():
        # A tied tensor is sent under both of its names, and the engine may have one of them.
        if whole not in found and memory[name] in place:
            tensors[place[memory[name]]].append(name)
        elif whole not in found:
            left.append(name)
    if left:
        title = wholes[left[0]]
        tensors[title] = left
        others = [number for name, number in found.items() if name not in names]
        total = sum(sent.by_name[name] for name in {memory[name] for name in left})
        if total % 2**64 != sum(number or 0 for number in others) % 2**64:
            wrong.append(title)
            if None not in others:
                transformed.append(title)
    return Comparison(wrong, transformed, tensors)
