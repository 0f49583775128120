"""What an algorithm is: a row of choices, each with its name, its meaning and its range."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

Std = Literal["unbiased", "biased", "mean", "none"]
"""What centred rewards are divided by: their standard deviation (over n - 1, or over n), their
group's mean, or 1."""
KLEstimator = Literal["k1", "k2", "k3", "k3+"]
"""Estimators of the divergence from the reference (Schulman, Approximating KL Divergence, 2020)."""
Aggregation = Literal[
    "token-mean", "seq-mean-token-mean", "prompt-mean", "outcome-mean", "seq-mean-token-sum-norm"
]
"""How a step's token losses become one number; ``rl.credit.losses`` has the denominators."""
Advantage = Literal[
    "group-outcome",
    "batch-outcome",
    "group-process",
    "group-in-group",
    "group-dense",
    "reward-to-go",
    "gae",
    "turn-gae",
    "bilevel-gae",
    "vine",
]
Baseline = Literal["mean", "leave-one-out", "length-weighted"]
"""What a group's rewards are compared with; :func:`rl.credit.advantages.group_advantages`."""
Surrogate = Literal[
    "clip",
    "reinforce",
    "cispo",
    "sapo",
    "dppo-tv",
    "dro",
    "mirror-descent",
    "oreal",
    "gspo",
    "gspo-token",
    "gmpo",
]
"""The policy's loss at a token; :mod:`rl.credit.surrogates` has the formulas."""
OldLogprobs = Literal["update", "sampling"]
Correction = Literal[
    "none",
    "tis",
    "icepop",
    "token-mask",
    "outlier-mask",
    "seq-tis",
    "seq-icepop",
    "seq-mask",
    "geo-mask",
]
"""How tokens that other weights sampled are weighted; :mod:`rl.credit.corrections`."""
SAMPLING_DUAL_CLIP = 3.0
"""The dual clip with old_logprobs=sampling, where a ratio may be as large as e^20."""
KLPlace = Literal["loss", "reward"]
Critic = Literal["head", "model"]
TokenRewards = Literal["none", "implicit", "head"]
"""Models that are trained beside the policy; :mod:`rl.learner.token_rewards` has them."""
Reduction = Literal["sum", "mean", "turn-mean"]
"""How an answer's token log-ratios become one; :func:`rl.credit.preferences.answer_log_ratios`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One row of choices.

    Raises:
        ValueError: a choice is out of range, or two contradict each other.
    """

    advantage: Advantage
    """``group-outcome``: an episode's return against its group, the same for all of its tokens.
    ``batch-outcome``: an episode's return against all episodes of the update.
    ``group-process``: each turn's reward against all turns of the group, summed from the token on.
    ``group-in-group``: an episode's return against its group, plus what a turn and those after it
    earned against the group's turns that answered the same observation.
    ``group-dense``: what token rewards and the episode's return are above the group's, each by
    itself, summed from the token on (token_rewards=implicit only).
    ``reward-to-go``: the discounted rewards from the token on, compared with nothing.
    ``gae``: a value head, by generalised advantage estimation over sampled tokens; ``turn-gae``:
    over turns; ``bilevel-gae``: over turns, and then over the tokens of each.
    ``vine``: a turn's reward and the value of the next state against the value of its own, both the
    mean of what the policy earns in continuations from a copy of the episode."""
    baseline: Baseline = "mean"
    """What an episode's return is compared with (group-outcome only)."""
    std: Std = "unbiased"
    """What a group's centred rewards are divided by (group advantages only)."""
    gamma: float = 1.0
    """Discount per sampled token (gae, bilevel-gae and reward-to-go only)."""
    gamma_turn: float = 1.0
    """Discount per turn (turn-gae, bilevel-gae, group-in-group and vine only)."""
    turn_weight: float = 1.0
    """Weight of the turns' part of the advantage (group-in-group only)."""
    vine_rollouts: int = 9
    """Continuations that are played from the beginning of each turn (vine only)."""
    lam: float = 1.0
    """Lambda of gae: 0 one-step, 1 Monte Carlo."""
    lam_alpha: float | None = None
    """Of episodes with L sampled tokens lambda is 1 - 1 / (lam_alpha L) (gae only); None: lam."""
    whiten: bool = False
    """Whether advantages are whitened over all sampled tokens of the update."""
    whiten_rewards: bool = False
    """Whether the rewards of the update's sampled tokens are divided by their deviation, which
    scales value targets too (gae, turn-gae and bilevel-gae only)."""
    surrogate: Surrogate = "clip"
    """The loss made of the ratio pi / pi_old and the advantage; :mod:`rl.credit.surrogates`."""
    clip_low: float = 0.2
    """How far below 1 the ratio still earns; each surrogate has its own use of the bounds."""
    clip_high: float = 0.2
    """How far above 1 the ratio still earns."""
    dual_clip: float | None = None
    """Bound on ratio times a negative advantage, in units of the advantage (clip, gspo and
    gspo-token only); 0: unbounded. None: 3 with old_logprobs=sampling, else unbounded."""
    tau: float = 0.1
    """Weight of the squared log-ratio (dro and mirror-descent only)."""
    drop_divergence: float | None = None
    """Sequences with a negative advantage whose mean log(pi_sampler / pi) exceeds it teach nothing;
    None: all do. DeepSeek-V3.2's mask (arXiv 2512.02556, section 3.1)."""
    old_logprobs: OldLogprobs = "update"
    """pi_old. ``update``: the learner's weights as the update starts. ``sampling``: what the
    sampler recorded, so that the ratio also corrects for stale weights and sampler mismatch
    (refused for reinforce and oreal, whose losses have no ratio, or none where A > 0)."""
    correction: Correction = "none"
    """What tokens weigh that the policy would not have sampled quite so (old_logprobs=update
    only)."""
    correction_low: float = 0.5
    """The least ratio that counts (all but tis and seq-tis)."""
    correction_high: float = 2.0
    """The greatest."""
    aggregation: Aggregation = "token-mean"
    """How token losses become the step's loss; :func:`rl.credit.losses.token_weights`."""
    max_tokens: int | None = None
    """The constant of ``seq-mean-token-sum-norm``: the most tokens an episode may sample."""
    kl_coef: float = 0.0
    """Weight of the divergence from the initial model; at 0 no reference model is kept."""
    kl_estimator: KLEstimator = "k3"
    """k1, k2, k3 or k3+; :func:`rl.credit.losses.kl_penalty`."""
    kl_ratio: bool = False
    """Whether a divergence in the loss is multiplied by pi / pi_old, which makes the gradient of k1
    and k3 that of the divergence (DeepSeek-V3.2, section 3.1); k2 and k3+ have it without."""
    kl_place: KLPlace = "loss"
    """``loss``: added to the token's loss. ``reward``: taken from the token's reward (gae only)."""
    kl_target: float | None = None
    """Nats per episode that kl_coef is adapted to after each update; None: kl_coef stays."""
    kl_horizon: int = 10_000
    """Episodes after which an adapted kl_coef may have changed by a fifth."""
    ref_every: int = 0
    """Updates after which the reference becomes the policy as it is then; 0: it stays the initial
    model."""
    token_rewards: TokenRewards = "none"
    """A model that learns from outcomes what each token is worth: PRIME's ``implicit`` one pays the
    tokens of advantage=group-dense, OREAL's ``head`` weighs those of group-outcome."""
    token_coef: float = 1.0
    """Weight of the token rewards beside the return (implicit only)."""
    token_beta: float = 0.05
    """By which the model's log-ratios are multiplied where it is trained (implicit only)."""
    token_lr_ratio: float = 2.0
    """Its learning rate, in units of the policy's."""
    loss_coef: float = 1.0
    """Weight of negative advantages (oreal only)."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value_coef: float = 0.0
    """Weight of the value loss (gae only)."""
    value_clip: float | None = None
    """How far a value may move in one update; None: unbounded."""
    critic: Critic = "head"
    """Where values come from. ``head``: a linear layer on the policy's last hidden state, whose
    gradient goes into the policy. ``model``: the same on a copy of the policy's model as it is
    initially, trained apart, which takes as much memory again."""
    mask_observations: bool = True
    """False also trains on what environments and tools said, as if the policy had sampled it:
    Search-R1 without its mask (arXiv 2503.09516, section 3.1), for comparison only."""
    mask_truncated: bool = False
    """Whether episodes that were cut for their length are not trained on; their returns stay in
    their groups' baselines. DAPO's overlong filtering (arXiv 2503.14476, section 3.4)."""
    ptx_coef: float = 0.0
    """Weight of the mean cross-entropy of texts that are imitated in each update: PPO-ptx
    (InstructGPT, arXiv 2203.02155, equation 2)."""
    forget_optimizer: bool = False
    """Whether each update begins with an optimizer that remembers no gradient."""
    epochs: int = 1
    """Passes over the update's episodes."""
    minibatches: int = 1
    """Optimizer steps in one pass; each takes an equal share of the episodes."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            _require(
                field.name, value, not isinstance(value, float) or math.isfinite(value), "finite"
            )
        _choice("advantage", self.advantage, Advantage)
        _choice("std", self.std, Std)
        _choice("baseline", self.baseline, Baseline)
        _choice("surrogate", self.surrogate, Surrogate)
        _choice("old_logprobs", self.old_logprobs, OldLogprobs)
        _choice("aggregation", self.aggregation, Aggregation)
        _choice("correction", self.correction, Correction)
        _choice("kl_estimator", self.kl_estimator, KLEstimator)
        _choice("kl_place", self.kl_place, KLPlace)
        _choice("critic", self.critic, Critic)
        _choice("token_rewards", self.token_rewards, TokenRewards)
        _require("token_coef", self.token_coef, self.token_coef >= 0, ">= 0")
        _require("token_beta", self.token_beta, self.token_beta > 0, "above 0")
        _require("token_lr_ratio", self.token_lr_ratio, self.token_lr_ratio > 0, "above 0")
        _require("loss_coef", self.loss_coef, self.loss_coef >= 0, ">= 0")
        _require("tau", self.tau, self.tau >= 0, ">= 0")
        _require("ptx_coef", self.ptx_coef, self.ptx_coef >= 0, ">= 0")
        _require("ref_every", self.ref_every, self.ref_every >= 0, ">= 0")
        _require("gamma", self.gamma, 0 <= self.gamma <= 1, "from 0 to 1")
        _require("gamma_turn", self.gamma_turn, 0 <= self.gamma_turn <= 1, "from 0 to 1")
        _require("turn_weight", self.turn_weight, self.turn_weight >= 0, ">= 0")
        _require("vine_rollouts", self.vine_rollouts, self.vine_rollouts >= 1, ">= 1")
        alpha = self.lam_alpha
        _require("lam_alpha", alpha, alpha is None or alpha > 0, "above 0, or None")
        _require("lam", self.lam, 0 <= self.lam <= 1, "from 0 to 1")
        _require("clip_low", self.clip_low, self.clip_low >= 0, ">= 0")
        _require("clip_high", self.clip_high, self.clip_high >= 0, ">= 0")
        n = self.max_tokens
        _require("max_tokens", n, n is None or n >= 1, ">= 1, or None")
        if self.aggregation == "seq-mean-token-sum-norm":
            _require("max_tokens", n, n is not None, "set for aggregation=seq-mean-token-sum-norm")
        _require("kl_coef", self.kl_coef, self.kl_coef >= 0, ">= 0")
        target, adapts = self.kl_target, self.kl_coef > 0
        _require("kl_target", target, target is None or target > 0, "above 0, or None")
        _require("kl_target", target, target is None or adapts, "None without kl_coef")
        refers = adapts or self.ref_every == 0
        _require("ref_every", self.ref_every, refers, "0 without kl_coef: there is no reference")
        in_loss = not self.kl_ratio or (adapts and self.kl_place == "loss")
        _require("kl_ratio", self.kl_ratio, in_loss, "False without a divergence in the loss")
        _require("kl_horizon", self.kl_horizon, self.kl_horizon >= 1, ">= 1")
        _require("entropy_coef", self.entropy_coef, self.entropy_coef >= 0, ">= 0")
        clip = self.value_clip
        _require("value_clip", clip, clip is None or clip > 0, "above 0, or None")
        _require("epochs", self.epochs, self.epochs >= 1, ">= 1")
        _require("minibatches", self.minibatches, self.minibatches >= 1, ">= 1")
        self._check_sampler()
        self._check_combinations()

    def _check_sampler(self) -> None:
        """Check what is chosen for tokens that other weights sampled."""
        mask, of_sampler = self.mask_observations, self.old_logprobs == "sampling"
        _require("old_logprobs", self.old_logprobs, mask or not of_sampler, "update without a mask")
        drop = self.drop_divergence
        _require("drop_divergence", drop, drop is None or drop > 0, "above 0, or None")
        _require("drop_divergence", drop, drop is None or mask, "None without a mask")
        bounds = 0 <= self.correction_low <= 1 <= self.correction_high
        told = f"{self.correction_low}, {self.correction_high}"
        _require("correction_low, correction_high", told, bounds, "from 0 to 1, and 1 or more")
        fine = self.correction == "none" or (mask and not of_sampler)
        expected = "none without old_logprobs=update and mask_observations"
        _require("correction", self.correction, fine, expected)
        c, clips = self.dual_clip, self.surrogate in ("clip", "gspo", "gspo-token")
        _require("dual_clip", c, c is None or c == 0 or c > 1, "above 1, 0 or None")
        expected = "None without surrogate=clip, gspo or gspo-token"
        _require("dual_clip", c, c is None or clips, expected)
        _require(
            "old_logprobs",
            self.old_logprobs,
            not of_sampler or self.surrogate not in ("reinforce", "oreal"),
            f"update for surrogate={self.surrogate}, which has no ratio that would correct stale "
            f"tokens: correction=tis does",
        )

    def _check_combinations(self) -> None:
        means = self.aggregation == "seq-mean-token-mean"
        whole = self.surrogate in ("gspo", "gspo-token", "gmpo")
        _require(
            "aggregation",
            self.aggregation,
            means or not whole,
            f"seq-mean-token-mean for surrogate={self.surrogate}: its ratio is a sequence's",
        )
        plain = self.advantage == "group-outcome" and self.std == "none"
        _require(
            "baseline",
            self.baseline,
            self.baseline == "mean" or plain,
            "mean without advantage=group-outcome and std=none",
        )
        returns = self.advantage in ("group-outcome", "batch-outcome")
        _require(
            "std",
            self.std,
            self.std != "mean" or returns,
            "unbiased, biased or none without advantage=group-outcome: turns may earn less than 0",
        )
        kind, dense = self.token_rewards, self.advantage == "group-dense"
        _require(
            "token_rewards",
            kind,
            kind == "implicit" if dense else kind != "implicit",
            "implicit for advantage=group-dense, and for no other",
        )
        weighs = kind != "head" or self.advantage == "group-outcome"
        _require("token_rewards", kind, weighs, "head for advantage=group-outcome only")
        alpha, name = self.lam_alpha, self.advantage
        _require("lam_alpha", alpha, alpha is None or name == "gae", "None without advantage=gae")
        coef = self.value_coef
        if self.uses_values:
            _require("value_coef", coef, coef > 0, f"above 0 for advantage={name}")
        else:
            _require("value_coef", coef, coef == 0, f"0 for advantage={name}")
            none = f"without values: advantage is {name}"
            _require("critic", self.critic, self.critic == "head", f"head {none}")
            whitens = self.whiten_rewards
            _require("whiten_rewards", whitens, not whitens, f"False {none}")
            in_loss = self.kl_place == "loss"
            _require("kl_place", self.kl_place, in_loss, f"loss for advantage={name}")

    @property
    def uses_outcomes(self) -> bool:
        """Whether it must be told which episodes were right."""
        return self.token_rewards != "none" or self.aggregation == "outcome-mean"

    @property
    def uses_sequences(self) -> bool:
        """Whether a token's loss depends on the ratios of its whole sequence."""
        of_sequences = ("mirror-descent", "gspo", "gspo-token", "gmpo")
        return self.surrogate in of_sequences or self.drop_divergence is not None

    @property
    def negative_bound(self) -> float | None:
        """The dual clip in force; None: there is none."""
        if self.dual_clip is None:
            return SAMPLING_DUAL_CLIP if self.old_logprobs == "sampling" else None
        return self.dual_clip or None

    @property
    def uses_values(self) -> bool:
        """Whether it needs a value head."""
        return self.advantage in ("gae", "turn-gae", "bilevel-gae")


def _require(key: str, value: Any, fine: bool, expected: str) -> None:
    if not fine:
        raise ValueError(f"{key} ({value}) must be {expected}")


def _choice(key: str, value: str, choices: Any) -> None:
    names = get_args(choices)
    _require(key, value, value in names, f"one of {', '.join(names)}")
