"""Programs for one task, grouped by what they answer: no reference solution is asked.

Of many samples, those that agree on random inputs are one cluster, and one member of the largest is
submitted: the test-time selection of o1-ioi ("Competitive Programming with Large Reasoning Models",
arXiv:2502.06807), without its learned scores. The inputs are the cross-check's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

from envs.code.crosscheck import Grader, small_calls
from envs.code.task import CodeTask
from tools.sandbox import CallTest, OutcomeKind


async def answers(
    grader: Grader, task: CodeTask, source: str, count: int
) -> tuple[str, ...] | None:
    """What a program answers to ``count`` random small inputs, as text.

    The inputs are a pure function of the task. Where there is no answer, it is what happened
    instead (``error``, ``timeout``, ...).

    Returns:
        One text for each input; None where the program answers no input at all.

    Raises:
        SandboxFailure: the sandbox failed.
    """
    asked = [CallTest(call.args, None, call.kwargs) for call in small_calls(task, count)]
    verdict = await grader.grade(source, asked, task.entry_point)
    # Compared with None, any other answer is wrong, and an answer all the same.
    answered = (OutcomeKind.PASSED, OutcomeKind.WRONG)
    if not any(outcome.kind in answered for outcome in verdict.outcomes):
        return None
    return tuple(
        _text(outcome.value) if outcome.kind in answered else str(outcome.kind)
        for outcome in verdict.outcomes
    )


def clusters(outputs: Sequence[Hashable | None]) -> list[list[int]]:
    """The places of equal outputs, the largest cluster first; among equals the one found first.

    Args:
        outputs: of each program; None is in no cluster.
    """
    found: dict[Hashable, list[int]] = defaultdict(list)
    for place, output in enumerate(outputs):
        if output is not None:
            found[output].append(place)
    return sorted(found.values(), key=len, reverse=True)


def _text(value: Any) -> str:
    """The same text for equal sets and dicts, in whatever order they were filled."""
    match value:
        case list() | tuple():
            return f"{type(value).__name__}({', '.join(map(_text, value))})"
        case set() | frozenset():
            return f"set({', '.join(sorted(map(_text, value)))})"
        case dict():
            items = sorted(f"{_text(key)}: {_text(one)}" for key, one in value.items())
            return f"dict({', '.join(items)})"
        case int() if not isinstance(value, bool):
            return f"{value:#x}"  # of any length; in decimal Python prints 4300 digits
    return repr(value)
