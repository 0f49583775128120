r"""A process that compares answers by math-verify: JSON lines in, one word a line out.

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

# What is parsed is the inside of one box: nothing is looked for elsewhere.
_BOXED = (math_verify.LatexExtractionConfig(boxed_match_priority=0),)


# Members of a group share their gold, and many of their answers.
@lru_cache(maxsize=8192)
def check(gold: str, answer: str) -> str:
    r"""One of the four words; both texts are LaTeX without its ``\boxed``.

    A gold that cannot be read, or does not equal itself, is bad. An answer is unverifiable where
    it cannot be read as mathematics, and is not the gold word for word.
    """
    wanted = _parse(gold)
    read = [one for one in wanted if not isinstance(one, str)]
    # The time limit is the process's own: the library's works in the main thread only.
    if not read or not _equal(read, read):
        return BAD_GOLD
    if answer == gold:
        return RIGHT
    given = _parse(answer)
    if all(isinstance(one, str) for one in given):
        return RIGHT if _equal(wanted, given) else UNVERIFIABLE
    return RIGHT if not _far_apart(wanted, given) and _equal(wanted, given) else WRONG


def _equal(wanted: list[Any], given: list[Any]) -> bool:
    """math-verify's verdict, for which an interval may be written as an inequality.

    math-verify itself accepts an interval for a gold inequality, and not the other way round.
    """
    equal: bool = math_verify.verify(
        wanted, given, allow_set_relation_comp=True, timeout_seconds=None
    )
    return equal


@lru_cache(maxsize=1024)
def _parse(text: str) -> list[Any]:
    """What math-verify makes of a text, and the text itself; [] where nothing."""
    # A sentence may end inside the box; with its period a number is none.
    boxed = rf"\boxed{{{text.removesuffix('.')}}}"
    parsed: list[Any] = math_verify.parse(boxed, extraction_config=_BOXED, parsing_timeout=None)
    return [_with_imaginary_unit(one) for one in parsed]


def _with_imaginary_unit(parsed: Any) -> Any:
    """The expression with the imaginary unit for the variable i, as which math-verify reads it."""
    named = [symbol for symbol in getattr(parsed, "free_symbols", ()) if symbol.name == "i"]
    try:
        return parsed.subs(dict.fromkeys(named, I)) if named else parsed
    except (TypeError, ValueError):
        # An interval or an inequality with i in it is left as it was read.
        return parsed


def _far_apart(wanted: list[Any], given: list[Any]) -> bool:
    """Whether both are expressions that differ at a point: then math-verify finds the same, slowly.

    Before it calls two expressions unequal it tries to simplify their difference to zero.
    """
    (gold, *texts), (answer, *other_texts) = wanted, given
    if set(texts) & set(other_texts):
        return False
    # A lone symbol may be a word, which is compared letter by letter.
    if not all(isinstance(one, Expr) and not one.is_Symbol for one in (gold, answer)):
        return False
    # A percentage, which also equals its number: 9% is 9.
    if gold.has(UnevaluatedExpr) or answer.has(UnevaluatedExpr):
        return False
    try:
        symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
        point = {symbol: Rational(7 + 3 * place, 10) for place, symbol in enumerate(symbols)}
        left, right = (complex(one.subs(point).evalf()) for one in (gold, answer))
    except (TypeError, ValueError, OverflowError):
        return False
    # Not so where one is infinite or undefined.
    return abs(left - right) > 1e-5 * max(1.0, abs(left)) and abs(left) + abs(right) < inf


def serve(cpu_s: float, memory_mb: int) -> None:
    """Answer checks from standard input until it ends."""
    # Nothing that a library prints may stand among the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # What is imported and built at the first use of a kind.
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
        # Its default action ends the process, in the middle of any computation.
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        word = check(gold, answer)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(f"{word}\n")


if __name__ == "__main__":
    serve(float(sys.argv[1]), int(sys.argv[2]))
