"""Compares digests of the tensors that the learner sent with digests of an engine's parameters."""

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
    """For each tensor that shares the memory of an earlier tensor: its name, and the earlier
    tensor's name."""


@dataclass(frozen=True, slots=True)
class LoadedDigests:
    """The digests of an engine's parameters after it loaded weights."""

    by_name: Mapping[str, int | None]
    """Digests by the engine's names of its parameters. None for a parameter that was not loaded."""
    packed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Parts of the layers that the engine stacks: ``{"qkv_proj": ["q_proj", "k_proj",
    "v_proj"]}``."""
    buffers: Mapping[str, int] = field(default_factory=dict)
    """Digests of the engine's persistent buffers, by the engine's names. Some buffers are the
    engine's own and were never sent."""

    @classmethod
    def of_workers(cls, answers: Sequence[str]) -> Self | None:
        """The digests in the workers' answers.

        None if there are several workers, because each has only a part of the parameters.
        """
        if len(answers) != 1:
            return None
        found = json.loads(answers[0])
        return cls(found["digests"], found["packed"], found.get("buffers", {}))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences between an engine's parameters and the sent tensors."""

    wrong: list[str]
    """Names of the parameters that differ."""
    transformed: list[str]
    """Names in ``wrong`` of parameters that the engine did load. It may have changed them on
    loading."""
    tensors: Mapping[str, Sequence[str]]
    """Names of the sent tensors, by the name under which they were compared."""


def module_path(own: str | None = None) -> str:
    """``PYTHONPATH`` for workers: ``own``, and the folder of the module that workers import.

    If ``own`` is None, this process's ``PYTHONPATH`` is used.
    """
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
    """Compare the digests of an engine's parameters with those of the sent tensors.

    If a parameter stacks several tensors, its digest is compared with the sum of their digests.
    Some sent tensors have no parameter of their name, such as a mixture's experts. The sum of their
    digests is compared with the sum over all remaining parameters, under the name of the first such
    tensor.
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
