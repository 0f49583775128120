"""Estimators that ``bias_and_variance`` measures, with the mean that theory predicts for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.estimators.tabular import Setting, World, drawn
from benchmarks.estimators.worlds import truth
from rl.credit.algorithm import Algorithm
from rl.credit.algorithms import ALGORITHMS

MEMBERS = 8
"""Episodes of a group."""
SUM: Mapping[str, Any] = {"aggregation": "seq-mean-token-sum-norm", "max_tokens": 1}
"""Nothing but the number of episodes divides."""
SHRUNK = (MEMBERS - 1) / MEMBERS

SELF = "the group's mean holds the episode itself: (n - 1) / n"
BATCH_SELF = "the batch's mean holds the episode itself: (2n - 1) / 2n"
STD = "the deviation divides: groups with less spread count more"
BATCH = "the batch's mean holds the episode itself, and its deviation divides"
MEAN = "the mean divides: groups with fewer successes count more"
WHITE = "whitened over the update: a mean over tokens is subtracted, the deviation divides"
LENGTH = "each episode is divided by its length"
TOKENS = "the step is divided by its tokens, which depend on what was sampled"
WEIGHTED = "the baseline weighs episodes by their length, which the action changes"
PROCESS = (
    "a turn subtracts the mean once for each turn that follows, and their number depends on it"
)
ANCHORS = "a turn is compared with few of its like: (k - 1) / k of k, 0 where it is alone"
LAMBDA = "lambda depends on what is still to be sampled"
LAST = "values at last tokens, which know that the turn ends"
FITTED = "values are wrong, and lambda < 1 believes them"
DISCOUNT = "turns are discounted, the return is not"
MODEL = "a model of tokens weighs them"
STATES = "states are visited as the sampler does, and what follows is the sampler's"


@dataclass(frozen=True, slots=True)
class Case:
    """An estimator, and what is known of it."""

    part: str
    name: str
    setting: str
    row: Algorithm
    expected: Tensor | float | None = None
    """The mean that theory predicts: a multiple of the truth, or a gradient. None if unknown."""
    why: str = ""
    """Why it is biased, where it is."""
    values: Tensor | None = None
    """``[C]``; None: the exact ones."""


def cases(made: Mapping[str, Setting]) -> list[Case]:
    """All of them."""
    return [
        *_groups("bandit"),
        *_groups("delayed"),
        *_turns(made["delayed"]),
        *_values(made["delayed"]),
        *_early(made["decided"]),
        *_rows(made),
        *(case for name in ("bandit", "delayed") for case in _corrections(name)),
        *_divergences(made["divergence"]),
    ]


def _groups(name: str) -> list[Case]:
    """Group advantages: every baseline, divisor and whitening."""
    even = name == "bandit"
    found = []
    for std in ("none", "unbiased", "biased", "mean"):
        for whiten in (False, True):
            for baseline in ("mean", "leave-one-out", "length-weighted"):
                if baseline != "mean" and std != "none":
                    continue
                row = Algorithm().changed(
                    {
                        "advantage": "group-outcome",
                        "advantage.baseline": baseline,
                        "advantage.std": std,
                        "whiten": whiten,
                        "surrogate": "reinforce",
                        **SUM,
                    }
                )
                expected, why = None, {"none": "", "mean": MEAN}.get(std, STD)
                if std == "none" and not whiten:
                    expected = {"mean": SHRUNK, "leave-one-out": 1.0}.get(baseline)
                    why = SELF if baseline == "mean" else ""
                    if baseline == "length-weighted":
                        expected, why = (SHRUNK, SELF) if even else (None, WEIGHTED)
                why = "; ".join(x for x in (why, WHITE if whiten else "") if x)
                parts = (f"baseline={baseline}", f"std={std}", "whiten" if whiten else "")
                label = " ".join(["group-outcome", *(x for x in parts if x)])
                found.append(Case("advantages", label, name, row, expected, why))
    if not even:
        row = Algorithm().changed({"advantage": "batch-outcome", "advantage.std": "none", **SUM})
        whole = 1 - 1 / (2 * MEMBERS)
        found.append(Case("advantages", "batch-outcome std=none", name, row, whole, BATCH_SELF))
    return found


def _turns(setting: Setting) -> list[Case]:
    """Advantages of turns without values."""
    found = []
    for advantage in ("reward-to-go", "group-process", "group-in-group"):
        for std in ("none", "unbiased", "biased"):
            for whiten in (False, True):
                if advantage == "reward-to-go" and std != "none":
                    continue
                row = Algorithm().changed(
                    {"advantage": advantage, "advantage.std": std, "whiten": whiten, **SUM}
                )
                expected: Tensor | float | None = None
                why = {"group-process": PROCESS, "group-in-group": ANCHORS}.get(advantage, "")
                if std == "none" and not whiten:
                    expected = 1.0 if advantage == "reward-to-go" else None
                    if advantage == "group-in-group":
                        expected = in_group_gradient(setting)
                more = (STD if std != "none" else "", WHITE if whiten else "")
                why = "; ".join(x for x in (why, *more) if x)
                divisor = "" if advantage == "reward-to-go" else f"std={std}"
                label = " ".join(x for x in (advantage, divisor, "whiten" if whiten else "") if x)
                found.append(Case("advantages", label, "delayed", row, expected, why))
    row = Algorithm().changed({"advantage": "group-in-group", "advantage.std": "none", **SUM})
    why = f"{ANCHORS}; like observations in unlike turns"
    found.append(Case("advantages", "group-in-group std=none", "delayed, no clock", row, None, why))
    return found


def in_group_gradient(setting: Setting) -> Tensor:
    """GiGPO's mean gradient without discount and deviation, where no state comes twice.

    A state that q of the episodes visit has k of n as visitors, 1 + Bin(n - 1, q) where there is
    one; its turns' part shrinks by the mean of (k - 1) / k, 1 - (1 - (1 - q)^n) / (n q).
    """
    total = torch.zeros_like(setting.logits)
    for start in setting.world.starts:
        world = World(setting.world.states, [start])
        visits = world.visits(setting.logits)
        q = torch.stack([visits[world.contexts[state, ""]] for state, _ in world.contexts])
        shares = 1 - (1 - (1 - q) ** MEMBERS) / (MEMBERS * q.clamp_min(1e-300))
        total += (SHRUNK + shares)[:, None] * world.gradient(setting.logits)
    return total / len(setting.world.starts)


def _values(setting: Setting) -> list[Case]:
    """Advantages from values: exact ones, and ones that are off by noise."""
    off = setting.values + 0.1 * drawn(setting.world, 6, 1.0)[:, 0]
    found = []
    for advantage in ("gae", "turn-gae", "bilevel-gae"):
        for lam in (1.0, 0.95, 0.5):
            for values in (None, off):
                for whiten in (False, True):
                    if whiten and (values is not None or lam == 0.5):
                        continue
                    row = Algorithm().changed(
                        {
                            "advantage": advantage,
                            "advantage.lam": lam,
                            "whiten": whiten,
                            "value.coef": 0.1,
                            **SUM,
                        }
                    )
                    known = lam == 1 or (values is None and advantage != "bilevel-gae")
                    why = "" if known else (LAST if values is None else FITTED)
                    why = "; ".join(x for x in (why, WHITE if whiten else "") if x)
                    label = f"{advantage} lam={lam:g} {'exact' if values is None else 'noisy'}"
                    label += " whiten" if whiten else ""
                    expected = 1.0 if known and not whiten else None
                    found.append(Case("advantages", label, "delayed", row, expected, why, values))
    for rollouts in (1, 9):
        for whiten in (False, True):
            row = Algorithm().changed(
                {"advantage": "vine", "advantage.rollouts": rollouts, "whiten": whiten, **SUM}
            )
            label = f"vine rollouts={rollouts}" + (" whiten" if whiten else "")
            known = (None, WHITE) if whiten else (1.0, "")
            found.append(Case("advantages", label, "delayed", row, *known))
    row = Algorithm().changed(
        {"advantage": "gae", "advantage.lam_alpha": 0.5, "value.coef": 0.1, **SUM}
    )
    found.append(Case("advantages", "gae lam_alpha=0.5 exact", "delayed", row, None, LAMBDA))
    return found


def _early(setting: Setting) -> list[Case]:
    """The main ways of crediting turns, where most turns matter little."""
    group = Algorithm().changed({"advantage": "group-outcome", "advantage.std": "none", **SUM})
    rows: dict[str, tuple[Algorithm, Tensor | float | None, str]] = {
        "group-outcome baseline=mean std=none": (group, SHRUNK, SELF),
        "group-outcome baseline=mean std=unbiased": (
            group.changed({"advantage.std": "unbiased"}),
            None,
            STD,
        ),
        "group-in-group std=none": (
            group.changed({"advantage": "group-in-group"}),
            in_group_gradient(setting),
            ANCHORS,
        ),
        "gae lam=1 exact": (group.changed({"advantage": "gae", "value.coef": 0.1}), 1.0, ""),
        "turn-gae lam=1 exact": (
            group.changed({"advantage": "turn-gae", "value.coef": 0.1}),
            1.0,
            "",
        ),
        "turn-gae lam=0.95 exact": (
            group.changed({"advantage": "turn-gae", "advantage.lam": 0.95, "value.coef": 0.1}),
            1.0,
            "",
        ),
        "vine rollouts=9": (group.changed({"advantage": "vine", "advantage.rollouts": 9}), 1.0, ""),
    }
    return [Case("advantages", name, "decided", *known) for name, known in rows.items()]


ROWS: dict[str, str] = {
    "grpo": f"{STD}; {LENGTH}",
    "dr-grpo": SELF,
    "rloo": TOKENS,
    "opo": f"{WEIGHTED}; {TOKENS}",
    "kimi": f"{SELF}; {TOKENS}",
    "maxrl": f"{MEAN}; {TOKENS}",
    "oreal": f"{MODEL}; {TOKENS}",
    "prime": f"{MODEL}; {WHITE}",
    "gigpo": f"{ANCHORS}; {DISCOUNT}; {TOKENS}",
    "reinforce": f"{BATCH}; {TOKENS}",
    "bilevel-ppo": f"{DISCOUNT}; {WHITE}",
}
"""Why rows are biased where episodes have several lengths."""


def _why(name: str, row: Algorithm) -> str:
    if name in ROWS:
        return ROWS[name]
    if row.whiten:
        return WHITE
    divided = {"seq-mean-token-mean": LENGTH, "token-mean": TOKENS}[row.aggregation]
    return f"{STD}; {divided}"


def _rows(made: Mapping[str, Setting]) -> list[Case]:
    """The table of algorithms: each row as it stands."""
    known = {"rloo": 1.0, "opo": SHRUNK, "kimi": SHRUNK, "gigpo": 2 * SHRUNK}
    found = []
    for name, row in ALGORITHMS.items():
        for world in ("bandit", "delayed"):
            expected = known.get(name) if world == "bandit" else None
            if name == "dr-grpo":
                expected = SHRUNK / 3000
            why = _why(name, row)
            if world == "bandit":
                lengths = (TOKENS, LENGTH, WEIGHTED, ANCHORS, DISCOUNT)
                why = "; ".join(x for x in why.split("; ") if x not in lengths)
                why = SELF if name in ("opo", "gigpo") else why
            found.append(Case("rows", name, world, row, expected, why))
    return found


def _corrections(name: str) -> list[Case]:
    """Cases in which the sampler's mismatch is corrected, bounded or ignored."""
    one_token = name == "bandit"
    base = Algorithm().changed(
        {
            "advantage": "group-outcome",
            "advantage.baseline": "leave-one-out",
            "advantage.std": "none",
            "surrogate": "reinforce",
            **SUM,
        }
    )
    bounds: dict[str, dict[str, Any]] = {
        "tis, unbounded": {"correction.kind": "tis", "correction.high": 1e6},
        "tis at 1.2": {"correction.kind": "tis", "correction.high": 1.2},
        "icepop 0.8 to 1.2": {
            "correction.kind": "icepop",
            "correction.low": 0.8,
            "correction.high": 1.2,
        },
        "seq-tis, unbounded": {"correction.kind": "seq-tis", "correction.high": 1e6},
        "seq-tis at 2": {"correction.kind": "seq-tis", "correction.high": 2.0},
        "seq-mask at 2": {
            "correction.kind": "seq-mask",
            "correction.low": 0.0,
            "correction.high": 2.0,
        },
        "geo-mask 0.8 to 1.2": {
            "correction.kind": "geo-mask",
            "correction.low": 0.8,
            "correction.high": 1.2,
        },
    }
    rows = {"none": base, **{key: base.changed(changes) for key, changes in bounds.items()}}
    sampling: dict[str, Any] = {"old_logprobs": "sampling"}
    clip = {**sampling, "surrogate": "clip", "surrogate.dual_clip": 0.0}
    wide = {"surrogate.clip_low": 1.0, "surrogate.clip_high": 1e6}
    rows["old_logprobs=sampling clip, unbounded"] = base.changed({**clip, **wide})
    rows["old_logprobs=sampling clip"] = base.changed(clip)
    for surrogate in ("cispo", "sapo", "dppo-tv"):
        rows[f"old_logprobs=sampling {surrogate}"] = base.changed(
            {**sampling, "surrogate": surrogate}
        )
    found = []
    for label, row in rows.items():
        exact = label == "seq-tis, unbounded" or (one_token and "unbounded" in label)
        why = "" if exact else ("" if "unbounded" in label else "bounded")
        why = "the sampler's gradient" if label == "none" else why
        why = "; ".join(x for x in (why, "" if exact or one_token else STATES) if x)
        expected = 1.0 if exact else None
        found.append(Case("corrections", label, f"{name}, off-policy", row, expected, why))
    return found


def _divergences(setting: Setting) -> list[Case]:
    """Estimators of the divergence, as loss and in the reward, where nothing else is paid."""
    assert setting.reference is not None
    world, ref = setting.world, setting.reference.log_softmax(-1)

    def slope(per_context: Callable[[Tensor], Tensor]) -> Tensor:
        at = setting.logits.clone().requires_grad_()
        value = world.visits(setting.logits) @ per_context(at.log_softmax(-1))
        (gradient,) = torch.autograd.grad(-value, at)
        return gradient

    forward = slope(lambda pi: (pi.exp() * (pi - ref)).sum(-1))
    backward = slope(lambda pi: (ref.exp() * (ref - pi)).sum(-1))
    local = "visits are held fixed: what a token does to later divergence is not seen"
    in_loss = {
        "k1": (torch.zeros_like(ref), "its gradient is 0 on average"),
        "k2": (forward, local),
        "k3": (backward, f"the gradient is that of KL(reference || policy); {local}"),
        "k3+": (forward, local),
    }
    base = Algorithm().changed(
        {"advantage": "group-outcome", "advantage.std": "none", "kl.coef": 1.0, **SUM}
    )
    found = []
    for estimator, (expected, why) in in_loss.items():
        row = base.changed({"kl.estimator": estimator})
        found.append(
            Case("divergence", f"{estimator} in the loss", "divergence", row, expected, why)
        )
    for estimator in ("k1", "k3"):
        row = base.changed({"kl.estimator": estimator, "kl.ratio": True})
        name = f"{estimator} in the loss, times the ratio"
        found.append(Case("divergence", name, "divergence", row, forward, local))
    base = base.changed({"advantage": "gae", "kl.place": "reward", "value.coef": 0.1})
    whole = truth("divergence", setting)
    biased = "how its own value changes with the policy is not seen"
    in_reward: dict[str, tuple[Tensor | float | None, str]] = {
        "k1": (1.0, ""),
        "k2": (None, f"its mean is not the divergence; {biased}"),
        "k3": (whole - backward, biased),
    }
    for estimator, (target, why) in in_reward.items():
        row = base.changed({"kl.estimator": estimator})
        name = f"{estimator} in the reward"
        found.append(Case("divergence", name, "divergence", row, target, why))
    return found
