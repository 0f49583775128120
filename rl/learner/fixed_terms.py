"""What stays fixed while an update lasts, computed with the weights as it starts."""

from __future__ import annotations

from torch import Tensor

from rl.credit.algorithm import Algorithm
from rl.credit.assignment import assign_credit
from rl.credit.batch import Batch
from rl.credit.corrections import correction_weights
from rl.credit.objective import FixedTerms
from rl.learner.model import ScoringModel


def fixed_terms(
    algorithm: Algorithm,
    model: ScoringModel,
    reference: ScoringModel | None,
    batch: Batch,
    max_tokens: int,
    token_scores: Tensor | None = None,
) -> tuple[FixedTerms, dict[str, float]]:
    """Old and reference log-probabilities, values, advantages and corrections of a batch.

    Args:
        algorithm: the row of choices.
        model: the policy.
        reference: what divergence is measured from; None where the algorithm does not.
        batch: the episodes of the update.
        max_tokens: most tokens, padding counted, in one forward pass.
        token_scores: ``[N]``, of the model that says what tokens are worth.

    Returns:
        The terms, on the model's device and in its type, and the metrics that they give.
    """
    one_step = algorithm.epochs * algorithm.minibatches == 1
    kl_in_reward = reference is not None and algorithm.kl.place == "reward"
    corrects = algorithm.correction.kind != "none"
    drops = algorithm.correction.drop_divergence is not None
    recompute = algorithm.old_logprobs == "update" and (corrects or not one_step)
    old, values, ref = None, None, None
    if recompute or algorithm.uses_values or kl_in_reward:
        old, values = model.score_batch(batch, max_tokens)
    if reference is not None:
        ref, _ = reference.score_batch(batch, max_tokens)
    credit = assign_credit(algorithm, batch, values, old, ref, token_scores)
    metrics = dict(credit.metrics)
    corrections = None
    if corrects:
        assert old is not None
        corrections, told = correction_weights(
            algorithm, old, batch.sampling_logprobs, batch.episode_ids
        )
        metrics.update(told)
    fixed = FixedTerms(
        advantages=credit.advantages,
        old_logprobs=batch.sampling_logprobs if algorithm.old_logprobs == "sampling" else old,
        ref_logprobs=None if kl_in_reward else ref,
        old_values=values,
        returns=credit.returns,
        corrections=corrections,
        sampling_logprobs=batch.sampling_logprobs if drops else None,
    )
    return fixed.to(model.device, model.dtype), metrics
