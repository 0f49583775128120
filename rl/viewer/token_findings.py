"""Findings from the tokens and the texts of a run's episodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl.rollout.trajectory import NOT_SAMPLED, Segment, Trajectory, Turn
from rl.viewer.finding import Finding, Played, RunData, of_steps, percent, plural

_FAR = 1.0
"""Difference of a token's log-probabilities, in nats, that rounding cannot explain."""
_CLOSER = 0.1
"""A difference up to this share of another one counts as much smaller."""
_LEAST = 8
"""Smallest number of tokens or answers from which something is concluded."""
_ALIGNED = 0.99
"""Share of the tokens at which the mask, moved by one place, must explain what was trained."""
_SHOWN = 20
"""Maximum number of episodes that a finding names."""
_REPEATED = 0.8
"""Share of the further members of groups that must repeat another one to be no coincidence."""
_UNLIKELY = -3.0
"""Log-probability of an episode's tokens below which members seldom agree by chance."""
_CERTAIN = -1e-3
"""Log-probability above which the sampler gave a token the probability 1."""
_SOLVED = 0.9
"""Success from which equal episodes are expected."""
_COLD, _NARROW = 0.5, 0.2
"""A temperature or a top_p below which a policy repeats itself."""
_WORKS = 0.5
"""Success from which a model evidently reads its prompts."""
_FEW = 5
"""Number of episodes that show what is the same in all."""
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
_FIXED_ADVICE = (
    "Check that the policy samples: a server may ignore the temperature or use one seed for all "
    "requests, and a policy plug-in may return the likeliest token. If it samples, the model's "
    "entropy is 0: start from an earlier checkpoint, with a smaller optimizer.lr."
)
_MASK_ADVICE = (
    "Check where the agent or the learner plug-in sets loss_mask: it must be 1 exactly at the "
    "tokens that the policy returned. In the token view, compare the colours of what is trained "
    "and of the advantages."
)


def token_findings(run: RunData) -> list[Finding]:
    """The findings from the episodes of a few steps, in no order."""
    return [*_mask(run), *_template(run), *_identical(run)]


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
    moved: int
    """1 if the learner trained each place after one that was sampled, -1 if each place before, and
    0 otherwise."""

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
        by_policy = _column(segments, "versions") != NOT_SAMPLED
        sampled = by_policy[trained]
        learner = played.columns["logprobs"][trained].astype(np.float64)
        return cls(
            episodes=np.repeat([i for i, _ in segments], sizes)[trained],
            spans=spans,
            from_start=place - starts,
            from_end=place - ends,
            sampled=sampled,
            sampler=_column(segments, "sampling_logprobs")[trained].astype(np.float64),
            learner=np.where(sampled, learner, np.nan),
            moved=_moved(trained, by_policy, np.repeat(np.arange(len(sizes)), sizes)),
        )


def _moved(
    trained: NDArray[np.bool_], sampled: NDArray[np.bool_], segments: NDArray[np.int64]
) -> int:
    """By how many places the trained tokens stand beside the sampled ones: 1, -1, or 0.

    Segments without a trained token belong to groups that the update left out.
    """
    used = np.isin(segments, segments[trained])
    trained, sampled = trained[used], sampled[used]
    if np.count_nonzero(trained & ~sampled) < _LEAST:
        return 0
    equal = {by: float(np.mean(np.roll(sampled, by) == trained)) for by in (1, -1)}
    best = max(equal, key=lambda by: equal[by])
    return best if equal[best] >= _ALIGNED else 0


def _column(segments: list[tuple[int, Segment]], name: str) -> NDArray[Any]:
    return np.concatenate([np.asarray(getattr(segment, name)) for _, segment in segments])


def _mask(run: RunData) -> Iterator[Finding]:
    """Trained tokens that the model did not sample, or that are beside those it sampled."""
    for played in run.played:
        tokens = _Tokens.of(played)
        if tokens is None:
            continue
        found = (
            _beside(tokens) or _not_sampled(run, tokens) or _shifted(tokens) or _at_a_place(tokens)
        )
        if found is not None:
            title, detail, wrong = found
            lines = np.unique(tokens.episodes[wrong])[:_SHOWN]
            shown = tuple((played.name, int(line)) for line in lines)
            steps, colour = (played.step,), "advantage"
            yield Finding("mask", "high", title, detail, _MASK_ADVICE, steps, shown, colour)
            return


_Wrong = tuple[str, str, NDArray[np.bool_]]
"""Title, detail, and the tokens that show it."""


def _beside(tokens: _Tokens) -> _Wrong | None:
    """Trained places that all stand one place beside the sampled ones."""
    if not tokens.moved:
        return None
    side, lost = ("after", "first") if tokens.moved == 1 else ("before", "last")
    return (
        f"The loss mask is off by one: the learner trained the token {side} each sampled one.",
        f"The {lost} token of each answer was not trained, and a token {side} the answer, which "
        "no policy sampled, was trained instead.",
        ~tokens.sampled,
    )


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
    foreign = list(_foreign_marks(run))
    if foreign:
        yield from foreign
        return
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


def _foreign_marks(run: RunData) -> Iterator[Finding]:
    """A template that replaces the model's own, and whose marks the model does not know."""
    chat = run.chat
    if chat is None or not chat.replaced or not chat.unknown_marks:
        return
    marks = ", ".join(chat.unknown_marks[:4])
    newest = run.played[-1:]
    shown = [(p.name, line) for p in newest for line in range(len(p.trajectories))]
    yield Finding(
        "template",
        "medium" if (run.success or 0.0) >= _WORKS else "high",
        f"The chat template is not the model's own, and its marks {marks} are no tokens of the "
        "model.",
        "The model reads each mark as a row of ordinary characters that it never saw at this "
        "place, so it does not know where a message begins or ends.",
        "Leave out chat.template to use the model's own template, or choose the template with "
        "which the model was trained.",
        tuple(p.step for p in newest),
        tuple(shown[:_FEW]),
        "mask",
    )


def _identical(run: RunData) -> Iterator[Finding]:
    """Groups whose members have the same sampled tokens."""
    groups = [(p, lines) for p in run.played for lines in _groups(p.trajectories)]
    answers = [[_sampled_ids(p.trajectories[line]) for line in lines] for p, lines in groups]
    distinct, members = sum(len(set(a)) for a in answers), sum(map(len, answers))
    repeated = members - distinct
    if not groups or repeated < _REPEATED * (members - len(groups)):
        return
    verb = "repeats another one of its" if repeated == 1 else "repeat another one of their"
    episodes = [p.trajectories[line] for p, lines in groups for line in lines]
    settings = _without_chance(run.config.get("sampling", {}))
    cause = ", ".join(settings) or _fixed_policy(episodes)
    if not cause:
        return
    same = [group for group, ids in zip(groups, answers, strict=True) if len(set(ids)) == 1]
    solved = run.success is not None and run.success >= _SOLVED
    change = " ".join(settings.values())
    yield Finding(
        "identical",
        "low" if solved else "high",
        f"The {max(map(len, answers))} episodes of a group are the same ({len(same)} of "
        f"{plural(len(groups), 'group')}): {cause}.",
        f"{repeated} of {members} episodes {verb} group token by token. Equal episodes have equal "
        "rewards and advantages of 0, however many a group has.",
        f"{change}." if change else _FIXED_ADVICE,
        tuple(dict.fromkeys(played.step for played, _ in same or groups)),
        tuple((played.name, lines[0]) for played, lines in same or groups)[:_SHOWN],
        view="group",
    )


def _groups(episodes: Sequence[Trajectory]) -> Iterator[list[int]]:
    """The lines of each group's episodes with sampled tokens, of groups with several of them."""
    lines: list[int] = []
    for line, episode in enumerate(episodes):
        if line and episode.member <= episodes[line - 1].member:
            if len(lines) > 1:
                yield lines
            lines = []
        if episode.failure is None and any(turn.num_tokens for turn in episode.turns):
            lines.append(line)
    if len(lines) > 1:
        yield lines


def _sampled_ids(episode: Trajectory) -> tuple[tuple[int, ...], ...]:
    """The sampled tokens of each segment."""
    return tuple(
        tuple(np.asarray(s.token_ids)[np.asarray(s.versions) != NOT_SAMPLED].tolist())
        for s in episode.segments
    )


def _without_chance(sampling: Mapping[str, Any]) -> dict[str, str]:
    """The settings with which a policy repeats itself, and what to set instead."""
    temperature, top_p = sampling.get("temperature", 1.0), sampling.get("top_p", 1.0)
    found = {}
    if temperature < _COLD:
        found[f"sampling.temperature is {temperature:g}"] = "sampling.temperature=1"
    if sampling.get("top_k", 0) == 1:
        found["sampling.top_k is 1"] = "sampling.top_k=0"
    if top_p < _NARROW:
        found[f"sampling.top_p is {top_p:g}"] = "sampling.top_p=1"
    return found


def _fixed_policy(episodes: Sequence[Trajectory]) -> str:
    """Why a policy repeats itself with any settings. Empty if it may be chance or success."""
    logprobs = [
        np.asarray(s.sampling_logprobs)[np.asarray(s.versions) != NOT_SAMPLED]
        for episode in episodes
        for s in episode.segments
    ]
    every = np.concatenate(logprobs)
    if every.sum() / len(episodes) < _UNLIKELY:
        return "the policy does not sample"
    long = len(every) >= _LEAST * len(episodes)
    if long and every.min() > _CERTAIN and any((e.outcome or 0.0) < 1 for e in episodes):
        return "the policy gives each token the probability 1"
    return ""


def _has_marks(turn: Turn) -> bool:
    return bool(_MARKS.search(turn.action) or _ROLE.search(turn.action))
