"""Checks the results of advantages."""

from __future__ import annotations

from dataclasses import replace

import torch

from rl.credit.advantages.inputs import CreditInputs
from rl.credit.batch import Batch
from rl.credit.plugin import Advantage, Credit
from rl.errors import RunFailure
from rl.rollout.trajectory import Segment


def check_credit(advantage: Advantage, credit: Credit, num_tokens: int) -> None:
    """Check that a plug-in returned one number for each token.

    Raises:
        RunFailure: the plug-in returned no value targets, or tensors of another shape.
    """
    returned = {"advantages": credit.advantages}
    if advantage.needs_values:
        if credit.returns is None:
            raise RunFailure(
                f"algo.advantage={advantage.name} has needs_values=True but returned no value "
                f"targets: return Credit(advantages, returns)"
            )
        returned["returns"] = credit.returns
    for name, numbers in returned.items():
        if numbers.shape != (num_tokens,):
            raise RunFailure(
                f"algo.advantage={advantage.name} gave {name} of shape {tuple(numbers.shape)}, "
                f"expected ({num_tokens},): one for each token"
            )


def check_values(advantage: Advantage) -> None:
    """Check, on two short episodes, that an advantage with values returns value targets.

    Raises:
        ValueError: the advantage returns no value targets, or raises an error.
    """
    segments = [Segment([0, 1, 2], [0, 1, 1], [0.0] * 3, [-1, 0, 0], [0, 0, 1]) for _ in range(2)]
    batch = replace(
        Batch.from_segments(segments),
        turn_ends=torch.arange(4),
        turn_rewards=torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64),
        turn_values=torch.zeros(4, dtype=torch.float64),
        turn_anchors=torch.arange(4),
        rewards=torch.tensor([1.0, 0.0], dtype=torch.float64),
        group_ids=torch.zeros(2, dtype=torch.int64),
    )
    zeros = torch.zeros(batch.num_tokens, dtype=torch.float64)
    scores = None if "none" in advantage.token_rewards else zeros
    try:
        credit = advantage.credit(CreditInputs(batch, zeros, scores))
        check_credit(advantage, credit, batch.num_tokens)
    except RunFailure as error:
        raise ValueError(str(error)) from error
    except Exception as error:
        raise ValueError(
            f"algo.advantage={advantage.name} fails on two episodes of two tokens: "
            f"{type(error).__name__}: {error}"
        ) from error
