r"""A process that compares answers by math-verify: JSON lines in, one word a line out.

It is started by ``envs.math.verifier`` as a script. Each check has its own budget of processor
time, which starts with it; the kernel kills a process that overruns, whatever it is doing.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

import math_verify

RIGHT, WRONG, UNVERIFIABLE, BAD_GOLD = "right", "wrong", "unverifiable", "bad-gold"
READY = "ready"

# What is parsed is the inside of one box: nothing is looked for elsewhere.
_BOXED = (math_verify.LatexExtractionConfig(boxed_match_priority=0),)


def check(gold: str, answer: str) -> str:
    r"""One of the four words; both texts are LaTeX without its ``\boxed``.

    A gold that cannot be read, or does not equal itself, is bad. An answer is unverifiable where
    it cannot be read as mathematics, and is not the gold word for word.
    """
    if not _stands(gold):
        return BAD_GOLD
    if answer == gold:
        return RIGHT
    parsed = _parse(answer)
    # The time limit is the process's own: the library's works in the main thread only.
    if math_verify.verify(_parse_gold(gold), parsed, timeout_seconds=None):
        return RIGHT
    return WRONG if any(not isinstance(one, str) for one in parsed) else UNVERIFIABLE


def _parse(text: str) -> list[Any]:
    """What math-verify makes of a text, and the text itself; [] where nothing."""
    # A sentence may end inside the box; with its period a number is none.
    boxed = rf"\boxed{{{text.removesuffix('.')}}}"
    parsed: list[Any] = math_verify.parse(boxed, extraction_config=_BOXED, parsing_timeout=None)
    return parsed


# Members of a group share their gold.
_parse_gold = lru_cache(maxsize=1024)(_parse)


@lru_cache(maxsize=1024)
def _stands(gold: str) -> bool:
    read = [one for one in _parse_gold(gold) if not isinstance(one, str)]
    # One that cannot be compared with a number in time can be compared with little else.
    math_verify.verify(read, _parse_gold("1"), timeout_seconds=None)
    return bool(read) and bool(math_verify.verify(read, read, timeout_seconds=None))


def serve(cpu_s: float, memory_mb: int) -> None:
    """Answer checks from standard input until it ends."""
    # Nothing that a library prints may stand among the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    check(r"\frac{1}{2}", "0.25")
    check("x^2 - 1", "(x - 1)(x + 1)")
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
