"""DPO's implicit reward: a policy's log-probability of an answer, times beta."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agents.segment import Segment
from rl.credit.batch import Batch
from rl.credit.options import Reduction
from rl.learner.scoring import ScoringModel, ScoringModule
from rl.learner.settings import DEFAULT_MEMORY, MemoryConfig
from rl.preferences.losses import answer_log_ratios


class PolicyReward:
    """Rewards an answer with ``beta log pi(answer)``, from which DPO's implicit reward follows.

    The implicit reward is ``beta log(pi / pi_ref)`` (Rafailov et al., arXiv 2305.18290, section 4).
    The part of the reference ``pi_ref`` is constant.
    :func:`rl.preferences.updater.anchored` keeps it as numbers, so there is no second model.

    Args:
        model: a causal language model, which is trained in place.
        beta: how strongly the policy is kept near the reference.
        reduction: how an answer's log-ratio is computed from those of its tokens; see
            :func:`rl.preferences.losses.answer_log_ratios`.
        memory: what training keeps in memory. Results do not depend on it.
        packing: whether rows are packed and share prefixes, if the model can compute such rows.

    Raises:
        ValueError: the learner cannot score this kind of model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        beta: float,
        reduction: Reduction = "sum",
        memory: MemoryConfig = DEFAULT_MEMORY,
        *,
        packing: bool = True,
    ) -> None:
        self.model = ScoringModel(model, memory=memory, packing=packing)
        self.beta = beta
        self.reduction = reduction

    @property
    def root(self) -> ScoringModule:
        """The module through which all forward passes go."""
        return self.model.root

    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters."""
        return self.model.parameters()

    def parts(self, units: Sequence[Sequence[Segment]], max_tokens: int) -> list[list[int]]:
        """Divide units of answers into forward passes; see ``PreferenceUpdater``'s ``Rewarder``."""
        return self.model.parts([[s.token_ids for s in unit] for unit in units], max_tokens)

    def score(self, segments: Sequence[Segment]) -> Tensor:
        """The reward of each answer, in one forward pass. ``[K]`` float64 on the CPU.

        Raises:
            ValueError: an answer has no token with loss_mask 1.
        """
        batch = Batch.from_segments(segments)
        if len(batch.episode_ids.unique()) < len(segments):
            raise ValueError("an answer has no token of its own: there is nothing to reward")
        turns = torch.tensor(
            [
                turn
                for segment in segments
                for turn, mask in zip(segment.turn_ids, segment.loss_mask, strict=True)
                if mask
            ]
        )
        micro = self.model.one_pass(batch).map(lambda x: x.to(self.model.device))
        logprobs = self.model.score(micro).logprobs.cpu().double()
        # The caller subtracts the reference's part, which sums and means allow.
        return self.beta * answer_log_ratios(
            logprobs, batch.episode_ids[micro.tokens], turns[micro.tokens], self.reduction
        )
