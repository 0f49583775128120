"""Computes digests of tensors, in this process and in vLLM's workers.

A worker may run in an interpreter without turnwise: its ``PYTHONPATH`` names this folder, and this
module imports nothing but torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

EXTENSION = "turnwise_digests.WeightDigests"
"""Value of vLLM's option ``--worker-extension-cls``."""
_CHUNK = {"cpu": 2**16}
"""Number of elements that are hashed at once, by type of device. A CPU's chunk fits its cache. The
default, 2**22 elements, takes 32 MiB of a GPU's memory beside the engine."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
"""Type of integer in which an element's bits are hashed, by the element's size in bytes."""
_MIX = (-1640531527, -2048144777)
"""Odd factors of the hash in :func:`digest`, from the golden ratio and from xxHash."""


@torch.no_grad()
def digest(tensor: torch.Tensor) -> int:
    """The sum of a hash of each element's bits, modulo 2**64.

    A zero adds 0, and the order of the elements does not matter. If an engine stacks, pads or
    transposes tensors, the digest of the result is therefore the sum of the tensors' digests.
    """
    words = tensor.detach().contiguous().view(-1).view(_BITS[tensor.element_size()])
    total = 0
    for part in words.split(_CHUNK.get(tensor.device.type, 2**22)):
        # int32 wraps around; a shift of a negative number keeps its sign on every device.
        mixed = part.to(torch.int32) * _MIX[0]  # A copy: `to` may return the weights themselves.
        mixed ^= mixed >> 15
        mixed.mul_(_MIX[1])
        mixed ^= mixed >> 13
        total += int(mixed.sum(dtype=torch.int64))
    return total % 2**64


class WeightDigests:
    """Methods that vLLM adds to its workers, for ``collective_rpc``.

    Some layers repack their weights after loading, and drop the loaded parameters. Digests of such
    a layer are taken just before the layer repacks.
    """

    model_runner: Any

    def turnwise_watch_weights(self) -> str:
        """Take digests of all layers that are loaded from now on."""
        self._turnwise_stop_watching()
        taken: dict[int, dict[str, int]] = {}
        self._turnwise_taken = taken
        for module in self._turnwise_model().modules():
            method: Any = getattr(module, "quant_method", None)
            # Layers may share a method, which is watched once.
            known = any(method is one for one in self._turnwise_watched)
            if hasattr(method, "process_weights_after_loading") and not known:
                method.process_weights_after_loading = _watched(method, taken)
                self._turnwise_watched.append(method)
        return "watching"

    def turnwise_weight_digests(self) -> str:
        """Digests of the model's weights, as JSON.

        The keys are ``digests`` (of each parameter), ``buffers`` (of each persistent buffer) and
        ``packed`` (vLLM's table of the layers that it stacks). A parameter's digest is null if
        repacking emptied the parameter, and its layer was not loaded since
        :meth:`turnwise_watch_weights`.
        """
        self._turnwise_stop_watching()
        model = self._turnwise_model()
        found: dict[str, int | None] = {}
        buffers: dict[str, int] = {}
        for path, module in model.named_modules():
            taken = self._turnwise_taken.get(id(module), {})
            start = f"{path}." if path else ""
            for name, buffer in module.named_buffers(recurse=False):
                if name not in module._non_persistent_buffers_set:
                    buffers[start + name] = digest(buffer)
            for name, parameter in module.named_parameters(recurse=False):
                own = digest(parameter) if parameter.numel() else None
                found[start + name] = taken.get(name, own)
        self._turnwise_taken = {}
        packed = getattr(model, "packed_modules_mapping", None) or {}
        return json.dumps({"digests": found, "buffers": buffers, "packed": packed})

    def _turnwise_model(self) -> Any:
        return self.model_runner.get_model()

    def _turnwise_stop_watching(self) -> None:
        for method in getattr(self, "_turnwise_watched", ()):
            vars(method).pop("process_weights_after_loading", None)
        self._turnwise_watched: list[Any] = []


def _watched(method: Any, taken: dict[int, dict[str, int]]) -> Callable[[Any], Any]:
    """Make ``method.process_weights_after_loading`` first store the layer's digests."""
    process: Callable[[Any], Any] = method.process_weights_after_loading

    def watched(layer: Any) -> Any:
        parameters = dict(layer.named_parameters(recurse=False))
        taken[id(layer)] = {name: digest(parameter) for name, parameter in parameters.items()}
        packing = getattr(method, "moe_kernel", None)
        result = process(layer)
        if packing is not None and all(p.device.type == "cpu" for p in parameters.values()):
            # vLLM 0.32 packs a CPU's experts only once, and would read newer ones as packed.
            packing.fused_experts.process_weights_after_loading(layer)
        return result

    return watched
