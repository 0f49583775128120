"""Findings from the tokens and the texts of a run's episodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl.rollout.trajectory import NOT_SAMPLED, Segment, Turn
from rl.viewer.finding import Finding, Played, RunData, of_steps, percent

_FAR = 1.0
"""Difference of a token's log-probabilities, in nats, that rounding cannot explain."""
_CLOSER = 0.1
"""A difference up to this share of another one counts as much smaller."""
_LEAST = 8
"""Smallest number of tokens or answers from which something is concluded."""
_SHOWN = 20
"""Maximum number of episodes that a finding names."""
_MARKS = re.compile(
    r"<\|(?:im_start|im_end|im_sep|eot_id|eom_id|start_header_id|end_header_id|begin_of_text"
    r"|endoftext|user|assistant|system|end)\|>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>"
    r"|<｜(?:User|Assistant)｜>"
)
"""Marks by which chat templates separate messages. The text of an answer should have none."""
_ROLE = re.compile(r"^(?:user|assistant|human|system):?[ \t]*$", re.IGNORECASE | re.MULTILINE)
"""A line with nothing but a role."""
_PLACES = {0: "first", 1: "second", -1: "last", -2: "second to last"}
"""Places in a run of trained tokens at which a wrong mask shows."""
_MASK_ADVICE = (
    "Check where the agent or the learner plug-in sets loss_mask: it must be 1 exactly at the "
    "tokens that the policy returned. The token view of an episode shows the trained tokens."
)


def token_findings(run: RunData) -> list[Finding]:
    """The findings from the episodes of a few steps, in no order."""
    return [*_mask(run), *_template(run)]


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The trained tokens of a file's episodes that the learner scored: ``[n]`` each."""

    episodes: NDArray[np.int64]
    """Number of the episode's line."""
    spans: NDArray[np.int64]
    """Equal for the tokens of an uninterrupted run of trained tokens."""
    from_start: NDArray[np.int64]
    """Place in the span, from 0."""
    from_end: NDArray[np.int64]
    """Place in the span, from -1 backwards."""
    sampled: NDArray[np.bool_]
    """Whether a policy sampled the token."""
    sampler: NDArray[np.float64]
    """The sampler's log-probability."""
    learner: NDArray[np.float64]
    """The learner's log-probability before the update. NaN if the update did not need it, or if no
    policy sampled the token."""

    @classmethod
    def of(cls, played: Played) -> _Tokens | None:
        """The tokens of a file, or None if the run did not record the learner's numbers."""
        if not {"advantages", "logprobs"} <= played.columns.keys():
            return None
        segments = [(i, s) for i, t in enumerate(played.trajectories) for s in t.segments]
        trained = np.isfinite(played.columns["advantages"])
        sizes = [len(segment) for _, segment in segments]
        if not trained.any():
            return None
        begins = np.zeros(len(trained), np.bool_)
        begins[[start for start in accumulate(sizes, initial=0) if start < len(trained)]] = True
        begins |= np.concatenate(([True], ~trained[:-1]))
        spans = np.cumsum(begins & trained, dtype=np.int64)[trained]
        starts = np.searchsorted(spans, spans, side="left")
        ends = np.searchsorted(spans, spans, side="right")
        place = np.arange(len(spans))
        sampled = _column(segments, "versions")[trained] != NOT_SAMPLED
        learner = played.columns["logprobs"][trained].astype(np.float64)
        return cls(
            episodes=np.repeat([i for i, _ in segments], sizes)[trained],
            spans=spans,
            from_start=place - starts,
            from_end=place - ends,
            sampled=sampled,
            sampler=_column(segments, "sampling_logprobs")[trained].astype(np.float64),
            learner=np.where(sampled, learner, np.nan),
        )


def _column(segments: list[tuple[int, Segment]], name: str) -> NDArray[Any]:
    return np.concatenate([np.asarray(getattr(segment, name)) for _, segment in segments])


def _mask(run: RunData) -> Iterator[Finding]:
    """Trained tokens that the model did not sample, or that are beside those it sampled."""
    for played in run.played:
        tokens = _Tokens.of(played)
        if tokens is None:
            continue
        found = _not_sampled(run, tokens) or _shifted(tokens) or _at_a_place(tokens)
        if found is not None:
            title, detail, wrong = found
            lines = np.unique(tokens.episodes[wrong])[:_SHOWN]
            shown = tuple((played.name, int(line)) for line in lines)
            yield Finding("mask", "high", title, detail, _MASK_ADVICE, (played.step,), shown)
            return


_Wrong = tuple[str, str, NDArray[np.bool_]]
"""Title, detail, and the tokens that show it."""


def _not_sampled(run: RunData, tokens: _Tokens) -> _Wrong | None:
    """Tokens of the environment that were trained, unless the settings ask for it."""
    algorithm = run.config.get("algo", {})
    row = algorithm.get("row", algorithm)
    wrong = ~tokens.sampled
    if not wrong.any() or row.get("mask_observations") is False:
        return None
    return (
        f"{percent(float(wrong.mean()))} of the trained tokens were written by the environment.",
        "No policy sampled these tokens, so the model learns to write the environment's texts.",
        wrong,
    )


def _shifted(tokens: _Tokens) -> _Wrong | None:
    """Tokens whose sampler's log-probability is the learner's of a neighbour."""
    here = _typical(tokens.learner - tokens.sampler)
    if here is None or here < _FAR:
        return None
    for shift, side in ((1, "after"), (-1, "before")):
        neighbours = np.roll(tokens.learner, -shift)
        inside = np.roll(tokens.spans, -shift) == tokens.spans
        beside = _typical((neighbours - tokens.sampler)[inside])
        if beside is not None and beside <= _CLOSER * here:
            return (
                "The loss mask is off by one: the sampler's log-probability of each trained token "
                f"belongs to the token {side} it.",
                f"At its own token the learner's log-probability differs by {here:.2g} nats, and "
                f"at the token {side} it by {beside:.2g}.",
                np.abs(tokens.learner - tokens.sampler) >= _FAR,
            )
    return None


def _at_a_place(tokens: _Tokens) -> _Wrong | None:
    """Tokens at one place of each turn whose log-probabilities differ, and no others."""
    difference = tokens.learner - tokens.sampler
    for place, name in _PLACES.items():
        there = (tokens.from_start if place >= 0 else tokens.from_end) == place
        at, rest = _typical(difference[there]), _typical(difference[~there])
        if at is not None and rest is not None and at >= _FAR and rest <= _CLOSER * at:
            return (
                f"The {name} trained token of each turn differs by {at:.2g} nats between sampler "
                f"and learner, the others by {rest:.2g}.",
                "A difference at one place of each turn shows that the mask or the template adds a "
                "token there that the model did not sample after these tokens.",
                there & (np.abs(difference) >= _FAR),
            )
    return None


def _typical(differences: NDArray[np.float64]) -> float | None:
    """The median magnitude, or None if there are too few numbers."""
    known = differences[np.isfinite(differences)]
    return float(np.median(np.abs(known))) if len(known) >= _LEAST else None


def _template(run: RunData) -> Iterator[Finding]:
    """Answers that go on with further messages, or that never end by themselves."""
    answers = [
        (played.name, line, turn)
        for played in run.played
        for line, trajectory in enumerate(played.trajectories)
        for turn in trajectory.turns
        if turn.num_tokens
    ]
    if len(answers) < _LEAST:
        return
    marked = [(name, line) for name, line, turn in answers if _has_marks(turn)]
    ended = sum(turn.finish_reason.startswith("stop") for _, _, turn in answers)
    steps = tuple(played.step for played in run.played)
    share = len(marked) / len(answers)
    advice = (
        "Compare the start of an episode with the model's own chat template, and its end token "
        "with generation_config.json. A base model has no template: teach it one first "
        "(python -m rl.sft), or use the model's instruct version."
    )
    if share >= 0.1:
        yield Finding(
            "template",
            "high",
            f"{percent(share)} of the answers contain marks of a chat template or a line with a "
            "role.",
            "The model writes the end of its message, or further messages, as a part of its "
            f"answer. {ended} of {len(answers)} answers ended by an end token or a stop string.",
            advice,
            steps,
            tuple(dict.fromkeys(marked))[:_SHOWN],
        )
    elif ended == 0:
        yield Finding(
            "template",
            "medium",
            f"None of {len(answers)} answers ended by itself.",
            "A model with the right template samples its end token, even if the limit of tokens is "
            "too small for some answers.",
            advice,
            steps,
            of_steps(steps),
        )


def _has_marks(turn: Turn) -> bool:
    return bool(_MARKS.search(turn.action) or _ROLE.search(turn.action))
