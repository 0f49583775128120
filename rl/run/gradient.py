"""Steps whose rewards gave no gradient: how many, why, and what to try.

A step of a run that learns nothing still has a reward, which moves by chance. Its record in
metrics.jsonl names the cause as ``no_gradient/CAUSE``; the screen, the curve and result.json read
that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PREFIX = "no_gradient/"
FAILED, ALONE, CUT, LOWEST, HIGHEST, EQUAL, OTHER = (
    "failed",
    "one_episode",
    "cut",
    "none_succeeded",
    "all_succeeded",
    "equal",
    "other",
)
REASONS = {
    FAILED: "all episodes failed",
    ALONE: "each task had one finished episode, and nothing to compare it with",
    CUT: "the answers were cut at the token limit",
    LOWEST: "all rewards were equal: no episode succeeded",
    HIGHEST: "all rewards were equal: every episode succeeded",
    EQUAL: "all rewards of each task were equal",
    OTHER: "rewards differed, but no token had an advantage or all were clipped",
}
REMEDIES = {
    FAILED: "mend what failed: failures/KIND in metrics.jsonl counts the kinds",
    ALONE: "raise group_size",
    CUT: "raise sampling.max_tokens or context_length",
    LOWEST: (
        "take easier tasks (env.*, curriculum.order=easy-to-hard) or a model that solves some "
        "(python -m rl.sft), or raise group_size"
    ),
    HIGHEST: "take harder tasks (env.*)",
    EQUAL: "raise group_size, or draw tasks whose rewards differ (curriculum.max_draws=4)",
    OTHER: "look at clip_ratio/* and rewards/* in metrics.jsonl, and at algo.* and shaping",
}
_MOST = 0.9
"""Share of cut answers from which the limit, and not the task, explains equal rewards."""
_ZERO = 1e-10
"""A gradient norm up to this is rounding."""


def cause_of(metrics: Mapping[str, float], successes: Sequence[float]) -> str | None:
    """Why a step's rewards gave no gradient; None: they gave one.

    Args:
        metrics: of the step's episodes and of its update.
        successes: how far each finished episode succeeded, from 0 to 1.
    """
    # Without any sampled token the learner skips the update and counts no advantage.
    has_advantage = metrics.get("frac_zero_advantage", 1.0) < 1
    if has_advantage and metrics.get("grad_norm", 0.0) > _ZERO:
        return None
    if not successes:
        return FAILED
    tied = metrics.get("frac_reward_zero_std", float(min(successes) == max(successes)))
    played = metrics["num_groups"] - metrics["num_groups_dropped"]
    if metrics.get("groups_of_one", 0.0) >= played:
        return ALONE
    if has_advantage or tied < 1:
        return OTHER
    if metrics.get("completions/clipped_ratio", 0.0) >= _MOST:
        return CUT
    if max(successes) == 0:
        return LOWEST
    return HIGHEST if min(successes) == 1 else EQUAL


def cause_in(record: Mapping[str, Any]) -> str | None:
    """The cause that a step's record names; None: its rewards gave a gradient."""
    return next((k.removeprefix(PREFIX) for k in record if k.startswith(PREFIX)), None)


@dataclass(frozen=True, slots=True)
class Silence:
    """The steps of a run whose rewards gave no gradient."""

    steps: int
    """Every step of the run."""
    count: int
    """Those without a gradient."""
    last: int
    """Those without a gradient after the last step with one."""
    causes: Mapping[str, int]
    """How often each cause was met, the most frequent first."""

    def __str__(self) -> str:
        """Which steps, why, and what to try; "" where every step had a gradient."""
        if not self.count:
            return ""
        which = f"{self.count} of {self.steps} steps"
        if self.last:
            only = self.last == self.count
            which = f"the last {which}" if only else f"{which}, the last {self.last} among them"
        reasons = "; ".join(f"{REASONS[cause]} ({n})" for cause, n in self.causes.items())
        return f"no gradient from rewards in {which}: {reasons}. What to try: {self.remedies}"

    @property
    def remedies(self) -> str:
        """What to try against each cause; "" where there is none."""
        return "; ".join(REMEDIES[cause] for cause in self.causes)

    def to_json(self) -> dict[str, Any]:
        """As result.json has it."""
        return {
            "steps_without_gradient": self.count,
            "last_steps_without_gradient": self.last,
            "no_gradient_causes": dict(self.causes),
            "what_to_try": self.remedies,
        }


def silence_of(causes: Sequence[str | None]) -> Silence:
    """The steps without a gradient, from each step's cause in order."""
    last = next((n for n, cause in enumerate(reversed(causes)) if cause is None), len(causes))
    met = Counter(cause for cause in causes if cause is not None)
    return Silence(len(causes), met.total(), last, dict(met.most_common()))


def causes_in(records: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """The cause of each step among a run's records; those of evaluations are no steps."""
    return [cause_in(record) for record in records if "num_groups" in record]
