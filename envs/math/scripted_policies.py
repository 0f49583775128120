r"""Scripted policies for generated problems: one that solves them, and a careless one.

A policy is a function from observation to action, for one episode. It reads only the question and
the results of its tool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from envs.math.generated import COMPUTE, EXPAND, SOLVE, latex, polynomial
from tools.builtin.calculator import evaluate

FORGETS = 0.6
"""Probability that the careless policy forgets the last step: a sum's last term, or a division."""
SLIPS = 0.05
"""Probability that the careless policy gets a number wrong by one."""

_TERM = re.compile(r"\s*([+-]?)\s*(\d*)(x?)")
_NUMBER = re.compile(r"-?\d+(?:/\d+)?")
_LAST_TERM = re.compile(r"(.*) [+-] \d+")
_INTEGER = re.compile(r"\d+")


class Layout(NamedTuple):
    """The text around a solution's working and its answer."""

    opening: str
    between: str
    closing: str

    def answer(self, answer: str) -> str:
        """The text after the working, with the answer in a box."""
        return rf"{self.between}\boxed{{{answer}}}{self.closing}"


BARE = Layout("", "\n", "")
TAGGED = Layout("<think>\n", "\n</think>\n<answer>\n", "\n</answer>")


def linear(text: str) -> tuple[int, int]:
    """The numbers ``a`` and ``b`` of a text ``ax + b``.

    Raises:
        ValueError: the text has another form.
    """
    a = b = at = 0
    while at < len(text):
        match = _TERM.match(text, at)
        if match is None or match.end() == at or not (match[2] or match[3]):
            raise ValueError(f"{text!r} is no sum of numbers and multiples of x")
        size = int(match[2] or 1) * (-1 if match[1] == "-" else 1)
        if match[3]:
            a += size
        else:
            b += size
        at = match.end()
    return a, b


def expression(question: str) -> str | None:
    """The arithmetic expression whose value is the answer, or None if the answer is no number.

    Raises:
        ValueError: the text is not a generated question.
    """
    if question.startswith(COMPUTE):
        return question.removeprefix(COMPUTE).removesuffix(".")
    if question.startswith(SOLVE):
        left, _, right = question.removeprefix(SOLVE).removesuffix(".").partition(" = ")
        (a, b), (c, d) = linear(left), linear(right)
        return f"({d} - {b}) / ({a} - {c})"
    if question.startswith(EXPAND):
        return None
    raise ValueError(f"{question!r} is no generated question")


def expanded(question: str) -> str:
    """The polynomial that answers an "Expand" question."""
    left, _, right = question.removeprefix(EXPAND).removesuffix(".").partition(")(")
    (a, b), (c, d) = linear(left.strip("(")), linear(right.strip(")"))
    return polynomial(a * c, a * d + b * c, b * d)


def python_code(wanted: str) -> str:
    """Code that prints an expression's exact value."""
    exact = _INTEGER.sub(lambda number: f"F({number[0]})", wanted)
    return f"from fractions import Fraction as F\nprint({exact})"


class ToolUse(NamedTuple):
    """How the policies call one tool."""

    argument: str
    value: Callable[[str], str]
    """Returns the tool's argument for an expression."""
    tags: str
    """A call between tags; the argument replaces its placeholder."""

    def written(self, tool: str, wanted: str, *, chat: bool) -> str:
        """The text of a call that evaluates an expression, between tags or in the chat format."""
        value = self.value(wanted)
        if not chat:
            return self.tags.format(value)
        call = json.dumps({"name": tool, "arguments": {self.argument: value}})
        return f"<tool_call>\n{call}\n</tool_call>"


CALLS: Mapping[str, ToolUse] = {
    "python": ToolUse("code", python_code, "<code>\n{}\n</code>"),
    "calculator": ToolUse("expression", str, "<calculator> {} </calculator>"),
}


class GoldPolicy:
    """Computes the answer, by itself or with a tool.

    Args:
        layout: the format that is rewarded.
        tool: name of the tool to call, or "none".
        chat: whether calls have the format of chat models, instead of tags.
    """

    def __init__(self, layout: Layout, tool: str, *, chat: bool = False) -> None:
        self._layout, self._tool, self._chat = layout, tool, chat
        self._calling = False

    def __call__(self, observation: str) -> str:
        """The next action.

        Raises:
            ValueError: the observation is neither a generated question nor a number.
        """
        opening = self._layout.opening
        if self._calling:
            number = _NUMBER.search(observation)
            if number is None:
                raise ValueError(f"{observation!r} holds no number")
            # In the chat format, no call is made in a thought: the thought follows the call.
            thought = opening + number[0] if self._chat and opening else ""
            return thought + self._layout.answer(latex(Fraction(number[0])))
        wanted = expression(observation)
        if wanted is not None and self._tool in CALLS:
            self._calling = True
            called = CALLS[self._tool].written(self._tool, self._wanted(wanted), chat=self._chat)
            return called if self._chat else opening + called
        if wanted is None:
            working, answer = observation, expanded(observation)
        else:
            working, answer = self._solution(observation, wanted)
        return opening + working + self._layout.answer(answer)

    def _wanted(self, wanted: str) -> str:
        """The expression that the tool should evaluate."""
        return wanted

    def _solution(self, question: str, wanted: str) -> tuple[str, str]:
        """The working, as text, and the answer."""
        return wanted, latex(evaluate(wanted))


class CarelessPolicy(GoldPolicy):
    """Solves problems of level 1 step by step, but often omits the last step or miscalculates.

    About four answers in ten are right.

    Args:
        layout: the format that is rewarded.
        tool: name of the tool to call, or "none". With a tool, the policy does not miscalculate.
        rng: draws the errors.
        chat: whether calls have the format of chat models, instead of tags.
    """

    def __init__(
        self, layout: Layout, tool: str, rng: np.random.Generator, *, chat: bool = False
    ) -> None:
        super().__init__(layout, tool, chat=chat)
        self._rng = rng

    def _forgets(self) -> bool:
        return bool(self._rng.random() < FORGETS)

    def _slip(self, number: int) -> int:
        if self._rng.random() >= SLIPS:
            return number
        return number + int(self._rng.choice((-1, 1)))

    def _wanted(self, wanted: str) -> str:
        if not self._forgets():
            return wanted
        shorter = _LAST_TERM.fullmatch(wanted)
        return wanted.partition(" / ")[0] if shorter is None else shorter[1]

    def _solution(self, question: str, wanted: str) -> tuple[str, str]:
        return self._equation(question) if question.startswith(SOLVE) else self._sum(wanted)

    def _sum(self, wanted: str) -> tuple[str, str]:
        first, *rest = wanted.split(" ")
        if self._forgets():
            rest = rest[:-2]
        total, lines = int(first), []
        for sign, term in zip(rest[::2], rest[1::2], strict=True):
            after = self._slip(total + int(term) if sign == "+" else total - int(term))
            lines.append(f"{total} {sign} {term} = {after}")
            total = after
        return "\n".join(lines), str(total)

    def _equation(self, question: str) -> tuple[str, str]:
        left, _, right = question.removeprefix(SOLVE).removesuffix(".").partition(" = ")
        (a, b), c = linear(left), int(right)
        rest = self._slip(c - b)
        line = f"{a}x = {c} {'-' if b > 0 else '+'} {abs(b)} = {rest}"
        if self._forgets():
            return line, str(rest)
        root = self._slip(rest // a)
        return f"{line}\nx = {rest} / {a} = {root}", str(root)
