"""Counts the learner's memory by running one update on tensors without data."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from agents.local.forward import trunk_of
from agents.local.forward.cache_names import cache_name
from agents.segment import Segment
from rl.credit.batch import Batch, MicroBatch
from rl.learner.lora import add_adapter
from rl.learner.memory.activations import decoder_layers
from rl.learner.memory.quantization import quantize_linear_layers
from rl.learner.optimizer import Optimizer
from rl.learner.ranks.sharding import divide
from rl.learner.scoring import ScoringModule, needs_copy
from rl.learner.seam import TrainingSpec
from rl.learner.settings import OptimizerConfig
from rl.planning.live_bytes import LiveBytes, pretended_ranks, size_of, without_memory
from rl.settings.lora import LoraConfig

EIGHT_BITS = (2 + 2 * 4 / 256) / 8
"""Size of 8-bit averages as a share of the size of 32-bit averages: two bytes per weight, and two
float32 scales per block of 256 weights (Dettmers et al. 2021, arXiv 2110.02861, section 2)."""


@dataclass(frozen=True, slots=True)
class LearnerMemory:
    """Bytes of each part of the learner's memory."""

    weights: int
    """The model and its adapter."""
    critic: int
    reference: int
    """A copy of the initial model, or 0 if the algorithm needs no copy."""
    copies: int
    """Float32 copies of narrower weights."""
    moments: int
    """The optimizer's averages."""
    gradients: int
    activations: int
    """Bytes at the peak of an update, without all other parts: activations, logits of the head and
    temporary tensors."""

    @property
    def resident(self) -> int:
        """Bytes that stay allocated between two updates."""
        return self.weights + self.critic + self.reference + self.copies + self.moments

    @property
    def peak(self) -> int:
        """Largest number of bytes that are allocated at one time."""
        return self.resident + self.gradients + self.activations


def learner_memory(
    config: PretrainedConfig,
    training: TrainingSpec,
    lora: LoraConfig,
    dtype: str,
    *,
    row: int,
    ranks: int = 1,
) -> LearnerMemory:
    """The bytes of each part of the learner's memory in one update.

    Of several ranks, these are the bytes of one rank's device.

    Args:
        config: the model's configuration.
        training: settings of the updates; in ``memory``, "auto" means the mode of a CPU.
        lora: the adapter's settings.
        dtype: type of the weights.
        row: number of tokens in the longest row.
        ranks: number of ranks among which the learner is divided.

    Raises:
        ValueError: the adapter does not fit the model.
    """
    algorithm, memory = training.algorithm, training.memory
    micro = _rows_of(row, training.micro_batch_tokens)
    # Ranks keep trained weights in float32.
    model = _shapes_of(config, "float32" if ranks > 1 and not lora.rank else dtype)
    with torch.device("meta"):
        if lora.base_bits:
            quantize_linear_layers(model, lora.base_bits, "meta")
        if lora.rank:
            add_adapter(model, lora, "", 0)
        root = ScoringModule(
            model,
            with_values=algorithm.uses_values,
            own_trunk=algorithm.value.critic == "model",
            memory=memory,
        )
    copies_reference = needs_copy(model, algorithm)
    # The kernels of bitsandbytes need data, and all fake memory is on one device.
    with ExitStack() as stack:
        if ranks > 1:
            mesh = stack.enter_context(pretended_ranks(ranks))
            divide(root, mesh, getattr(torch, "float32" if lora.rank else dtype))
        stack.enter_context(without_memory())
        live = stack.enter_context(LiveBytes())
        root.to_empty(device="cpu")
        model.tie_weights()
        found = _count(root, replace(training.optimizer, state_bits=32), micro, live)
    if copies_reference:
        found = replace(found, reference=found.weights)
    if training.optimizer.state_bits == 8:
        found = replace(found, moments=int(EIGHT_BITS * found.moments))
    if memory.activation_checkpointing == "offload":
        size = getattr(torch, dtype).itemsize
        found = replace(found, activations=found.activations - _layer_inputs(root, micro, size))
    return found


def _layer_inputs(root: ScoringModule, micro: MicroBatch, size: int) -> int:
    """Bytes of the inputs of all layers, whose numbers have ``size`` bytes."""
    trunks = [root.trunk, *([root.value_trunk] if root.value_trunk is not None else [])]
    layers = sum(len(decoder_layers(trunk)) for trunk in trunks)
    return layers * micro.input_ids.numel() * root.head.in_features * size


def _count(
    root: ScoringModule, settings: OptimizerConfig, micro: MicroBatch, live: LiveBytes
) -> LearnerMemory:
    """The learner's memory, measured by making one update. The reference is not included."""
    parts = [part for part in (root.value_head, root.value_trunk) if part is not None]
    critic = [p for part in parts for p in part.parameters()]
    trained = [p for p in root.parameters() if p.requires_grad]
    live.count(root.parameters())
    optimizer = Optimizer(trained, settings, critic)
    # The averages of gradients exist from the first step on, and the sum of gradients from the
    # first micro-batch on.
    before = live.now
    optimizer.add_zero_gradient()
    _step(optimizer)
    moments = live.now - before
    resident = live.now
    optimizer.add_zero_gradient()
    gradients = live.now - resident
    live.restart()
    optimizer.backward(_loss(root, micro))
    _step(optimizer)
    return LearnerMemory(
        weights=size_of(root.model.parameters()),
        critic=size_of(critic),
        reference=0,
        copies=size_of(optimizer.state_dict()["copies"].values()),
        moments=moments,
        gradients=gradients,
        activations=live.peak - resident - gradients,
    )


def _loss(root: ScoringModule, micro: MicroBatch) -> Tensor:
    """A number that depends on every score, as a loss does."""
    scores = root(micro, temperature=1.0)
    total: Tensor = scores.logprobs.sum() + scores.entropy.sum()
    return total if scores.values is None else total + scores.values.sum()


def _step(optimizer: Optimizer) -> None:
    optimizer.clip_gradients()
    optimizer.step()


def model_bytes(config: PretrainedConfig, dtype: str) -> int:
    """Bytes of a model's weights in a type."""
    return size_of(_shapes_of(config, dtype).parameters())


def episode_cache(config: PretrainedConfig, dtype: str, tokens: int) -> int:
    """Bytes of the keys and values of one episode of ``tokens`` tokens."""
    model = _shapes_of(config, dtype)
    with without_memory(), LiveBytes() as live, torch.no_grad():
        model.to_empty(device="cpu")
        live.count((*model.parameters(), *model.buffers()))
        ids = torch.zeros(1, tokens, dtype=torch.long)
        before = live.now
        cached = trunk_of(model)(input_ids=ids, use_cache=True)[cache_name(model)]
        size: int = live.now - before
        del cached
    return size


def _shapes_of(config: PretrainedConfig, dtype: str) -> PreTrainedModel:
    """The model, with shapes but without data."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, dtype)
        )
    model.eval()
    return model


def _rows_of(tokens: int, max_tokens: int) -> MicroBatch:
    """The largest micro-batch: as many rows of ``tokens`` tokens as fit, but at least one.

    Every token is trained, except the first of each row.
    """
    row = Segment(
        token_ids=[0] * tokens,
        loss_mask=[0] + [1] * (tokens - 1),
        sampling_logprobs=[0.0] * tokens,
        versions=[0] * tokens,
        turn_ids=[0] * tokens,
    )
    count = max(1, max_tokens // tokens)
    batch = Batch.from_segments([row] * count)
    (micro,) = batch.micro_batches(max(max_tokens, tokens), torch.ones(count, dtype=torch.bool))
    return micro
