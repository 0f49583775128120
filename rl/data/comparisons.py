"""Comparisons of answers: reads files of preferences, and converts them to tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb, isfinite
from typing import Any

from agents.renderer import Renderer
from agents.segment import NOT_SAMPLED, Segment
from rl.data.conversations import Conversation, conversation_of, tools_of
from rl.data.json_lines import read_lines

Messages = list[dict[str, Any]]
FORMAT = (
    '{"prompt": ..., "chosen": ..., "rejected": ...}, or {"prompt": ..., "completions": [...], '
    '"scores": [...]}, each a text or a list of messages'
)


@dataclass(frozen=True, slots=True)
class Pair:
    """Indices of two answers. The first is the preferred one."""

    better: int
    worse: int
    margin: float = 0.0
    """Required difference between the reward of the first answer and that of the second."""
    label: float = 1.0
    """The probability that the first answer is better."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Answers to one prompt, with the pairs to compare."""

    answers: tuple[Conversation, ...]
    """The answers; each conversation starts with the prompt."""
    pairs: tuple[Pair, ...]
    first_turn: int = 0
    """Index of the first turn that belongs to the answers. Earlier turns belong to the prompt."""

    @property
    def prompt(self) -> tuple[Any, ...]:
        """The common start of all answers."""
        first = self.answers[0]
        before = first.exchanges[: self.first_turn]
        return (first.system, *before, first.exchanges[self.first_turn].observation)

    def tokenized(self, renderer: Renderer) -> TokenComparison:
        """The comparison as tokens. loss_mask is 1 in the answers and 0 in the prompt."""
        segments = (answer.to_segment(renderer) for answer in self.answers)
        return TokenComparison(
            tuple(from_turn(segment, self.first_turn) for segment in segments), self.pairs
        )


@dataclass(frozen=True, slots=True)
class TokenComparison:
    """A comparison as tokens."""

    segments: tuple[Segment, ...]
    pairs: tuple[Pair, ...]
    offsets: tuple[float, ...] = ()
    """The reference model's reward of each answer, which is subtracted from the trained model's
    reward. Empty means 0."""

    @property
    def weight(self) -> float:
        """The weight of each pair: 1 / C(K, 2) for K answers."""
        return 1 / comb(len(self.segments), 2)


def from_turn(segment: Segment, first: int) -> Segment:
    """A copy of ``segment`` in which the turns before ``first`` have loss_mask 0."""
    rows = zip(segment.loss_mask, segment.turn_ids, strict=True)
    mask = [m if turn >= first else 0 for m, turn in rows]
    return Segment(
        token_ids=segment.token_ids,
        loss_mask=mask,
        sampling_logprobs=segment.sampling_logprobs,
        versions=[v if m else NOT_SAMPLED for m, v in zip(mask, segment.versions, strict=True)],
        turn_ids=segment.turn_ids,
    )


def read_comparisons(path: str) -> list[Comparison]:
    """Read comparisons from JSON lines: pairs in TRL's conversational format, or ranked answers.

    A line is either ``{"prompt", "chosen", "rejected"}``, optionally with ``"margin"`` and
    ``"label"`` (the probability that chosen is better), or ``{"prompt", "completions", "scores"}``
    with K answers. A greater score is better, and equal scores are ties. A prompt is a list of
    messages, or the user's text. An answer is a list of messages, or the assistant's text. If a
    line has no ``"prompt"``, the messages with which all answers start are the prompt. For further
    keys of a message, see :func:`rl.data.conversations.to_messages`. A line can also have
    ``"tools"`` (JSON schemas) and ``"tokenizer"`` (``Renderer.identity`` of the renderer of its
    token ids).

    Raises:
        ValueError: a line is not a comparison. The message names the file and the line.
    """
    comparisons = read_lines(path, _comparison, FORMAT)
    if not comparisons:
        raise ValueError(f"data ({path}) holds no comparison: give it a line for each")
    if not any(comparison.pairs for comparison in comparisons):
        raise ValueError(f"data ({path}) prefers no answer to another: every line is a tie")
    return [comparison for comparison in comparisons if comparison.pairs]


def _comparison(row: Mapping[str, Any]) -> Comparison:
    ranked = "completions" in row
    said = [_messages(a, "assistant") for a in _texts(row, ranked)]
    prompt = _messages(row["prompt"], "user") if "prompt" in row else _shared(said)
    if "prompt" not in row:
        said = [messages[len(prompt) :] for messages in said]
    tokenizer, tools = row.get("tokenizer", ""), tools_of(row)
    answers = tuple(conversation_of([*prompt, *messages], tokenizer, tools) for messages in said)
    first_turn = sum(message["role"] == "assistant" for message in prompt)
    pairs = _ranked(row["scores"], len(said)) if ranked else [_pair(row)]
    return Comparison(answers, tuple(pairs), first_turn)


def _texts(row: Mapping[str, Any], ranked: bool) -> Iterator[Any]:
    if not ranked:
        yield from (row["chosen"], row["rejected"])
        return
    if len(row["completions"]) < 2:
        raise ValueError("fewer than two completions")
    yield from row["completions"]


def _messages(said: Any, role: str) -> Messages:
    return [{"role": role, "content": said}] if isinstance(said, str) else list(said)


def _shared(said: Sequence[Messages]) -> Messages:
    """The messages with which all answers start, without assistant messages at their end."""
    count = 0
    for messages in zip(*said, strict=False):
        if any(message != messages[0] for message in messages):
            break
        count += 1
    # Of equal answers, at least the last message counts as the answer.
    count = min(count, *(len(messages) - 1 for messages in said))
    while count and said[0][count - 1]["role"] == "assistant":
        count -= 1
    if not count:
        raise ValueError("no prompt, and no message that all answers begin with")
    return said[0][:count]


def _pair(row: Mapping[str, Any]) -> Pair:
    margin, label = float(row.get("margin", 0.0)), float(row.get("label", 1.0))
    if not isfinite(margin):
        raise ValueError(f"margin ({margin}) must be finite")
    if not 0 <= label <= 1:
        raise ValueError(f"label ({label}) must be from 0 to 1")
    return Pair(0, 1, margin, label)


def _ranked(scores: Sequence[float], count: int) -> list[Pair]:
    if len(scores) != count or not all(isfinite(float(score)) for score in scores):
        raise ValueError(f"scores ({scores}) must be a number for each of {count} completions")
    return [Pair(better, worse) for better, worse in ranked_pairs([float(s) for s in scores])]


def ranked_pairs(ranking: Sequence[float]) -> list[tuple[int, int]]:
    """Every pair (better, worse) of answers with different grades.

    Args:
        ranking: a grade for each answer; the greater, the better.

    Returns:
        Pairs of positions in ``ranking``.
    """
    answers = range(len(ranking))
    return [(i, j) for i in answers for j in answers if ranking[i] > ranking[j]]
