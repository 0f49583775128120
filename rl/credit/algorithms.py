"""The table of algorithms. Each row is one set of options.

``ALGORITHMS["grpo"].changed({"surrogate.clip_high": 0.28})`` changes options, by the keys of the
command line. A package adds a row by the entry-point group ``turnwise.algorithms``, and a program
by :func:`register_algorithm`.
"""

from __future__ import annotations

import sys

from rl.credit.advantages import (
    BatchOutcome,
    BilevelGae,
    Gae,
    GroupDense,
    GroupInGroup,
    GroupOutcome,
    RewardToGo,
    RoleAverage,
    TurnGae,
    Vine,
)
from rl.credit.algorithm import KL, Algorithm, TokenRewardModel, Value
from rl.credit.surrogates import (
    Cispo,
    Clip,
    Gmpo,
    Gspo,
    MirrorDescent,
    Oreal,
    Reinforce,
    Sapo,
)
from tools.registry import PluginImportError, Registry

ALGORITHMS: dict[str, Algorithm] = {
    # DeepSeekMath, arXiv 2402.03300, without its KL term (there kl.coef 0.04, k3 in the loss).
    "grpo": Algorithm(
        advantage=GroupOutcome(std="unbiased"),
        aggregation="seq-mean-token-mean",
    ),
    # Understanding R1-Zero-Like Training, arXiv 2503.20783: neither std nor length divides.
    "dr-grpo": Algorithm(
        advantage=GroupOutcome(std="none"),
        aggregation="seq-mean-token-sum-norm",
        max_tokens=3000,
    ),
    # The loss of DAPO, arXiv 2503.14476: clip-higher and the token mean. Its dynamic sampling and
    # overlong rewards are settings of the rollout and of the reward.
    "dapo-loss": Algorithm(
        advantage=GroupOutcome(std="unbiased"),
        surrogate=Clip(clip_high=0.28),
        aggregation="token-mean",
    ),
    # Group Sequence Policy Optimization, arXiv 2507.18071: the ratio of a whole sequence, its
    # bounds, and four optimizer steps for each update (section 5.1).
    "gspo": Algorithm(
        advantage=GroupOutcome(),
        surrogate=Gspo(clip_low=3e-4, clip_high=4e-4),
        aggregation="seq-mean-token-mean",
        minibatches=4,
    ),
    # MiniMax-M1, arXiv 2506.13585, section 3.1: every token has a gradient; its weight is bounded,
    # from above only. The bound is not in the paper; 5 is SkyRL's.
    "cispo": Algorithm(
        advantage=GroupOutcome(),
        surrogate=Cispo(clip_low=1.0, clip_high=4.0),
        aggregation="token-mean",
    ),
    # Soft Adaptive Policy Optimization, arXiv 2511.20347: a gate that closes gradually instead of
    # the clip. It is open while pi equals pi_old, hence the optimizer steps of GSPO.
    "sapo": Algorithm(
        advantage=GroupOutcome(),
        surrogate=Sapo(),
        aggregation="seq-mean-token-mean",
        minibatches=4,
    ),
    # Geometric-Mean Policy Optimization, arXiv 2507.20673, with its bounds on the log of a ratio.
    "gmpo": Algorithm(
        advantage=GroupOutcome(),
        surrogate=Gmpo(clip_low=0.4, clip_high=0.4),
        aggregation="seq-mean-token-mean",
        minibatches=4,
    ),
    # Back to Basics, arXiv 2402.14740: the mean of the others, one on-policy step.
    "rloo": Algorithm(
        advantage=GroupOutcome(baseline="leave-one-out", std="none"),
        surrogate=Reinforce(),
        aggregation="token-mean",
    ),
    # On-Policy RL with Optimal Reward Baseline, arXiv 2505.23585: exactly on-policy, the mean
    # weighted by lengths.
    "opo": Algorithm(
        advantage=GroupOutcome(baseline="length-weighted", std="none"),
        surrogate=Reinforce(),
        aggregation="token-mean",
    ),
    # Kimi k1.5, arXiv 2501.12599, section 2.3.2: mirror descent from the policy that sampled, the
    # group's mean, an optimizer that is reset in each update. The paper does not give tau.
    "kimi": Algorithm(
        advantage=GroupOutcome(std="none"),
        surrogate=MirrorDescent(),
        aggregation="token-mean",
        forget_optimizer=True,
        minibatches=4,
    ),
    # MaxRL: centred rewards over the group's success rate, which gives rare successes more weight.
    "maxrl": Algorithm(
        advantage=GroupOutcome(std="mean"),
        surrogate=Reinforce(),
        aggregation="token-mean",
    ),
    # OREAL, arXiv 2502.06781: imitate right episodes, make wrong ones less likely; a token
    # reward model weights the tokens. Constants of its code.
    "oreal": Algorithm(
        advantage=GroupOutcome(baseline="leave-one-out", std="none"),
        surrogate=Oreal(loss_coef=0.5),
        aggregation="outcome-mean",
        token_rewards=TokenRewardModel(kind="head", lr_ratio=4.0),
        kl=KL(coef=0.01),
    ),
    # PRIME, arXiv 2502.01456: token rewards from a model that learns from outcomes only. The weight
    # of the rewards and the model's learning rate are ours (docs/algorithms.md).
    "prime": Algorithm(
        advantage=GroupDense(token_coef=1.0),
        whiten=True,
        aggregation="token-mean",
        token_rewards=TokenRewardModel(kind="implicit", lr_ratio=8.0),
    ),
    # GiGPO, arXiv 2505.10978, as langfengQ/verl-agent has it by default: no standard deviation.
    "gigpo": Algorithm(
        advantage=GroupInGroup(std="none", gamma_turn=0.95),
        aggregation="token-mean",
    ),
    # VinePPO, arXiv 2410.01679, without its KL term (there 1e-4, k3 in the loss) and with one
    # optimizer step instead of its two passes over eight minibatches.
    "vineppo": Algorithm(
        advantage=Vine(rollouts=9),
        whiten=True,
        aggregation="token-mean",
    ),
    # Crossing the Reward Bridge, arXiv 2503.23829, section 3.2: rewards as z-scores of the batch,
    # without its KL term (there 0.01, in the reward).
    "reinforce": Algorithm(
        advantage=BatchOutcome(std="biased"),
        surrogate=Reinforce(),
        aggregation="token-mean",
    ),
    # REINFORCE++, arXiv 2501.03262, without its KL term: no group, advantages whitened over the
    # batch.
    "reinforce-pp": Algorithm(
        advantage=RewardToGo(),
        whiten=True,
        aggregation="token-mean",
    ),
    # REINFORCE++ for groups: the group's mean is subtracted before the batch is whitened.
    "reinforce-pp-baseline": Algorithm(
        advantage=GroupOutcome(std="none"),
        whiten=True,
        aggregation="token-mean",
    ),
    # SPIRAL, arXiv 2506.24119: self-play with a moving average for each role as the baseline.
    "spiral": Algorithm(
        advantage=RoleAverage(alpha=0.95),
        surrogate=Reinforce(),
        aggregation="token-mean",
    ),
    # PPO with Open-Reasoner-Zero's options (arXiv 2503.24290): gamma = lambda = 1, one on-policy
    # update, no KL term. With lambda 0.95 and 4 epochs, success dropped (docs/algorithms.md).
    "ppo": Algorithm(
        advantage=Gae(gamma=1.0, lam=1.0),
        whiten=True,
        aggregation="token-mean",
        kl=KL(estimator="k1", place="reward"),
        value=Value(coef=0.1, clip=0.2),
    ),
    # Open-Reasoner-Zero, arXiv 2503.24290: ppo without a bound on values.
    "orz": Algorithm(
        advantage=Gae(gamma=1.0, lam=1.0),
        whiten=True,
        aggregation="token-mean",
        kl=KL(estimator="k1", place="reward"),
        value=Value(coef=0.1),
    ),
    # One value and one advantage for each turn, as in AReaL and verl-agent; lambda and discount
    # apply per turn.
    "turn-ppo": Algorithm(
        advantage=TurnGae(lam=0.95),
        whiten=True,
        aggregation="token-mean",
        kl=KL(estimator="k1", place="reward"),
        value=Value(coef=0.1, clip=0.2),
    ),
    # VAGEN's bi-level estimator with explicit ends of turns, and its discount per turn.
    "bilevel-ppo": Algorithm(
        advantage=BilevelGae(gamma_turn=0.95),
        whiten=True,
        aggregation="token-mean",
        kl=KL(estimator="k1", place="reward"),
        value=Value(coef=0.1, clip=0.2),
    ),
}
"""The built-in rows. :func:`find_algorithm` also finds the rows of plug-ins."""
_registry = Registry("algorithm", "turnwise.algorithms")
_interactive: dict[str, Algorithm] = {}
"""Rows that a notebook or script registered. Running the same code again replaces them."""
for _name, _row in ALGORITHMS.items():
    _registry.register(_name, _row)


def register_algorithm(name: str, row: Algorithm) -> None:
    """Register a row in this process. A notebook's cell or a script can replace its own row.

    Raises:
        TypeError: ``row`` is not an Algorithm.
        ValueError: another row has the name.
    """
    if not isinstance(row, Algorithm):
        raise TypeError(
            f"algorithm {name!r} is {row!r}: it must be a rl.credit.algorithm.Algorithm"
        )
    # Rows have no module of their own: the caller is the definition.
    interactive = sys._getframe(1).f_globals.get("__name__") == "__main__"
    if not (interactive and name in _interactive):
        _registry.register(name, row)
    if interactive:
        _interactive[name] = row


def algorithm_names() -> list[str]:
    """Names of all algorithms: first those of the table, in its order, then those of plug-ins."""
    return [*ALGORITHMS, *(name for name in _registry.names() if name not in ALGORITHMS)]


def find_algorithm(name: str) -> Algorithm:
    """The algorithm with this name, from the table or from a plug-in.

    Raises:
        UnknownNameError: no algorithm has the name.
        PluginImportError: the plug-in cannot be imported, or is not an Algorithm.
    """
    row = _interactive.get(name) or _registry.get(name)
    if not isinstance(row, Algorithm):
        raise PluginImportError(
            f"algorithm {name!r} is {row!r}: it must be a rl.credit.algorithm.Algorithm"
        )
    return row
