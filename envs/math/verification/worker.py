r"""A process that compares answers by math-verify: reads JSON lines, writes one word per line.

``envs.math.verification.verifier`` starts it as a script. Each check has a budget of processor
time, which starts with the check; the kernel kills a process that overruns it.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
from functools import lru_cache
from math import inf
from typing import Any

import math_verify
from sympy import Expr, I, Rational, UnevaluatedExpr

RIGHT, WRONG, UNVERIFIABLE, BAD_GOLD = "right", "wrong", "unverifiable", "bad-gold"
READY = "ready"

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
    wanted = _parse(gold)
    read = [one for one in wanted if not isinstance(one, str)]
    # The process has its own time limit; the library's works only in a main thread.
    if not read or not _equal(read, read):
        return BAD_GOLD
    if answer == gold:
        return RIGHT
    given = _parse(answer)
    if all(isinstance(one, str) for one in given):
        return RIGHT if _equal(wanted, given) else UNVERIFIABLE
    return RIGHT if not _far_apart(wanted, given) and _equal(wanted, given) else WRONG


def _equal(wanted: list[Any], given: list[Any]) -> bool:
    """Whether math-verify finds the two answers equal.

    By default, math-verify accepts an interval for a gold inequality, but no inequality for a gold
    interval. Here an inequality and an interval are equal in either role.
    """
    equal: bool = math_verify.verify(
        wanted, given, allow_set_relation_comp=True, timeout_seconds=None
    )
    return equal


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


def _far_apart(wanted: list[Any], given: list[Any]) -> bool:
    """Whether two expressions have different values at some point, and so are unequal.

    math-verify would reach the same verdict slowly, because it tries to simplify the difference of
    unequal expressions to zero.
    """
    (gold, *texts), (answer, *other_texts) = wanted, given
    if set(texts) & set(other_texts):
        return False
    # A lone symbol may be a word; math-verify compares words as texts.
    if not all(isinstance(one, Expr) and not one.is_Symbol for one in (gold, answer)):
        return False
    # A percentage also equals its number: 9% is 9.
    if gold.has(UnevaluatedExpr) or answer.has(UnevaluatedExpr):
        return False
    try:
        symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
        point = {symbol: Rational(7 + 3 * place, 10) for place, symbol in enumerate(symbols)}
        left, right = (complex(one.subs(point).evalf()) for one in (gold, answer))
    except (TypeError, ValueError, OverflowError):
        return False
    # Infinite and undefined values decide nothing.
    return abs(left - right) > 1e-5 * max(1.0, abs(left)) and abs(left) + abs(right) < inf


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
