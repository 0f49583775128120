"""Comparison of a program with a reference solution on random small inputs.

One mismatch rejects the program, as in the self-checks of "Competitive Programming with Large
Reasoning Models" (arXiv:2502.06807). In the paper, the model itself writes a brute-force reference;
here the reference is the task's own solution. Inputs resemble those of the task's tests. An input
on which the reference has no output does not count.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from envs.code.task import CodeTask
from envs.code.values import LargeValue
from tools.sandbox import CallTest, OutcomeKind, StdioTest, Test, Verdict
from tools.sandbox.grading.literal import Call, call_of

SMALL_NUMBER = 9
"""Largest absolute value of random numbers."""
SMALL_SIZE = 5
"""Maximum number of elements of random lists."""
FLOAT_TOLERANCE = 1e-6
"""Absolute or relative tolerance for non-integer outputs of the reference."""


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """Result of a comparison."""

    num_compared: int
    """Number of inputs on which the reference has an output."""
    num_equal: int
    """Number of compared inputs on which the program has the same output as the reference."""

    @property
    def agreed(self) -> bool:
        """Whether all compared outputs are equal."""
        return self.num_equal == self.num_compared


class Grader(Protocol):
    """The part of a sandbox that a cross-check uses."""

    async def grade(
        self, source: str, tests: Sequence[Test], entry_point: str | None = None
    ) -> Verdict:
        """Test a submission; see ``tools.sandbox.Sandbox.grade``."""
        ...


def can_cross_check(task: CodeTask) -> bool:
    """Whether a task has a reference solution and tests that call a function."""
    return task.reference is not None and bool(_calls(task))


async def cross_check(grader: Grader, task: CodeTask, source: str, count: int) -> CrossCheck:
    """Compare a program with the task's reference on ``count`` random small inputs.

    The task alone determines the inputs.

    Raises:
        SandboxFailure: the sandbox failed.
    """
    assert task.reference is not None, "can_cross_check was asked"
    calls = small_calls(task, count)
    asked = [CallTest(call.args, None, call.kwargs) for call in calls]
    reference = await grader.grade(task.source(task.reference), asked, task.entry_point)
    tests = [
        CallTest(call.args, outcome.value, call.kwargs, _tolerance(outcome.value), call.rules)
        for call, outcome in zip(calls, reference.outcomes, strict=True)
        # Tests expect None, so that every other output is reported as a wrong value.
        if outcome.kind in (OutcomeKind.PASSED, OutcomeKind.WRONG)
        and not isinstance(outcome.value, LargeValue)  # A cut value equals nothing.
    ]
    if not tests:
        return CrossCheck(0, 0)
    verdict = await grader.grade(source, tests, task.entry_point)
    return CrossCheck(len(tests), verdict.num_passed)


def small_calls(task: CodeTask, count: int) -> list[Call]:
    """Calls like those of the task's tests, with small random arguments of the same kinds."""
    known = _calls(task)
    rng = random.Random(f"{task.entry_point} {task.prompt}")
    drawn = []
    for _ in range(count):
        like = rng.choice(known)
        args = tuple(_small(value, rng) for value in like.args)
        kwargs = {name: _small(value, rng) for name, value in like.kwargs.items()}
        drawn.append(Call(like.name, args, kwargs, None, rules=like.rules))
    return drawn


def _calls(task: CodeTask) -> list[Call]:
    tests = [test for test in (*task.public, *task.hidden) if not isinstance(test, StdioTest)]
    calls = [call for test in tests if (call := call_of(test, task.entry_point)) is not None]
    return [call for call in calls if call.args or call.kwargs]


def _small(value: Any, rng: random.Random) -> Any:
    """A small random value of the same kind as ``value``.

    A number can be negative only if the corresponding number in ``value`` is negative.
    """
    match value:
        case bool():
            return rng.random() < 0.5
        case int():
            return rng.randint(-SMALL_NUMBER if value < 0 else 0, SMALL_NUMBER)
        case float():
            return round(rng.uniform(-SMALL_NUMBER if value < 0 else 0, SMALL_NUMBER), 1)
        case str():
            return "".join(_elements(value, rng))
        case bytes():
            return bytes(_elements(value, rng))
        case list():
            return [_small(one, rng) for one in _elements(value, rng)]
        case tuple():
            # A mixed list is mostly a record, whose order matters.
            return tuple(_small(one, rng) for one in value)
        case set() | frozenset():
            ordered = sorted(value, key=repr)
            return type(value)(_small(one, rng) for one in _elements(ordered, rng))
        case Mapping():
            return {key: _small(one, rng) for key, one in value.items() if rng.random() < 0.8}
    return value


def _elements(values: Sequence[Any], rng: random.Random) -> list[Any]:
    """A random selection of the values, possibly with repetitions."""
    return rng.choices(values, k=rng.randint(0, SMALL_SIZE)) if values else []


def _tolerance(value: object) -> float | None:
    return FLOAT_TOLERANCE if _has_float(value) else None


def _has_float(value: object) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_float, value))
    if isinstance(value, dict):
        return any(map(_has_float, value.values()))
    return isinstance(value, float | complex)
