r"""A process that compares answers by math-verify: reads JSON lines, writes one word per line.

``envs.math.verification.verifier`` starts it as a script. Each check has a budget of processor
time, which starts with the check; the kernel kills a process that overruns it.
"""

from __future__ import annotations

import gc
import json
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from math import inf
from typing import Any

import math_verify
from sympy import Basic, Expr, Float, I, MatrixBase, Rational, UnevaluatedExpr, log

RIGHT, WRONG, UNVERIFIABLE, BAD_GOLD = "right", "wrong", "unverifiable", "bad-gold"
READY = "ready"
_MAY_BE_TINY = re.compile(r"\^|!|0\d\d|\d{4}|exp|binom")
TINY = 1e-3
"""Below this size, numbers are compared by their relative difference, 1e-6. Larger decimals are
equal if math-verify rounds them to the same six places."""

# The parsed text is the content of one box, so no extraction is needed.
_BOXED = (math_verify.LatexExtractionConfig(boxed_match_priority=0),)


# Members of a group share the gold answer and many answers.
@lru_cache(maxsize=8192)
def check(gold: str, answer: str) -> str:
    r"""The verdict, one of four words. Both texts are LaTeX without ``\boxed``.

    The verdict is ``BAD_GOLD`` if the gold answer cannot be read or does not equal itself. The
    verdict is ``UNVERIFIABLE`` if the answer is not mathematics and differs from the gold answer's
    text.
    """
    if not _readable(gold):
        return BAD_GOLD
    if answer == gold:
        return RIGHT
    wanted, given = _parse(gold), _parse(answer)
    decimals = _decimals(gold), _decimals(answer)
    if all(isinstance(one, str) for one in given):
        return RIGHT if _equal(wanted, given, *decimals) else UNVERIFIABLE
    close = _close(wanted, given)
    return RIGHT if (_equal(wanted, given, *decimals) if close is None else close) else WRONG


@lru_cache(maxsize=1024)
def _readable(gold: str) -> bool:
    """Whether math-verify reads a gold answer and finds it equal to itself."""
    read = [one for one in _parse(gold) if not isinstance(one, str)]
    return bool(read) and _equal(read, read, _decimals(gold))


def _equal(wanted: list[Any], given: list[Any], *decimals: tuple[int, int]) -> bool:
    """Whether math-verify finds the two answers equal.

    By default, math-verify accepts an interval for a gold inequality, but no inequality for a gold
    interval. Here an inequality and an interval are equal in either role.
    """
    rounding, precision = map(max, zip(*decimals, strict=True))
    # The process has its own time limit; the library's works only in a main thread.
    equal: bool = math_verify.verify(
        wanted,
        given,
        float_rounding=6 + rounding,
        numeric_precision=15 + precision,
        allow_set_relation_comp=True,
        timeout_seconds=None,
    )
    return equal


def _numbers(one: Any) -> Iterator[Any]:
    """The largest parts of an expression that are numbers."""
    if isinstance(one, Expr) and not one.free_symbols:
        yield one
    elif isinstance(one, MatrixBase):
        for entry in one.flat():
            yield from _numbers(entry)
    elif isinstance(one, Basic):
        for part in one.args:
            yield from _numbers(part)


@lru_cache(maxsize=1024)
def _decimals(text: str) -> tuple[int, int]:
    """The zeros after the decimal point of a text's smallest number, and of its smallest term.

    Terms of sums with decimals do not count, because decimals are approximate.
    """
    if not _MAY_BE_TINY.search(text):
        return 0, 0
    numbers = [number for one in _parse(text) for number in _numbers(one)]
    terms = [one.args for one in numbers if one.is_Add and not one.has(Float)]
    zeros = max(map(_zeros, numbers), default=0)
    return zeros, max([zeros, *map(_zeros, chain.from_iterable(terms))])


def _zeros(number: Any) -> int:
    """The number of zeros after the decimal point of a tiny number; 0 for others.

    math-verify compares numbers at a fixed number of decimals, so all tiny numbers would be equal.
    """
    if number.is_Rational and abs(number.p) >= TINY * number.q:
        return 0
    try:
        size = abs(number.evalf(6))
        return int(-log(size, 10).evalf(6)) if 0 < size < TINY else 0
    except (TypeError, ValueError, OverflowError):
        return 0


@lru_cache(maxsize=1024)
def _parse(text: str) -> list[Any]:
    """math-verify's parse of a text, followed by the text itself; [] if the text has no parse."""
    # A sentence may end inside the box; a number with its period would not parse.
    boxed = rf"\boxed{{{text.removesuffix('.')}}}"
    parsed: list[Any] = math_verify.parse(boxed, extraction_config=_BOXED, parsing_timeout=None)
    return [_with_imaginary_unit(one) for one in parsed]


def _with_imaginary_unit(parsed: Any) -> Any:
    """The expression with the imaginary unit in place of the variable i."""
    named = [symbol for symbol in getattr(parsed, "free_symbols", ()) if symbol.name == "i"]
    try:
        return parsed.subs(dict.fromkeys(named, I)) if named else parsed
    except (TypeError, ValueError):
        # An interval or an inequality with i stays unchanged.
        return parsed


def _close(wanted: list[Any], given: list[Any]) -> bool | None:
    """The verdict on two expressions by their values at some point, or None if it is not certain.

    On unequal values math-verify would reach the same verdict slowly, because it tries to simplify
    the difference to zero. On numbers with decimals, it knows only absolute differences.
    """
    (gold, *texts), (answer, *other_texts) = wanted, given
    if set(texts) & set(other_texts):
        return None
    # A lone symbol may be a word; math-verify compares words as texts.
    if not all(isinstance(one, Expr) and not one.is_Symbol for one in (gold, answer)):
        return None
    # A percentage also equals its number: 9% is 9.
    if gold.has(UnevaluatedExpr) or answer.has(UnevaluatedExpr):
        return None
    try:
        symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
        point = {symbol: Rational(7 + 3 * place, 10) for place, symbol in enumerate(symbols)}
        left, right = (complex(one.subs(point).evalf()) for one in (gold, answer))
    except (TypeError, ValueError, OverflowError):
        return None
    apart, size = abs(left - right), max(abs(left), abs(right))
    # Infinite and undefined values decide nothing.
    if apart > 1e-5 * max(1.0, abs(left)) and size < inf:
        return False
    if symbols or not 0 < size < inf or not (gold.has(Float) or answer.has(Float)):
        return None
    if size < TINY:
        return apart <= 1e-6 * size
    return True if apart <= 1e-12 * size else None


def serve(cpu_s: float, memory_mb: int) -> None:
    """Answer the checks that arrive on standard input, until it ends."""
    # Output of libraries must not mix with the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # Warm up: imports and tables of the first use of each kind.
    check(r"\frac{1}{2}", r"\sqrt{2}")
    check("x^2 - 1", "(x + 1)^2")
    gc.collect()
    gc.freeze()
    size = memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers.write(f"{READY}\n")
    for line in sys.stdin.buffer:
        gold, answer = json.loads(line)
        # The signal's default action ends the process during any computation.
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        word = check(gold, answer)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(f"{word}\n")


if __name__ == "__main__":
    serve(float(sys.argv[1]), int(sys.argv[2]))
