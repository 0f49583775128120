"""Scoring: log-probabilities, entropies and values of tokens, by the policy or its reference.

All forward passes go through one root module, as a sharded learner requires. FSDP2 gathers a
module's parameters when its ``forward`` begins. Weights that are read outside the root's
``forward`` are therefore empty shards.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agents.local.forward import trunk_of
from agents.local.forward.routers import Replay, using
from rl.credit.algorithm import Algorithm
from rl.credit.batch import Batch, MicroBatch
from rl.credit.logprobs import token_head
from rl.credit.losses import TokenScores
from rl.learner.lora import is_adapted, without_adapter
from rl.learner.memory.activations import check_layers, checkpointed_layers
from rl.learner.memory.fused import fuse
from rl.learner.memory.transfers import read, uploaded
from rl.learner.ranks.world import SOLO, Root, World
from rl.learner.settings import DEFAULT_MEMORY, MemoryConfig
from rl.packing.attention import hidden_states, longest_row
from rl.packing.models import PackingModel, can_pack, check_padded, needs_mask


class Scores(NamedTuple):
    """Scores of n tokens. The type is a tuple, so that FSDP2 finds the tensors with gradients."""

    logprobs: Tensor
    """``[n]``, log-probabilities under the sampling temperature."""
    entropy: Tensor
    """``[n]``, entropy of each token's distribution, in nats."""
    values: Tensor | None
    """``[n]``, value of the state before each token, or None without a value head."""


class ScoringModule(Root):
    """A causal language model and its critic, which score the tokens of micro-batches.

    Args:
        model: used in place, not copied.
        with_values: whether there is a value head: a linear layer on the last hidden state with
            zero weights, in float32 (float64 for a float64 model).
        own_trunk: whether values come from a separately trained copy of the model's trunk.
        memory: activation checkpointing of every trunk, and buffers of the head.
    """

    also_forward = ("infer",)

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        with_values: bool = False,
        own_trunk: bool = False,
        memory: MemoryConfig = DEFAULT_MEMORY,
    ) -> None:
        super().__init__()
        self.model = model
        self.memory = memory
        check_layers(self.trunk, memory)
        fuse(model)
        head = model.get_output_embeddings()
        assert isinstance(head, nn.Linear), "a causal language model ends in a linear layer"
        self.value_head: nn.Linear | None = None
        self.value_trunk: nn.Module | None = None
        if with_values:
            self.value_head = nn.Linear(
                head.in_features, 1, device=head.weight.device, dtype=self.dtype
            )
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        if with_values and own_trunk:
            self.value_trunk = copy.deepcopy(self.trunk)
        self.unmasked_tokens = 0
        """Maximum length of padded rows that ``hidden_states`` computes, without a mask that
        transformers would inspect."""
        self._needs_mask = needs_mask(model)

    @property
    def trunk(self) -> nn.Module:
        """The model without its output head."""
        return trunk_of(self.model)

    def trunks(self) -> list[nn.Module]:
        """The model's trunk, and that of its critic; see :class:`Root`."""
        return [self.trunk, *([self.value_trunk] if self.value_trunk is not None else [])]

    def precise(self) -> list[nn.Module]:
        """The value head; see :class:`Root`."""
        return [] if self.value_head is None else [self.value_head]

    @property
    def head(self) -> nn.Linear:
        """The linear layer from the last hidden state to logits."""
        head = self.model.get_output_embeddings()
        assert isinstance(head, nn.Linear)
        return head

    @property
    def dtype(self) -> torch.dtype:
        """The type of scores: float32, or float64 for a float64 model."""
        return torch.promote_types(self.head.weight.dtype, torch.float32)

    def forward(self, micro: MicroBatch, temperature: float) -> Scores:
        """Score the micro-batch's tokens.

        The head runs only at positions that predict one of these tokens. The distribution of a
        token covers only the token's sampling support.

        Args:
            micro: a micro-batch on the model's device.
            temperature: divisor of the logits.
        """
        with using(None if micro.experts is None else Replay(micro.experts)):
            hidden = self._sources(micro, self.trunk)
        head = self.head
        logprobs, entropy = token_head(
            # A few models keep a head of float32 beside other weights.
            hidden.to(head.weight.dtype),
            head.weight,
            head.bias,
            micro.targets,
            temperature,
            micro.support,
            self.memory.head_bytes(hidden.device.type),
        )
        values = None
        if self.value_head is not None:
            if self.value_trunk is not None:
                hidden = self._sources(micro, self.value_trunk)
            # A copy: FSDP2 could not hook the gradient of a view.
            values = self.value_head(hidden.to(self.dtype))[:, 0].clone()
        return Scores(logprobs, entropy, values)

    def infer(self, inputs: Mapping[str, Any]) -> Any:
        """The model's own output, computed through this root as sharded weights require.

        Args:
            inputs: arguments of the model's forward pass, by name.
        """
        return self.model(**inputs)

    def _sources(self, micro: MicroBatch, trunk: nn.Module) -> Tensor:
        """The last hidden state at the position that predicts each token: ``[n, H]``."""
        return self._hidden(trunk, micro).flatten(0, 1).index_select(0, micro.source)

    def _hidden(self, trunk: nn.Module, micro: MicroBatch) -> Tensor:
        """The last hidden states: ``[B, T, H]``."""
        with checkpointed_layers(trunk, self.memory):
            if micro.layout is not None or micro.input_ids.shape[1] <= self.unmasked_tokens:
                return hidden_states(trunk, micro.input_ids, micro.layout)
            mask = None
            if self._needs_mask:
                positions = torch.arange(micro.input_ids.shape[1], device=micro.input_ids.device)
                mask = (positions < micro.lengths[:, None]).long()
            output = trunk(input_ids=micro.input_ids, attention_mask=mask, use_cache=False)
        hidden: Tensor = output.last_hidden_state
        return hidden


class ScoringModel(PackingModel):
    """Scores sampled tokens with the weights of ``model``, which is used in place, not copied.

    Args:
        model: the object that the local policy samples from.
        temperature: sampling temperature; 0 (greedy) scores at 1, as policies do.
        own_trunk: whether values come from a separately trained copy of the model's trunk.
        with_values: whether there is a value head.
        memory: activation checkpointing, and buffers of the head.
        packing: whether rows are packed, if the model can compute packed rows.
        world: the ranks that divide micro-batches among them.

    Raises:
        ValueError: the model changes its logits after the last linear layer (capping, scaling),
            which :func:`rl.credit.logprobs.token_head` does not, or has no layers to checkpoint.
    """

    value_trunk: nn.Module | None = None
    """Trunk that computes the hidden states of values, or None if the model's own trunk does."""

    def __init__(
        self,
        model: PreTrainedModel,
        temperature: float = 1.0,
        own_trunk: bool = False,
        *,
        with_values: bool = False,
        memory: MemoryConfig = DEFAULT_MEMORY,
        packing: bool = False,
        world: World = SOLO,
    ) -> None:
        if temperature < 0:
            raise ValueError(f"temperature ({temperature}) must be >= 0")
        self.model = model
        self.temperature = temperature or 1.0
        self.world = world
        own_attention = can_pack(model, warns=packing)
        self.packs = packing and own_attention
        """Whether micro-batches are packed rows."""
        self.root = ScoringModule(
            model, with_values=with_values, own_trunk=own_trunk, memory=memory
        )
        """The module through which all forward passes go."""
        if own_attention:
            self.root.unmasked_tokens = longest_row(model) or sys.maxsize
        else:
            check_padded(model)
        self.value_head = self.root.value_head
        self.value_trunk = self.root.value_trunk
        self.replays_routing = False
        """Whether tokens use the experts with which the sampler computed them, see ``routers``."""
        self.on_score: Callable[[], None] = lambda: None
        """Called at the start of each micro-batch."""
        self._check_head()

    @property
    def context_window(self) -> int:
        """Maximum number of tokens in one sequence."""
        window: int = self.model.config.max_position_embeddings
        return window

    @property
    def device(self) -> torch.device:
        """The device of the head's weights."""
        return self.root.head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of scores: float32, or float64 for a float64 model."""
        return self.root.dtype

    def parameters(self) -> list[nn.Parameter]:
        """All trained parameters: those of the model, then those of the critic."""
        return [p for p in self.model.parameters() if p.requires_grad] + self.critic_parameters()

    def critic_parameters(self) -> list[nn.Parameter]:
        """Trained parameters that only values use. Empty without values."""
        parts = [part for part in (self.value_head, self.value_trunk) if part is not None]
        return [p for part in parts for p in part.parameters() if p.requires_grad]

    def micro_batches(
        self,
        batch: Batch,
        max_tokens: int,
        episodes: Tensor | None = None,
        *,
        whole: bool = False,
    ) -> list[MicroBatch]:
        """Cut the batch into micro-batches for this model; see :meth:`Batch.micro_batches`.

        With several ranks, micro-batches can be smaller than ``max_tokens``, to occupy all ranks.
        """
        longest = max(map(len, batch.rows), default=0)

        def cut(limit: int) -> list[MicroBatch]:
            packed = min(limit, self.fill_tokens(longest, limit))
            return batch.micro_batches(limit, episodes, whole=whole, packed=packed)

        return self.world.divided(cut, max_tokens, _cost)

    def shared(self, parts: Sequence[MicroBatch]) -> list[tuple[MicroBatch, bool]]:
        """The micro-batches that this rank computes, each with whether its result counts."""
        return self.world.share(parts, _cost)

    def one_pass(self, batch: Batch) -> MicroBatch:
        """The whole batch, which has a token, as one micro-batch."""
        packs = self.fill_tokens(max(map(len, batch.rows)), 1) > 0
        (micro,) = batch.micro_batches(sys.maxsize, packed=sys.maxsize if packs else 0)
        return micro

    def score(self, micro: MicroBatch) -> TokenScores:
        """Score the micro-batch's tokens at the temperature; see :meth:`ScoringModule.forward`.

        Args:
            micro: a micro-batch on the model's device.
        """
        self.on_score()
        if not self.replays_routing:
            micro = replace(micro, experts=None)
        scores: Scores = self.root(micro, self.temperature)
        return TokenScores(*scores)

    def score_batch(self, batch: Batch, max_tokens: int) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities, and values or None, of all tokens; see :meth:`score_tokens`."""
        scores = self.score_tokens(batch, max_tokens)
        return scores.logprobs, scores.values

    @torch.no_grad()
    def score_tokens(self, batch: Batch, max_tokens: int) -> TokenScores:
        """Scores of all N tokens of ``batch``, in float64 and on the CPU.

        Args:
            batch: the batch to score.
            max_tokens: maximum tokens of one forward pass, padding included.
        """
        share = self.shared(self.micro_batches(batch, max_tokens))
        scored = [self.score(micro) for micro in uploaded([x for x, _ in share], self.device)]
        columns = [[scores.logprobs for scores in scored], [scores.entropy for scores in scored]]
        if self.value_head is not None:
            columns.append([scores.values for scores in scored if scores.values is not None])
        found = iter(read([x for column in columns for x in column]))
        counted = [
            [(micro.tokens, x) for (micro, counts), x in zip(share, found, strict=False) if counts]
            for _ in columns
        ]
        tables = [torch.empty(batch.num_tokens, dtype=torch.float64) for _ in columns]
        for scores_of_rank in self.world.gather(counted):
            for table, parts in zip(tables, scores_of_rank, strict=True):
                for tokens, x in parts:
                    table[tokens] = x
        return TokenScores(*tables)

    @torch.no_grad()
    def _check_head(self) -> None:
        """Check on a few tokens that this class computes the same logits as the model.

        The head's output is enlarged for the check: a cap at 30 hardly changes the small logits of
        a new model.
        """
        head = self.root.head
        ids = torch.arange(4, device=self.device)[None] % head.out_features
        trunk = self.root.trunk(input_ids=ids, attention_mask=None, use_cache=False)
        hidden = trunk.last_hidden_state.to(head.weight.dtype)
        ours = nn.functional.linear(hidden, head.weight, head.bias)
        scale = 100.0 / max(ours.abs().max().item(), 1e-9)
        hook = head.register_forward_hook(lambda module, given, output: output * scale)
        try:
            theirs = self.model(input_ids=ids, use_cache=False).logits
        finally:
            hook.remove()
        tolerance = 1e-4 if ours.dtype in (torch.float32, torch.float64) else 2e-2
        ours, theirs = ours.float() * scale, theirs.float()
        equal = torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
        # Dory's head multiplies each logit by a weight of its own, which is 1 at first.
        if not equal or type(head).forward is not nn.Linear.forward:
            raise ValueError(
                f"model_type ({self.model.config.model_type}) changes its logits after the last "
                f"linear layer (capping or scaling), which the learner does not: use a model "
                f"whose logits are that layer's output (Qwen, Llama, Mistral, GPT-2, ...)"
            )


def _cost(micro: MicroBatch) -> int:
    """Number of computed tokens, padding included."""
    return micro.input_ids.numel()


class BaseModel(ScoringModel):
    """Scores with the initial model, without a copy, by disabling the model's adapter."""

    def score(self, micro: MicroBatch) -> TokenScores:
        """Score the tokens with the base model; see :meth:`ScoringModel.score`."""
        with without_adapter(self.model):
            return super().score(micro)


def make_reference(
    model: PreTrainedModel,
    algorithm: Algorithm,
    temperature: float,
    memory: MemoryConfig = DEFAULT_MEMORY,
    *,
    packing: bool = False,
    world: World = SOLO,
) -> ScoringModel | None:
    """A reference with the model's current weights, or None if the algorithm has no divergence.

    The reference is a copy of the model. If only an adapter is trained, no copy is needed: the
    reference is the base model, unless ``kl.ref_every`` renews the reference.
    """
    if algorithm.kl.coef <= 0:
        return None
    if not needs_copy(model, algorithm):
        return BaseModel(model, temperature, memory=memory, packing=packing, world=world)
    frozen = copy.deepcopy(model).requires_grad_(False)
    return ScoringModel(frozen, temperature, memory=memory, packing=packing, world=world)


def shard(policy: ScoringModel, reference: ScoringModel | None) -> None:
    """Divide the weights of the policy and of its reference among the policy's ranks, in place."""
    policy.world.shard(policy.root)
    if isinstance(reference, BaseModel):
        # The same weights: their ranks gather them for one root only.
        reference.root = policy.root if policy.world.size > 1 else reference.root
    elif reference is not None:
        reference.world.shard(reference.root)


def needs_copy(model: PreTrainedModel, algorithm: Algorithm) -> bool:
    """Whether the reference is a copy of the model; see :func:`make_reference`."""
    return algorithm.kl.coef > 0 and not (is_adapted(model) and not algorithm.kl.ref_every)


def copied(reference: ScoringModel | None) -> PreTrainedModel | None:
    """The reference's own copy of the model, or None if it has no copy."""
    return None if reference is None or isinstance(reference, BaseModel) else reference.model
