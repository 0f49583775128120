"""Assumed speeds of GPUs and sizes of models, for plans of machines that no run has measured.

The figures of GPUs are those of the makers' data sheets, without sparsity. The shares that programs
reach are assumptions: ``LEARN`` lies between the 21.7% of an adapter of Qwen3-4B at 16k tokens on
one H100 and the 36.1% of Qwen3-4B at 65k tokens on 8 H200, both published by prime-rl; the other
shares have no measurement here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from rl.planning.costs import Costs
from rl.settings.parsing.unknown_keys import unknown

T = TypeVar("T")
LEARN, PREFILL = 0.25, 0.4
"""Assumed share of a GPU's arithmetic that the learner, and the computation of prompts, reach."""
MEMORY_BANDWIDTH, NETWORK = 0.6, 0.7
"""Assumed share of the memory's bandwidth that decoding reaches, and of the network's bandwidth."""
USABLE = 0.85
"""Share of a GPU's memory for weights, gradients and the optimizer's state."""
STATE_BYTES = 16
"""Bytes of a weight in the learner: fp32 weight, gradient and two moments."""
NODE = 8
"""Number of GPUs of a node, which are connected by ``link``. Nodes are connected by ``network``."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Speeds of a GPU, in bytes and operations a second."""

    name: str
    operations: float
    """Dense bf16 operations."""
    bandwidth: float
    """Bytes from and to its memory."""
    memory: float
    link: float
    """Bytes to GPUs of the same node, in one direction."""
    network: float
    """Bytes to GPUs of other nodes, in one direction."""


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes of a language model."""

    name: str
    parameters: float
    kv_bytes: float
    """Bytes of the keys and values of a token, in bf16."""


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100", 312e12, 2.04e12, 80e9, 300e9, 25e9),
        Gpu("h100", 989e12, 3.35e12, 80e9, 450e9, 50e9),
        Gpu("h200", 989e12, 4.8e12, 141e9, 450e9, 50e9),
    )
}
"""Cards with the network adapters of NVIDIA's DGX machines: 200 and 400 Gbit/s a GPU."""


def _qwen3(name: str, billions: float, layers: int) -> Model:
    heads, width, bytes_of_number = 8, 128, 2
    return Model(name, billions * 1e9, 2.0 * layers * heads * width * bytes_of_number)


MODELS = {
    model.name: model
    for model in (
        *(_qwen3("0.6B", 0.6, 28), _qwen3("1.7B", 1.7, 28), _qwen3("4B", 4.0, 36)),
        *(_qwen3("8B", 8.2, 36), _qwen3("14B", 14.8, 40), _qwen3("32B", 32.8, 64)),
    )
}
"""The dense models of Qwen3."""


def find_gpu(name: str) -> Gpu:
    """The GPU of a name.

    Raises:
        UsageError: the name is unknown.
    """
    return _find("gpu", name, GPUS)


def find_model(name: str) -> Model:
    """The model of a name.

    Raises:
        UsageError: the name is unknown.
    """
    return _find("model", name, MODELS)


def _find(key: str, name: str, table: dict[str, T]) -> T:
    if name in table:
        return table[name]
    raise unknown(key, name, list(table))


def assumed_costs(measured: Costs, gpu: Gpu, model: Model, context: float, tensor: int) -> Costs:
    """The costs of a model on GPUs, computed from assumptions.

    The seconds of the controller and of environments stay as measured.

    Args:
        measured: the costs of a run.
        gpu: the GPU.
        model: the model.
        context: mean number of tokens before a sampled token.
        tensor: number of GPUs of a sampler.
    """
    speed = gpu.operations * PREFILL * tensor
    memory = gpu.bandwidth * MEMORY_BANDWIDTH * tensor
    weight_bytes = 2 * model.parameters
    return replace(
        measured,
        step_s=weight_bytes / memory,
        row_s=context * model.kv_bytes / memory + 2 * model.parameters / speed,
        prefill_s=2 * model.parameters / speed,
        learn_fixed_s=0.0,
        learn_token_s=6 * model.parameters / (gpu.operations * LEARN),
        sync_s=weight_bytes / (gpu.network * NETWORK),
        parameters=model.parameters,
    )


def least_learners(gpu: Gpu, model: Model) -> int:
    """The fewest GPUs whose memory holds the learner's state."""
    return max(1, -(-int(STATE_BYTES * model.parameters) // int(USABLE * gpu.memory)))


def least_tensor(gpu: Gpu, model: Model) -> int:
    """The fewest GPUs of a sampler of which half of the memory holds the weights."""
    tensor = 1
    while 2 * model.parameters > tensor * gpu.memory / 2:
        tensor *= 2
    return tensor
