"""Last hidden states of sequences, by a model without its head: what reward models read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl.learner.memory.activations import check_layers, checkpointed_layers
from rl.learner.memory.fused import fuse
from rl.learner.settings import DEFAULT_MEMORY, MemoryConfig
from rl.packing.attention import hidden_states
from rl.packing.models import PackingModel, can_pack, needs_mask
from rl.packing.parts import one_row
from rl.packing.prefixes import Integers


class TrunkModel(PackingModel):
    """Computes the last hidden states of sequences with a model without its head.

    Args:
        model: used in place, not copied.
        memory: activation checkpointing.
        packing: whether rows are packed, if the model can compute packed rows.

    Raises:
        ValueError: the model has no layers to checkpoint.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        memory: MemoryConfig = DEFAULT_MEMORY,
        *,
        packing: bool = False,
    ) -> None:
        check_layers(model, memory)
        fuse(model)
        self.model = model
        self.memory = memory
        self.packs = packing and can_pack(model, warns=True)
        self._needs_mask = needs_mask(model)

    def states(self, sequences: Sequence[Integers]) -> tuple[Tensor, list[Integers]]:
        """The last hidden states of sequences, in one forward pass.

        Returns:
            ``[n, H]`` hidden states, and for each sequence the indices of its tokens.
        """
        longest = max(map(len, sequences))
        compute = self._packed if self.fill_tokens(longest, longest) else self._padded
        with checkpointed_layers(self.model, self.memory):
            return compute(sequences)

    def _packed(self, sequences: Sequence[Integers]) -> tuple[Tensor, list[Integers]]:
        row, device = one_row(sequences), self.model.device
        ids = torch.from_numpy(row.token_ids)[None].to(device)
        layout = row.layout.map(lambda x: x.to(device))
        return hidden_states(self.model, ids, layout)[0], row.places

    def _padded(self, sequences: Sequence[Integers]) -> tuple[Tensor, list[Integers]]:
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        width = int(lengths.max())
        ids = torch.zeros(len(sequences), width, dtype=torch.int64)
        for row, sequence in zip(ids, sequences, strict=True):
            row[: len(sequence)] = torch.from_numpy(sequence)
        # In a causal model, padding on the right cannot change a position to its left.
        mask = (torch.arange(width) < lengths[:, None]).long() if self._needs_mask else None
        device = self.model.device
        hidden: Tensor = self.model(
            input_ids=ids.to(device),
            attention_mask=None if mask is None else mask.to(device),
            use_cache=False,
        ).last_hidden_state
        places = [width * i + np.arange(len(x)) for i, x in enumerate(sequences)]
        return hidden.flatten(0, 1), places
