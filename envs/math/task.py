"""A task: a problem and its answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MathTask:
    """One problem."""

    question: str
    """The first observation."""
    answer: str
    r"""The gold answer as LaTeX, without ``\boxed``."""
    where: str = ""
    """File and line of a row, for messages."""
    own_prompt: bool = False
    """Whether the question itself explains the answer format, as verl's rows do."""
    options: tuple[str, ...] = ()
    """The texts of the options if the answer is the letter of one."""
