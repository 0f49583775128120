"""Steps whose rewards gave no gradient: their number, causes and remedies.

A step that learns nothing still has a reward, which varies by chance. The step's record in
metrics.jsonl names the cause as ``no_gradient/CAUSE``. The screen, the curve and result.json use
this name.
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
    FAILED: "fix the failures: failures/KIND in metrics.jsonl counts them",
    ALONE: "raise group_size",
    CUT: "raise sampling.max_tokens or context_length",
    LOWEST: (
        "use easier tasks (env.*, curriculum.order=easy-to-hard) or a model that solves some "
        "(python -m rl.sft), or raise group_size"
    ),
    HIGHEST: "use harder tasks (env.*)",
    EQUAL: "raise group_size, or draw tasks whose rewards differ (curriculum.max_draws=4)",
    OTHER: "check clip_ratio/* and rewards/* in metrics.jsonl, algo.* and shaping",
}
_MANY_CUT = 0.9
"""If at least this share of answers was cut, the token limit is the cause of equal rewards."""
_ZERO = 1e-10
"""A gradient norm up to this number is rounding and counts as no gradient."""


def cause_of(metrics: Mapping[str, float], successes: Sequence[float]) -> str | None:
    """The reason why a step's rewards gave no gradient, or None if they gave a gradient.

    Args:
        metrics: the metrics of the step's episodes and update.
        successes: the success of each finished episode, from 0 to 1.
    """
    # Without sampled tokens the learner skips the update and counts no advantage.
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
    if metrics.get("completions/clipped_ratio", 0.0) >= _MANY_CUT:
        return CUT
    if max(successes) == 0:
        return LOWEST
    return HIGHEST if min(successes) == 1 else EQUAL


def cause_in(record: Mapping[str, Any]) -> str | None:
    """The cause in a step's record, or None if the rewards gave a gradient."""
    return next((k.removeprefix(PREFIX) for k in record if k.startswith(PREFIX)), None)


@dataclass(frozen=True, slots=True)
class NoGradient:
    """The steps of a run whose rewards gave no gradient."""

    steps: int
    """Number of all steps of the run."""
    count: int
    """Number of steps without a gradient."""
    last: int
    """Number of steps since the last step with a gradient."""
    causes: Mapping[str, int]
    """Number of steps for each cause, the most frequent first."""

    def __str__(self) -> str:
        """The steps, their causes, and what to try. Empty if every step had a gradient."""
        if not self.count:
            return ""
        which = f"{self.count} of {self.steps} step{'s' * (self.steps != 1)}"
        if self.last:
            only = self.last == self.count
            which = f"the last {which}" if only else f"{which}, the last {self.last} among them"
        reasons = "; ".join(f"{REASONS[cause]} ({n})" for cause, n in self.causes.items())
        return f"no gradient from rewards in {which}: {reasons}. What to try: {self.remedies}"

    @property
    def remedies(self) -> str:
        """What to try for each cause. Empty without causes."""
        return "; ".join(REMEDIES[cause] for cause in self.causes)

    def to_json(self) -> dict[str, Any]:
        """The entries of result.json."""
        return {
            "steps_without_gradient": self.count,
            "last_steps_without_gradient": self.last,
            "no_gradient_causes": dict(self.causes),
            "what_to_try": self.remedies,
        }


def no_gradient_of(causes: Sequence[str | None]) -> NoGradient:
    """Summarise the steps without a gradient.

    Args:
        causes: the cause of each step, in order; None for a step with a gradient.
    """
    last = next((n for n, cause in enumerate(reversed(causes)) if cause is None), len(causes))
    counts = Counter(cause for cause in causes if cause is not None)
    return NoGradient(len(causes), counts.total(), last, dict(counts.most_common()))


def causes_in(records: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """The cause of each step in a run's records, without the records of evaluations."""
    return [cause_in(record) for record in records if "num_groups" in record]
