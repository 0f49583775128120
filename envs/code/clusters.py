"""Programs for one task, grouped by their outputs, without a reference solution.

Programs with equal outputs on random inputs form a cluster. The test-time selection of o1-ioi
submits a member of the largest cluster ("Competitive Programming with Large Reasoning Models",
arXiv:2502.06807). The learned scores of o1-ioi are not implemented. ``envs.code.crosscheck`` draws
the inputs.
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
    """A program's outputs for ``count`` random small inputs, as texts.

    The task alone determines the inputs. If a run has no output, its text is the outcome
    (``error``, ``timeout``, ...).

    Returns:
        One text per input, or None if the program has no output for any input.

    Raises:
        SandboxFailure: the sandbox failed.
    """
    asked = [CallTest(call.args, None, call.kwargs) for call in small_calls(task, count)]
    verdict = await grader.grade(source, asked, task.entry_point)
    # Tests expect None, so that every other output is reported as a wrong value.
    answered = (OutcomeKind.PASSED, OutcomeKind.WRONG)
    if not any(outcome.kind in answered for outcome in verdict.outcomes):
        return None
    return tuple(
        _text(outcome.value) if outcome.kind in answered else str(outcome.kind)
        for outcome in verdict.outcomes
    )


def clusters(outputs: Sequence[Hashable | None]) -> list[list[int]]:
    """Group programs by equal outputs, as lists of indices.

    The largest cluster comes first. Clusters of equal size are in the order of their first members.

    Args:
        outputs: each program's outputs. A program with None is in no cluster.
    """
    found: dict[Hashable, list[int]] = defaultdict(list)
    for place, output in enumerate(outputs):
        if output is not None:
            found[output].append(place)
    return sorted(found.values(), key=len, reverse=True)


def _text(value: Any) -> str:
    """A text of a value that does not depend on the insertion order of sets and dicts."""
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
