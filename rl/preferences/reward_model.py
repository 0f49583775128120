"""The reward model: a language model with a scalar head instead of its vocabulary head."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from agents.renderer import Renderer
from agents.segment import Segment
from rl.learner.memory.activations import check_layers, checkpointed_layers
from rl.learner.memory.fused import fuse
from rl.learner.ranks.world import Root
from rl.learner.settings import DEFAULT_MEMORY, NO_TRAINING, MemoryConfig
from rl.packing.attention import hidden_states
from rl.packing.models import PackingModel, can_pack, needs_mask
from rl.packing.parts import one_row
from rl.packing.prefixes import Integers

BIAS = "reward_bias"
"""Key in the model's configuration for a constant that is added to every score."""
STEPS = "reward_steps"
"""Key in the model's configuration. If its value is true, this is a process reward model: its
scores at the last tokens of steps are the log-odds of the steps."""


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


class RewardModule(Root):
    """A trunk and a linear head on its last hidden states, which score tokens.

    Args:
        model: a sequence classifier with one label. It is not copied.
        rows: computes the hidden states of its trunk.
    """

    def __init__(self, model: PreTrainedModel, rows: TrunkModel) -> None:
        super().__init__()
        self.model = model
        self._rows = rows

    def trunks(self) -> list[nn.Module]:
        """The trunk; see :class:`Root`."""
        return [self._rows.model]

    def forward(self, sequences: Sequence[Integers], ends: Sequence[Sequence[int]]) -> Tensor:
        """The scores at the positions ``ends`` of each sequence, on the model's device."""
        states, places = self._rows.states(sequences)
        chosen = [at[end] for at, own in zip(places, ends, strict=True) for end in own]
        hidden = states[torch.tensor(np.array(chosen), device=states.device)]
        precise = torch.promote_types(hidden.dtype, torch.float32)
        return nn.functional.linear(hidden.to(precise), _head(self.model).weight.to(precise))[:, 0]


class RewardModel:
    """Scores an answer by a linear head on the hidden state of its last token.

    The model is transformers' sequence classifier with one label, a format shared with TRL and
    other libraries. As there, the last token is the last one that is not the model's padding: where
    a classifier pads with the token that ends answers, it reads the token before. The head is
    computed in float32, whatever the model's type.

    Args:
        model: a sequence classifier with one label. It is not copied.
        memory: what training keeps in memory. Results do not depend on it.
        packing: whether rows are packed and share prefixes, if the model can compute such rows.

    Raises:
        ValueError: the model has another number of labels, or a head that is not a linear layer.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        memory: MemoryConfig = DEFAULT_MEMORY,
        *,
        packing: bool = True,
    ) -> None:
        if model.config.num_labels != 1:
            raise ValueError(
                f"a reward model gives one number, this one {model.config.num_labels}: train one "
                f"with python -m rl.reward_model"
            )
        self.model = model
        self.head = _head(model)
        trunk = model.base_model
        assert isinstance(trunk, PreTrainedModel), "a classifier has a model and a head"
        self.rows = TrunkModel(trunk, memory, packing=packing)
        self.root = RewardModule(model, self.rows)
        """The module through which all forward passes go."""

    @classmethod
    def from_causal(
        cls,
        causal: PreTrainedModel,
        memory: MemoryConfig = DEFAULT_MEMORY,
        *,
        packing: bool = True,
    ) -> Self:
        """Make a reward model from a language model's body and a new head of zeros.

        The body is not copied.

        Raises:
            ValueError: transformers has no classifier of this architecture.
        """
        config = copy.deepcopy(causal.config)
        config.num_labels = 1
        try:
            with torch.device("meta"):
                model = AutoModelForSequenceClassification.from_config(config)
        except ValueError as error:
            raise ValueError(
                f"model_type ({config.model_type}) has no sequence classifier in transformers: "
                f"take another model (Qwen, Llama, Mistral, GPT-2, ...)"
            ) from error
        setattr(model, model.base_model_prefix, causal.base_model)
        new = nn.Linear(_head(model).in_features, 1, bias=False)
        nn.init.zeros_(new.weight)
        model.set_submodule("score", new.to(device=causal.device, dtype=causal.dtype))
        return cls(model.eval(), memory, packing=packing)

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> Self:
        """Load a reward model from a folder or a hub id.

        Raises:
            ValueError: the path holds no reward model.
        """
        local = Path(path).expanduser()
        name = str(local) if local.is_dir() else str(path)
        try:
            config = AutoConfig.from_pretrained(name)
            made = (config.architectures or [""])[0]
            if not made.endswith("ForSequenceClassification"):
                raise ValueError(f"it is a {made or 'model of no kind'}, not a classifier")
            model = AutoModelForSequenceClassification.from_pretrained(name, config=config)
        except (OSError, ValueError, SafetensorError) as error:
            raise ValueError(
                f"reward model ({path}) cannot be loaded ({str(error).splitlines()[0]}): give a "
                f"folder that python -m rl.reward_model saved"
            ) from error
        return cls(model.to(device).eval(), NO_TRAINING)

    @property
    def bias(self) -> float:
        """Constant that is added to every score."""
        return float(self.model.config.to_dict().get(BIAS, 0.0))

    @bias.setter
    def bias(self, value: float) -> None:
        self.model.config.update({BIAS: value})

    @property
    def of_steps(self) -> bool:
        """Whether this is a process reward model, whose scores are log-odds of steps."""
        return bool(self.model.config.to_dict().get(STEPS, False))

    @of_steps.setter
    def of_steps(self, value: bool) -> None:
        self.model.config.update({STEPS: value})

    @property
    def trunk(self) -> PreTrainedModel:
        """The model without its head."""
        return self.rows.model

    def parameters(self) -> list[nn.Parameter]:
        """All trained parameters."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def parts(self, units: Sequence[Sequence[Segment]], max_tokens: int) -> list[list[int]]:
        """Divide units of answers into forward passes; see ``PreferenceUpdater``'s ``Rewarder``."""
        return self.rows.parts([[s.token_ids for s in unit] for unit in units], max_tokens)

    def score(self, segments: Sequence[Segment]) -> Tensor:
        """The score of each answer, at its last token with loss_mask 1. ``[K]`` float64.

        Tokens of padding at its end are skipped.

        Raises:
            ValueError: an answer has no token with loss_mask 1.
        """
        pad = self.model.config.get_text_config().pad_token_id
        return self.score_steps(segments, [[_last(segment, pad)] for segment in segments])

    def score_steps(self, segments: Sequence[Segment], ends: Sequence[Sequence[int]]) -> Tensor:
        """The scores at several tokens of each answer, in one forward pass.

        Args:
            segments: K answers.
            ends: the positions of the tokens, at least one for each answer.

        Returns:
            ``[S]`` float64 on the CPU, in the order of the answers.
        """
        read = [
            np.asarray(segment.token_ids[: max(positions) + 1], dtype=np.int64)
            for segment, positions in zip(segments, ends, strict=True)
        ]
        scores: Tensor = self.root(read, ends)
        return scores.cpu().double() + self.bias


def _head(model: PreTrainedModel) -> nn.Linear:
    try:
        head = model.get_submodule("score")
    except AttributeError as error:
        raise ValueError(
            f"model_type ({model.config.model_type}) has no head called score: take another model "
            f"(Qwen, Llama, Mistral, GPT-2, ...)"
        ) from error
    assert isinstance(head, nn.Linear), "the head is a linear layer"
    return head


def choose_padding(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Set the token that pads a reward model's batches, in its configuration and its tokenizer.

    Transformers' classifiers read the last token that is not padding. It is the tokenizer's padding
    token, or else another special token that ends no answer. Without one, the token that ends
    answers pads batches, and the token before it is read.
    """
    ends = Renderer(tokenizer).end_token_ids
    special = [n for n, token in tokenizer.added_tokens_decoder.items() if token.special]
    special.sort(key=lambda n: "pad" not in tokenizer.added_tokens_decoder[n].content)
    rows = model.get_input_embeddings().num_embeddings
    known = [n for n in (tokenizer.pad_token_id, tokenizer.unk_token_id, *special) if n is not None]
    chosen = next((n for n in known if n not in ends and n < rows), tokenizer.eos_token_id)
    model.config.get_text_config().pad_token_id = chosen
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(chosen)


def _last(segment: Segment, pad: int | None) -> int:
    """The last position with loss_mask 1, or the last one before it that is not padding."""
    if 1 not in segment.loss_mask:
        raise ValueError("an answer has no token of its own: there is nothing to reward")
    last = max(at for at, own in enumerate(segment.loss_mask) if own)
    return next((at for at in range(last, 0, -1) if segment.token_ids[at] != pad), 0)
