"""Keys of earlier versions that now have another name."""

from __future__ import annotations

RENAMED: dict[str, str] = {
    f"algo.{old}": f"algo.{new}"
    for old, new in {
        **{
            key: f"advantage.{key}"
            for key in (
                "baseline",
                "std",
                "gamma",
                "gamma_turn",
                "turn_weight",
                "lam",
                "lam_alpha",
                "whiten_rewards",
                "token_coef",
            )
        },
        "vine_rollouts": "advantage.rollouts",
        **{
            key: f"surrogate.{key}"
            for key in ("clip_low", "clip_high", "dual_clip", "tau", "loss_coef")
        },
        "correction_low": "correction.low",
        "correction_high": "correction.high",
        "drop_divergence": "correction.drop_divergence",
        "kl_coef": "kl.coef",
        "kl_estimator": "kl.estimator",
        "kl_ratio": "kl.ratio",
        "kl_place": "kl.place",
        "kl_target": "kl.target",
        "kl_horizon": "kl.horizon",
        "ref_every": "kl.ref_every",
        "token_beta": "token_rewards.beta",
        "token_lr_ratio": "token_rewards.lr_ratio",
        "value_coef": "value.coef",
        "value_clip": "value.clip",
        "critic": "value.critic",
        # The name of a group is no longer a key.
        "correction": "correction.kind",
        "token_rewards": "token_rewards.kind",
    }.items()
}
"""New keys by old key. If a user gives an old key, the error names the new key."""
