"""Settings of an algorithm: an advantage, a surrogate, and groups of options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from rl.credit.advantages import GroupOutcome
from rl.credit.corrections import correction_kinds
from rl.credit.options import (
    Aggregation,
    Critic,
    KLEstimator,
    KLPlace,
    OldLogprobs,
    TokenRewardsKind,
    check_fields,
    check_names,
    require,
)
from rl.credit.plugin import (
    ADVANTAGES,
    SURROGATES,
    Advantage,
    PlugIn,
    PlugIns,
    Surrogate,
)
from rl.credit.surrogates import Clip

_PLUG_INS: dict[str, PlugIns[Any]] = {"advantage": ADVANTAGES, "surrogate": SURROGATES}


@dataclass(frozen=True, kw_only=True)
class KL:
    """The divergence from the reference model."""

    coef: float = 0.0
    """Weight of the divergence from the initial model. At 0, no reference model is kept."""
    estimator: KLEstimator = "k3"
    """Estimator of the divergence: k1, k2, k3 or k3+; see :func:`rl.credit.losses.kl_penalty`."""
    ratio: bool = False
    """Whether a divergence in the loss is multiplied by pi / pi_old. The gradient of k1 and k3
    then equals the gradient of the divergence (DeepSeek-V3.2, section 3.1). k2 and k3+ do not need
    this."""
    place: KLPlace = "loss"
    """``loss`` adds the divergence to the token's loss. ``reward`` subtracts it from the token's
    reward (only for advantages with values)."""
    target: float | None = None
    """Target of the divergence in nats per episode: coef is adapted towards it after each update.
    If None, coef is constant."""
    horizon: int = 10_000
    """Number of episodes over which an adapted coef changes by at most a fifth."""
    ref_every: int = 0
    """Number of updates after which the current policy becomes the reference. If 0, the initial
    model is always the reference."""

    def __post_init__(self) -> None:
        check_fields(self)
        adapts = self.coef > 0
        require("coef", self.coef, self.coef >= 0, ">= 0")
        target = self.target
        require("target", target, target is None or target > 0, "above 0, or None")
        require("target", target, target is None or adapts, "None without coef")
        require("horizon", self.horizon, self.horizon >= 1, ">= 1")
        require("ref_every", self.ref_every, self.ref_every >= 0, ">= 0")
        refers = adapts or self.ref_every == 0
        require("ref_every", self.ref_every, refers, "0 without coef: there is no reference")
        in_loss = not self.ratio or (adapts and self.place == "loss")
        require("ratio", self.ratio, in_loss, "False without a divergence in the loss")


@dataclass(frozen=True, kw_only=True)
class Value:
    """The value head and its loss."""

    coef: float = 0.0
    """Weight of the value loss (only for advantages with values)."""
    clip: float | None = None
    """Maximum change of a value in one update, or None for no bound."""
    critic: Critic = "head"
    """The source of values. ``head`` is a linear layer on the policy's last hidden state; its
    gradient changes the policy, too. ``model`` is a linear layer on a copy of the initial model,
    which is trained separately and needs the memory of a second model."""

    def __post_init__(self) -> None:
        check_fields(self)
        require("coef", self.coef, self.coef >= 0, ">= 0")
        require("clip", self.clip, self.clip is None or self.clip > 0, "above 0, or None")


@dataclass(frozen=True, kw_only=True)
class Correction:
    """Importance weights for the mismatch of sampler and learner."""

    kind: str = "none"
    """The rule for the weights: none, tis, icepop, token-mask, outlier-mask, seq-tis, seq-icepop,
    seq-mask, geo-mask, or the name of a plug-in (old_logprobs=update only). docs/algorithms.md
    explains them."""
    low: float = 0.5
    """Lower bound of the ratio (for all kinds except tis and seq-tis)."""
    high: float = 2.0
    """Upper bound of the ratio."""
    drop_divergence: float | None = None
    """Threshold of DeepSeek-V3.2's mask (arXiv 2512.02556, section 3.1), or None for no mask. A
    sequence with a negative advantage is not trained if its mean log(pi_sampler / pi) is above the
    threshold."""

    def __post_init__(self) -> None:
        check_fields(self)
        kinds = correction_kinds()
        require("kind", self.kind, self.kind in kinds, f"one of {', '.join(kinds)}")
        bounds = 0 <= self.low <= 1 <= self.high
        require("low, high", f"{self.low}, {self.high}", bounds, "from 0 to 1, and 1 or more")
        drop = self.drop_divergence
        require("drop_divergence", drop, drop is None or drop > 0, "above 0, or None")


@dataclass(frozen=True, kw_only=True)
class TokenRewardModel:
    """A model that learns token rewards from outcomes."""

    kind: TokenRewardsKind = "none"
    """``implicit`` (PRIME) rewards the tokens of advantage=group-dense; ``head`` (OREAL) weights
    the tokens of group-outcome."""
    beta: float = 0.05
    """Factor of the model's log-ratios in the model's own loss (only for ``implicit``)."""
    lr_ratio: float = 2.0
    """Learning rate of the model, as a multiple of the policy's learning rate."""

    def __post_init__(self) -> None:
        check_fields(self)
        require("beta", self.beta, self.beta > 0, "above 0")
        require("lr_ratio", self.lr_ratio, self.lr_ratio > 0, "above 0")


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One row of the table of algorithms.

    Raises:
        ValueError: an option is out of range, or two options contradict each other.
    """

    advantage: Advantage = field(
        default=GroupOutcome(), metadata={"choice": ADVANTAGES.choice("group-outcome")}
    )
    """How much better than expected each token was. algo.advantage.KEY sets its options."""
    whiten: bool = False
    """Whether advantages are whitened over all sampled tokens of the update."""
    surrogate: Surrogate = field(default=Clip(), metadata={"choice": SURROGATES.choice("clip")})
    """The policy's loss, computed from the ratio pi / pi_old and the advantage. algo.surrogate.KEY
    sets its options."""
    old_logprobs: OldLogprobs = "update"
    """Which policy pi_old is. ``update``: the learner's weights at the start of the update.
    ``sampling``: the sampler, by its recorded log-probabilities, so that the ratio also corrects
    for stale weights and for the mismatch of sampler and learner. Not allowed for reinforce, whose
    loss has no ratio, and for oreal, whose loss has none where A > 0."""
    correction: Correction = field(default_factory=Correction)
    """Importance weights for the mismatch of sampler and learner."""
    aggregation: Aggregation = "token-mean"
    """How the step's loss sums token losses; see :func:`rl.credit.losses.token_weights`."""
    max_tokens: int | None = None
    """The constant of ``seq-mean-token-sum-norm``: the maximum number of sampled tokens per
    episode."""
    kl: KL = field(default_factory=KL)
    """The divergence from the reference model."""
    token_rewards: TokenRewardModel = field(default_factory=TokenRewardModel)
    """A model that learns token rewards from outcomes."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value: Value = field(default_factory=Value)
    """The value head and its loss."""
    mask_observations: bool = True
    """Whether only sampled tokens are trained. False also trains on the text of environments and
    tools, as if the policy had sampled it: Search-R1 without its mask (arXiv 2503.09516, section
    3.1), for comparison only."""
    mask_truncated: bool = False
    """Whether training skips episodes that were cut for their length. Their returns still count in
    their groups' baselines. This is DAPO's overlong filtering (arXiv 2503.14476, section 3.4)."""
    ptx_coef: float = 0.0
    """Weight of the mean cross-entropy of additional texts that each update imitates: PPO-ptx
    (InstructGPT, arXiv 2203.02155, equation 2)."""
    forget_optimizer: bool = False
    """Whether the optimizer's averages are reset at the start of each update."""
    epochs: int = 1
    """Number of passes over the update's episodes."""
    minibatches: int = 1
    """Number of optimizer steps in one pass. Each trains an equal share of the episodes."""

    def __post_init__(self) -> None:
        for key, plug_ins in _PLUG_INS.items():
            value = getattr(self, key)
            expected = (
                f'of class {plug_ins.base.__name__}: row.changed({{"{key}": NAME}}) makes one'
            )
            require(key, repr(value), isinstance(value, plug_ins.base), expected)
        check_fields(self)
        require("ptx_coef", self.ptx_coef, self.ptx_coef >= 0, ">= 0")
        n = self.max_tokens
        require("max_tokens", n, n is None or n >= 1, ">= 1, or None")
        if self.aggregation == "seq-mean-token-sum-norm":
            require("max_tokens", n, n is not None, "set for aggregation=seq-mean-token-sum-norm")
        require("entropy_coef", self.entropy_coef, self.entropy_coef >= 0, ">= 0")
        require("epochs", self.epochs, self.epochs >= 1, ">= 1")
        require("minibatches", self.minibatches, self.minibatches >= 1, ">= 1")
        self._check_surrogate()
        self._check_sampler()
        self._check_advantage()

    def _check_surrogate(self) -> None:
        surrogate, only = self.surrogate, self.surrogate.aggregation
        require(
            "aggregation",
            self.aggregation,
            only in (None, self.aggregation),
            f"{only} for surrogate={surrogate.name}: its ratio is a sequence's",
        )
        require(
            "old_logprobs",
            self.old_logprobs,
            surrogate.has_ratio or self.old_logprobs != "sampling",
            f"update for surrogate={surrogate.name}, which has no ratio that would correct stale "
            f"tokens: correction.kind=tis does",
        )

    def _check_sampler(self) -> None:
        """Check the options that concern tokens sampled by other weights."""
        mask, of_sampler = self.mask_observations, self.old_logprobs == "sampling"
        require("old_logprobs", self.old_logprobs, mask or not of_sampler, "update without a mask")
        drop, kind = self.correction.drop_divergence, self.correction.kind
        fine = drop is None or mask
        require("correction.drop_divergence", drop, fine, "None without a mask")
        fine = kind == "none" or (mask and not of_sampler)
        expected = "none without old_logprobs=update and mask_observations"
        require("correction.kind", kind, fine, expected)

    def _check_advantage(self) -> None:
        """Check the requirements of the advantage, and the options that need values."""
        advantage, kind = self.advantage, self.token_rewards.kind
        allowed = advantage.token_rewards
        expected = f"{' or '.join(allowed)} for advantage={advantage.name}"
        require("token_rewards.kind", kind, kind in allowed, expected)
        coef, value = self.value.coef, self.value
        if advantage.needs_values:
            require("value.coef", coef, coef > 0, f"above 0 for advantage={advantage.name}")
            if not type(advantage).__module__.startswith("rl.credit."):
                # This imports torch, which the built-in advantages do not need for parsing.
                from rl.credit.advantages.check import check_values

                check_values(advantage)
            return
        require("value.coef", coef, coef == 0, f"0 for advantage={advantage.name}")
        none = f"without values: advantage is {advantage.name}"
        require("value.critic", value.critic, value.critic == "head", f"head {none}")
        place = self.kl.place
        require("kl.place", place, place == "loss", f"loss for advantage={advantage.name}")

    def changed(self, options: Mapping[str, Any]) -> Algorithm:
        """A copy with changed options.

        For example ``{"surrogate": "gspo", "surrogate.clip_high": 1e-3, "kl.coef": 0.01}``. A new
        advantage or surrogate starts with its own defaults.

        Args:
            options: values by key; the keys are those of the command line.

        Raises:
            UnknownNameError: no advantage or surrogate has the name.
            ValueError: an option does not exist, or a value is out of range.
        """
        own: dict[str, Any] = {k: v for k, v in options.items() if "." not in k}
        inner: dict[str, dict[str, Any]] = {}
        for key, value in options.items():
            group, dot, name = key.partition(".")
            if dot:
                inner.setdefault(group, {})[name] = value
        check_names("an algorithm", [*own, *inner], [f.name for f in fields(self)])
        for key, plug_ins in _PLUG_INS.items():
            if isinstance(own.get(key), str):
                own[key] = plug_ins.make(own[key])
        for group, given in inner.items():
            own[group] = _replaced(group, own.get(group, getattr(self, group)), given)
        return replace(self, **own)

    @property
    def uses_outcomes(self) -> bool:
        """Whether updates need the outcome of each episode."""
        return self.token_rewards.kind != "none" or self.aggregation == "outcome-mean"

    @property
    def uses_sequences(self) -> bool:
        """Whether a token's loss depends on the ratios of its whole sequence."""
        return self.surrogate.by_sequence or self.correction.drop_divergence is not None

    @property
    def uses_values(self) -> bool:
        """Whether values are trained."""
        return self.advantage.needs_values

    @property
    def one_step(self) -> bool:
        """Whether an update consists of a single optimizer step."""
        return self.epochs * self.minibatches == 1

    @property
    def uses_old_scores(self) -> bool:
        """Whether the model scores an update's tokens before its first optimizer step."""
        corrects = self.correction.kind != "none"
        recomputes = self.old_logprobs == "update" and (corrects or not self.one_step)
        in_reward = self.kl.coef > 0 and self.kl.place == "reward"
        return recomputes or self.uses_values or in_reward

    @property
    def gradient_at_zero(self) -> bool:
        """Whether a token has a gradient where its advantage is 0."""
        beside = self.uses_values or self.entropy_coef or self.kl.coef
        return bool(beside) or self.surrogate.gradient_at_zero


def _replaced(group: str, value: Any, given: Mapping[str, Any]) -> Any:
    """A copy of a group of settings, or of a plug-in, with other options."""
    known = [f.name for f in fields(value)] if dataclasses.is_dataclass(value) else []
    what = f"{group}={value.name}" if isinstance(value, PlugIn) else group
    check_names(what, given, known)
    try:
        return replace(value, **given)
    except ValueError as error:
        raise ValueError(f"{group}.{error}") from error
