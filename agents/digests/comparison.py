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
class LoadedDigests:
    """The digests of an engine's parameters after it loaded weights."""

    by_name: Mapping[str, int | None]
    """By the engine's names; None: the parameter was not loaded."""
    packed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Layers that the engine stacks: ``{"qkv_proj": ["q_proj", "k_proj", "v_proj"]}``."""

    @classmethod
    def of_workers(cls, answers: Sequence[str]) -> Self | None:
        """The digests in the workers' answers; None: each worker has a part of the parameters."""
        if len(answers) != 1:
            return None
        found = json.loads(answers[0])
        return cls(found["digests"], found["packed"])


def module_path(own: str | None = None) -> str:
    """``PYTHONPATH`` for workers: ``own`` (None: this process's), and the module's folder."""
    former = os.environ.get("PYTHONPATH", "") if own is None else own
    return os.pathsep.join(filter(None, (former, str(MODULE_FOLDER))))


def digests_of(weights: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The digest of each tensor; tensors that share memory are read once."""
    known: dict[tuple[object, ...], int] = {}
    found = {}
    for name, tensor in weights.items():
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in known:
            known[key] = digest(tensor)
        found[name] = known[key]
    return found


def differing(sent: Mapping[str, int], loaded: LoadedDigests) -> list[str]:
    """Names of the engine's parameters that differ from what was sent.

    A stacked parameter is compared with the sum of its parts. Tensors without a parameter of their
    name, as a mixture's experts, are compared as one sum, which is named after the first of them.
    """
    whole_of = {part: whole for whole, parts in loaded.packed.items() for part in parts}
    expected: dict[str, int] = {}
    for name, number in sent.items():
        whole = ".".join(whole_of.get(word, word) for word in name.split("."))
        expected[whole] = (expected.get(whole, 0) + number) % 2**64
    found = loaded.by_name
    wrong = [name for name, number in expected.items() if name in found and found[name] != number]
    matched = {expected[name] for name in expected if name in found}
    # A tied tensor is sent under both of its names, and the engine may have one of them.
    left = {n: x for n, x in expected.items() if n not in found and x not in matched}
    others = [number for name, number in found.items() if name not in expected]
    if left and sum(left.values()) % 2**64 != sum(x or 0 for x in others) % 2**64:
        wrong.append(next(iter(left)))
    return wrong
