"""The model that a divergence is measured from."""

from __future__ import annotations

import copy

from transformers import PreTrainedModel

from rl.credit.algorithm import Algorithm
from rl.credit.batch import MicroBatch
from rl.credit.objective import TokenScores
from rl.learner.lora import is_adapted, without_adapter
from rl.learner.model import ScoringModel


class BaseModel(ScoringModel):
    """Scores with the model's adapter switched off: the model before training, without a copy."""

    def score(self, micro: MicroBatch) -> TokenScores:
        """As :meth:`ScoringModel.score`, by the base model."""
        with without_adapter(self.model):
            return super().score(micro)


def make_reference(
    model: PreTrainedModel, algorithm: Algorithm, temperature: float
) -> ScoringModel | None:
    """The model as it is now; None where the algorithm does not refer to it.

    A copy, but where an adapter alone is trained: then it is the base model, unless the reference
    is to be renewed (``kl.ref_every``), which needs the copy.
    """
    if algorithm.kl.coef <= 0:
        return None
    if is_adapted(model) and not algorithm.kl.ref_every:
        return BaseModel(model, temperature)
    return ScoringModel(copy.deepcopy(model).requires_grad_(False), temperature)


def copied(reference: ScoringModel | None) -> PreTrainedModel | None:
    """The reference's own weights; None where it has none."""
    return None if reference is None or isinstance(reference, BaseModel) else reference.model
