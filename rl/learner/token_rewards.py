"""Token rewards from a model phi, which is trained with the policy on the episodes' outcomes.

``implicit`` is PRIME's implicit process reward model (arXiv 2502.01456, section 3.2): a token's
score is q = log(phi / initial), and an episode is right with probability sigmoid(beta sum q).
``head`` is OREAL's token reward model (arXiv 2502.06781, section 3.3): a token's score w comes from
a linear head, and an episode is right with probability sigmoid(mean w).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl.credit.algorithm import Algorithm
from rl.credit.batch import Batch
from rl.credit.steps import Portion
from rl.errors import RunFailure
from rl.learner.memory.transfers import read, uploaded
from rl.learner.optimizer import Optimizer
from rl.learner.ranks.world import SOLO, World
from rl.learner.scoring import ScoringModel, shard
from rl.learner.settings import DEFAULT_MEMORY, MemoryConfig, OptimizerConfig


class TokenRewards:
    """The token reward model phi, which starts as a copy of the policy's model.

    Args:
        model: the policy's initial model.
        algorithm: the settings; only ``token_rewards`` is read.
        optimizer: the policy's optimizer settings; phi's learning rate is ``lr_ratio``
            times that of the policy.
        temperature: sampling temperature of the episodes.
        max_tokens: maximum tokens of one forward pass, padding included.
        memory: activation checkpointing of phi.
        packing: whether rows are packed.
        world: the ranks that compute each update together.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        algorithm: Algorithm,
        optimizer: OptimizerConfig,
        temperature: float,
        max_tokens: int,
        memory: MemoryConfig = DEFAULT_MEMORY,
        packing: bool = False,
        world: World = SOLO,
    ) -> None:
        self._world = world
        self._algorithm = algorithm
        self._max_tokens = max_tokens
        implicit = algorithm.token_rewards.kind == "implicit"
        self.model = ScoringModel(
            copy.deepcopy(model),
            temperature,
            with_values=not implicit,
            memory=memory,
            packing=packing,
            world=world,
        )
        frozen = copy.deepcopy(model).requires_grad_(False)
        self._initial = (
            ScoringModel(frozen, temperature, memory=memory, packing=packing, world=world)
            if implicit
            else None
        )
        shard(self.model, self._initial)
        rate = min(1.0, optimizer.lr * algorithm.token_rewards.lr_ratio)
        settings = replace(optimizer, lr=rate)
        self.optimizer = Optimizer(self.model.parameters(), settings, world=world)

    def scores(self, batch: Batch) -> Tensor:
        """The score of each token, ``[N]`` float64 on the CPU.

        Scores are computed over the whole vocabulary, because they do not depend on how tokens were
        sampled.
        """
        batch = batch.whole_vocabulary()
        logprobs, values = self.model.score_batch(batch, self._max_tokens)
        if self._initial is None:
            assert values is not None
            return values
        return logprobs - self._initial.score_batch(batch, self._max_tokens)[0]

    def accumulate(self, batch: Batch, scores: Tensor) -> dict[str, float]:
        """Compute the gradient of the outcomes' mean cross-entropy, which :meth:`step` applies.

        The cross-entropy depends on an episode's scores only through their sum. Its gradient is
        therefore the scores' gradient times one factor per episode.

        Args:
            batch: a batch with outcomes.
            scores: ``[N]``, the result of :meth:`scores`.

        Returns:
            ``token_rewards/loss``, in nats per episode, and ``token_rewards/accuracy``, the share
            of episodes whose outcome phi predicts.

        Raises:
            RunFailure: the loss or gradient is not finite; nothing has changed.
        """
        lengths = batch.episode_ids.bincount(minlength=len(batch.rewards))
        scale = torch.full_like(batch.outcomes, self._algorithm.token_rewards.beta)
        if self._initial is None:
            scale = 1 / lengths.clamp_min(1).double()
        sums = torch.zeros_like(batch.outcomes).index_add(0, batch.episode_ids, scores)
        present = lengths > 0
        logits, outcomes = (scale * sums)[present], batch.outcomes[present]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, outcomes).item()
        slopes = (torch.sigmoid(scale * sums) - batch.outcomes) * scale / len(logits)
        slopes = slopes.to(self.model.dtype)
        parts = [
            Portion(micro, weights=slopes[owners], rows=owners)
            for micro in self.model.micro_batches(batch.whole_vocabulary(), self._max_tokens)
            for owners in [batch.episode_ids[micro.tokens]]
        ]
        share = self._world.share(parts, lambda part: part.micro.input_ids.numel())
        own = [part if counts else part.without_weight() for part, counts in share]
        for part in uploaded(own, self.model.device):
            scored = self.model.score(part.micro)
            trained = scored.logprobs if scored.values is None else scored.values
            self.optimizer.backward((trained * part.weights).sum())
        norm = read([self.optimizer.clip_gradients()])[0].item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.optimizer.zero_grad()
            raise RunFailure(
                f"the token rewards' loss is {loss} and its gradient's norm {norm}: "
                f"lower algo.token_rewards.lr_ratio"
            )
        right = ((logits > 0) == (outcomes > 0.5)).double().mean().item()
        return {"token_rewards/loss": loss, "token_rewards/accuracy": right}

    def step(self) -> None:
        """Make one optimizer step with the gradient of :meth:`accumulate`."""
        self.optimizer.step()

    def models(self) -> list[PreTrainedModel]:
        """The models that only updates use."""
        both = (self.model, self._initial)
        return [scoring.model for scoring in both if scoring is not None]

    def drop_gradient(self) -> None:
        """Drop the gradient of :meth:`accumulate`, after a failed update."""
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """State for a resumable run, including phi's initial model."""
        head = self.model.value_head
        return {
            "model": self.model.model.state_dict(),
            "head": None if head is None else head.state_dict(),
            "initial": None if self._initial is None else self._initial.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of :meth:`state_dict`, for the same kind of token rewards."""
        self._world.load(self.model.model, state["model"])
        if self.model.value_head is not None:
            self._world.load(self.model.value_head, state["head"])
        if self._initial is not None:
            self._world.load(self._initial.model, state["initial"])
        self.optimizer.load_state_dict(state["optimizer"])
