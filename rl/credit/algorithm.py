"""What an algorithm is: an advantage, a surrogate and groups of settings, each with its meaning."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from rl.credit.checks import check_fields, check_names, require
from rl.credit.choices import Aggregation, OldLogprobs
from rl.credit.estimators import GroupOutcome
from rl.credit.groups import KL, Correction, TokenRewardModel, Value
from rl.credit.plugin import ADVANTAGES, SURROGATES, Advantage, PlugIn, PlugIns, Surrogate
from rl.credit.surrogates import Clip

_PLUG_INS: dict[str, PlugIns[Any]] = {"advantage": ADVANTAGES, "surrogate": SURROGATES}


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One row of choices.

    Raises:
        ValueError: a choice is out of range, or two contradict each other.
    """

    advantage: Advantage = field(
        default=GroupOutcome(), metadata={"choice": ADVANTAGES.choice("group-outcome")}
    )
    """How much better than expected each token was; its options follow as
    algo.advantage.KEY."""
    whiten: bool = False
    """Whether advantages are whitened over all sampled tokens of the update."""
    surrogate: Surrogate = field(default=Clip(), metadata={"choice": SURROGATES.choice("clip")})
    """The loss made of the ratio pi / pi_old and the advantage; its options follow as
    algo.surrogate.KEY."""
    old_logprobs: OldLogprobs = "update"
    """pi_old. ``update``: the learner's weights as the update starts. ``sampling``: what the
    sampler recorded, so that the ratio also corrects for stale weights and sampler mismatch
    (refused for reinforce and oreal, whose losses have no ratio, or none where A > 0)."""
    correction: Correction = field(default_factory=Correction)
    """What tokens weigh that the policy would not have sampled quite so."""
    aggregation: Aggregation = "token-mean"
    """How token losses become the step's loss; :func:`rl.credit.losses.token_weights`."""
    max_tokens: int | None = None
    """The constant of ``seq-mean-token-sum-norm``: the most tokens an episode may sample."""
    kl: KL = field(default_factory=KL)
    """The divergence from the reference model."""
    token_rewards: TokenRewardModel = field(default_factory=TokenRewardModel)
    """A model that learns from outcomes what each token is worth."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value: Value = field(default_factory=Value)
    """The value head and its loss."""
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
        """Check what is chosen for tokens that other weights sampled."""
        mask, of_sampler = self.mask_observations, self.old_logprobs == "sampling"
        require("old_logprobs", self.old_logprobs, mask or not of_sampler, "update without a mask")
        drop, kind = self.correction.drop_divergence, self.correction.kind
        fine = drop is None or mask
        require("correction.drop_divergence", drop, fine, "None without a mask")
        fine = kind == "none" or (mask and not of_sampler)
        expected = "none without old_logprobs=update and mask_observations"
        require("correction.kind", kind, fine, expected)

    def _check_advantage(self) -> None:
        """Check what the advantage needs, and what needs it."""
        advantage, kind = self.advantage, self.token_rewards.kind
        allowed = advantage.token_rewards
        expected = f"{' or '.join(allowed)} for advantage={advantage.name}"
        require("token_rewards.kind", kind, kind in allowed, expected)
        coef, value = self.value.coef, self.value
        if advantage.needs_values:
            require("value.coef", coef, coef > 0, f"above 0 for advantage={advantage.name}")
            return
        require("value.coef", coef, coef == 0, f"0 for advantage={advantage.name}")
        none = f"without values: advantage is {advantage.name}"
        require("value.critic", value.critic, value.critic == "head", f"head {none}")
        place = self.kl.place
        require("kl.place", place, place == "loss", f"loss for advantage={advantage.name}")

    def changed(self, options: Mapping[str, Any]) -> Algorithm:
        """The same with other choices, by the keys of the command line.

        ``{"surrogate": "gspo", "surrogate.clip_high": 1e-3, "kl.coef": 0.01}``. An advantage or a
        surrogate that is named begins with its own defaults.

        Args:
            options: from key to value.

        Raises:
            UnknownNameError: there is no advantage or surrogate of a name.
            ValueError: there is no such option, or a value is out of range.
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
        """Whether it must be told which episodes were right."""
        return self.token_rewards.kind != "none" or self.aggregation == "outcome-mean"

    @property
    def uses_sequences(self) -> bool:
        """Whether a token's loss depends on the ratios of its whole sequence."""
        return self.surrogate.by_sequence or self.correction.drop_divergence is not None

    @property
    def uses_values(self) -> bool:
        """Whether it needs a value head."""
        return self.advantage.needs_values


def _replaced(group: str, value: Any, given: Mapping[str, Any]) -> Any:
    """A group of settings, or a plug-in, with some of its options changed."""
    known = [f.name for f in fields(value)] if dataclasses.is_dataclass(value) else []
    what = f"{group}={value.name}" if isinstance(value, PlugIn) else group
    check_names(what, given, known)
    try:
        return replace(value, **given)
    except ValueError as error:
        raise ValueError(f"{group}.{error}") from error
