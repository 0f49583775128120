"""Solutions with labelled steps: reads files of them, and converts them to tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agents.renderer import Renderer
from agents.segment import Segment
from rl.data.conversations import Conversation, conversation_of, tools_of, unsampled
from rl.data.json_lines import read_lines

FORMAT = (
    '{"prompt": ..., "completions": [step, ...], "labels": [...]}, or {"messages": [...], '
    '"labels": [...]} with a label for each message of the assistant'
)
SEPARATOR = "\n"
"""Separates the steps of an answer."""


@dataclass(frozen=True, slots=True)
class TokenSteps:
    """A solution as tokens, with the ends of its steps."""

    segment: Segment
    ends: tuple[int, ...]
    """Position of each step's last token."""
    labels: tuple[float, ...]
    """Label of each step, from 0 to 1: whether, or how often, the step leads to a right answer."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The solution's only segment."""
        return (self.segment,)


@dataclass(frozen=True, slots=True)
class Steps:
    """A solution as text. Its steps are turns of a conversation, or parts of one answer."""

    conversation: Conversation
    """The conversation. If the steps are parts of one answer, the conversation's only action holds
    all steps."""
    labels: tuple[float, ...]
    steps: tuple[str, ...] = ()
    """The steps of one answer. Empty if the steps are the turns of the conversation."""

    @property
    def prompt(self) -> tuple[Any, ...]:
        """The system message and the question."""
        return (self.conversation.system, self.conversation.exchanges[0].observation)

    def tokenized(self, renderer: Renderer) -> TokenSteps:
        """The solution as tokens.

        If the steps are parts of one answer, each is encoded separately.
        """
        whole = self.conversation.to_segment(renderer)
        if not self.steps:
            return TokenSteps(whole, turn_ends(whole), self.labels)
        first = whole.loss_mask.index(1)
        segment, ends = Segment(), []
        segment.append_context(whole.token_ids[:first], 0)
        for place, step in enumerate(self.steps):
            last = place == len(self.steps) - 1
            tokens = renderer.splice(step if last else step + SEPARATOR)
            tokens = [*tokens, renderer.end_token_ids[0]] if last else tokens
            segment.append_completion(unsampled(tokens), 0)
            ends.append(len(segment) - 1)
        return TokenSteps(segment, tuple(ends), self.labels)


def turn_ends(segment: Segment) -> tuple[int, ...]:
    """Position of each turn's last token with loss_mask 1, for the turns that have one."""
    rows = zip(segment.turn_ids, segment.loss_mask, strict=True)
    return tuple({turn: place for place, (turn, mask) in enumerate(rows) if mask}.values())


def read_steps(path: str) -> list[Steps]:
    """Read labelled solutions from JSON lines.

    ``{"prompt", "completions", "labels"}`` is TRL's stepwise form: the steps of one answer.
    ``{"messages", "labels"}`` labels the turns of a conversation. Labels are numbers from 0 to 1.

    Raises:
        ValueError: a line is not such a solution. The message names the file and the line.
    """
    solutions = read_lines(path, _steps, FORMAT)
    if not solutions:
        raise ValueError(f"data ({path}) holds no solution: give it a line for each")
    return solutions


def _steps(row: Mapping[str, Any]) -> Steps:
    if "messages" in row:
        conversation = conversation_of(row["messages"], tools=tools_of(row))
        return Steps(conversation, _labels(row["labels"], len(conversation.exchanges)))
    prompt, steps = row["prompt"], tuple(row["completions"])
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if not steps or not all(isinstance(step, str) and step for step in steps):
        raise TypeError("a step is no text, or an empty one")
    answer = {"role": "assistant", "content": SEPARATOR.join(steps)}
    conversation = conversation_of([*prompt, answer])
    if len(conversation.exchanges) > 1:
        raise ValueError("a prompt of several turns: give the whole as messages")
    return Steps(conversation, _labels(row["labels"], len(steps)), steps)


def _labels(labels: Sequence[float], count: int) -> tuple[float, ...]:
    numbers = tuple(float(label) for label in labels)
    if len(numbers) != count or not all(0 <= number <= 1 for number in numbers):
        raise ValueError(f"labels ({labels}) must be a number from 0 to 1 for each of {count}")
    return numbers


@dataclass(frozen=True, slots=True)
class Solution:
    """A solution in steps, without labels."""

    messages: tuple[Mapping[str, Any], ...]
    """The prompt."""
    steps: tuple[str, ...]
    answer: str
    """The right answer."""
    row: Mapping[str, Any]
    """The row of the file, unchanged."""
    where: str
    """Name of the row in error messages."""


SOLUTION_FORMAT = '{"prompt": ..., "completions": [step, ...], "answer": ...}'


def read_solutions(path: str) -> list[Solution]:
    """Read solutions without labels from JSON lines, each with the right answer.

    Raises:
        ValueError: a line is not such a solution. The message names the file and the line.
    """
    solutions = read_lines(path, _solution, SOLUTION_FORMAT)
    if not solutions:
        raise ValueError(f"data ({path}) holds no solution: give it a line for each")
    return [replace(s, where=f"row {n}") for n, s in enumerate(solutions, start=1)]


def _solution(row: Mapping[str, Any]) -> Solution:
    steps = _steps({**row, "labels": [0.0] * len(row["completions"])}).steps
    prompt, answer = row["prompt"], row["answer"]
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or answer == "":
        raise TypeError(f"answer ({answer!r}) is neither a text nor a number")
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return Solution(tuple(messages), steps, str(answer), row, "")
