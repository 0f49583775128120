"""The table of algorithms: each is a row of choices, so that a reader sees how two differ.

A choice is changed with ``dataclasses.replace(ALGORITHMS["grpo"], clip_high=0.28)``.
"""

from __future__ import annotations

from rl.credit.algorithm import Algorithm

ALGORITHMS: dict[str, Algorithm] = {
    # DeepSeekMath, arXiv 2402.03300, without its KL term (there kl_coef 0.04, k3 in the loss).
    "grpo": Algorithm(
        advantage="group-outcome",
        std="unbiased",
        aggregation="seq-mean-token-mean",
    ),
    # Understanding R1-Zero-Like Training, arXiv 2503.20783: neither std nor length divides.
    "dr-grpo": Algorithm(
        advantage="group-outcome",
        std="none",
        aggregation="seq-mean-token-sum-norm",
        max_tokens=3000,
    ),
    # The loss of DAPO, arXiv 2503.14476: clip-higher and the token mean. Its dynamic sampling and
    # overlong rewards are choices of the rollout and of the reward.
    "dapo-loss": Algorithm(
        advantage="group-outcome",
        std="unbiased",
        clip_high=0.28,
        aggregation="token-mean",
    ),
    # Group Sequence Policy Optimization, arXiv 2507.18071: the ratio of a whole sequence, its
    # bounds, and four optimizer steps for each update (section 5.1).
    "gspo": Algorithm(
        advantage="group-outcome",
        surrogate="gspo",
        clip_low=3e-4,
        clip_high=4e-4,
        aggregation="seq-mean-token-mean",
        minibatches=4,
    ),
    # MiniMax-M1, arXiv 2506.13585, section 3.1: no token's gradient is dropped, its weight is
    # bounded instead, from above only. The bound is not in the paper; 5 is SkyRL's.
    "cispo": Algorithm(
        advantage="group-outcome",
        surrogate="cispo",
        clip_low=1.0,
        clip_high=4.0,
        aggregation="token-mean",
    ),
    # Soft Adaptive Policy Optimization, arXiv 2511.20347: a gate that closes gradually, in place of
    # the clip. It is open while pi is pi_old, hence the optimizer steps of GSPO.
    "sapo": Algorithm(
        advantage="group-outcome",
        surrogate="sapo",
        aggregation="seq-mean-token-mean",
        minibatches=4,
    ),
    # Geometric-Mean Policy Optimization, arXiv 2507.20673, with its bounds on the log of a ratio.
    "gmpo": Algorithm(
        advantage="group-outcome",
        surrogate="gmpo",
        clip_low=0.4,
        clip_high=0.4,
        aggregation="seq-mean-token-mean",
        minibatches=4,
    ),
    # Back to Basics, arXiv 2402.14740: the mean of the others, one on-policy step.
    "rloo": Algorithm(
        advantage="group-outcome",
        baseline="leave-one-out",
        std="none",
        surrogate="reinforce",
        aggregation="token-mean",
    ),
    # On-Policy RL with Optimal Reward Baseline, arXiv 2505.23585: exactly on-policy, the mean
    # weighted by lengths.
    "opo": Algorithm(
        advantage="group-outcome",
        baseline="length-weighted",
        std="none",
        surrogate="reinforce",
        aggregation="token-mean",
    ),
    # Kimi k1.5, arXiv 2501.12599, section 2.3.2: mirror descent from the policy that sampled, the
    # group's mean, an optimizer that begins anew. It does not give tau.
    "kimi": Algorithm(
        advantage="group-outcome",
        std="none",
        surrogate="mirror-descent",
        aggregation="token-mean",
        forget_optimizer=True,
        minibatches=4,
    ),
    # MaxRL: centred rewards over the group's success rate, which weighs rare successes more.
    "maxrl": Algorithm(
        advantage="group-outcome",
        std="mean",
        surrogate="reinforce",
        aggregation="token-mean",
    ),
    # OREAL, arXiv 2502.06781: imitate right episodes, drive wrong ones off, each token by how far a
    # model of tokens believes the outcome; constants of its code.
    "oreal": Algorithm(
        advantage="group-outcome",
        baseline="leave-one-out",
        std="none",
        surrogate="oreal",
        token_rewards="head",
        token_lr_ratio=4.0,
        loss_coef=0.5,
        aggregation="outcome-mean",
        kl_coef=0.01,
    ),
    # PRIME, arXiv 2502.01456: rewards of tokens from a model that learns from outcomes alone. Their
    # weight and the model's rate are ours (docs/algorithms.md).
    "prime": Algorithm(
        advantage="group-dense",
        std="none",
        whiten=True,
        token_rewards="implicit",
        token_lr_ratio=8.0,
        aggregation="token-mean",
    ),
    # GiGPO, arXiv 2505.10978, as langfengQ/verl-agent has it by default: no standard deviation.
    "gigpo": Algorithm(
        advantage="group-in-group",
        gamma_turn=0.95,
        std="none",
        aggregation="token-mean",
    ),
    # VinePPO, arXiv 2410.01679, without its KL term (there 1e-4, k3 in the loss) and with one
    # optimizer step in the place of its two passes over eight minibatches.
    "vineppo": Algorithm(
        advantage="vine",
        whiten=True,
        aggregation="token-mean",
    ),
    # Crossing the Reward Bridge, arXiv 2503.23829, section 3.2: rewards as z-scores of the batch,
    # without its KL term (there 0.01, in the reward).
    "reinforce": Algorithm(
        advantage="batch-outcome",
        std="biased",
        surrogate="reinforce",
        aggregation="token-mean",
    ),
    # REINFORCE++, arXiv 2501.03262, without its KL term: no group, advantages whitened over the
    # batch.
    "reinforce-pp": Algorithm(
        advantage="reward-to-go",
        std="none",
        whiten=True,
        aggregation="token-mean",
    ),
    # Its form for groups: the group's mean first, then whitened over the batch.
    "reinforce-pp-baseline": Algorithm(
        advantage="group-outcome",
        std="none",
        whiten=True,
        aggregation="token-mean",
    ),
    # PPO with Open-Reasoner-Zero's choices (arXiv 2503.24290): gamma = lambda = 1, one on-policy
    # update, no KL term. With lambda 0.95 and 4 epochs it fell back (docs/algorithms.md).
    "ppo": Algorithm(
        advantage="gae",
        gamma=1.0,
        lam=1.0,
        whiten=True,
        aggregation="token-mean",
        kl_estimator="k1",
        kl_place="reward",
        value_coef=0.1,
        value_clip=0.2,
    ),
    # Open-Reasoner-Zero, arXiv 2503.24290: the same without a bound on values.
    "orz": Algorithm(
        advantage="gae",
        gamma=1.0,
        lam=1.0,
        whiten=True,
        aggregation="token-mean",
        kl_estimator="k1",
        kl_place="reward",
        value_coef=0.1,
    ),
    # One value and one advantage for each turn, as in AReaL and verl-agent; lambda and discount are
    # those of turns.
    "turn-ppo": Algorithm(
        advantage="turn-gae",
        whiten=True,
        lam=0.95,
        aggregation="token-mean",
        kl_estimator="k1",
        kl_place="reward",
        value_coef=0.1,
        value_clip=0.2,
    ),
    # VAGEN's bi-level estimator with explicit ends of turns, and its discount of turns.
    "bilevel-ppo": Algorithm(
        advantage="bilevel-gae",
        gamma_turn=0.95,
        whiten=True,
        aggregation="token-mean",
        kl_estimator="k1",
        kl_place="reward",
        value_coef=0.1,
        value_clip=0.2,
    ),
}
