r"""Finds gold answers that cannot be verified, before episodes start.

math-verify takes about 10 ms for each gold answer, so only doubtful ones are checked: answers with
unusual commands (``0.\overline{3}``), unmatched braces and the like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from envs.episode import EnvFailure
from envs.math.verification.plain_numbers import plain_verdict
from envs.math.verification.verifier import MathVerifier, UnverifiableGold, VerifierFailure

_COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL)
_COMMON = frozenset(
    [
        *("frac", "dfrac", "tfrac", "sqrt", "binom", "log", "ln", "sin", "cos", "tan", "pi"),
        *("text", "textbf", "mathrm", "mathbf", "left", "right", "begin", "end", "circ"),
        *("cup", "cap", "in", "emptyset", "infty", "pm", "cdot", "times", "theta", "alpha", "beta"),
        *("le", "ge", "leq", "geq", "ne", "neq"),
        *("%", "$", "!", ",", ";", ":", "{", "}", "\\", " "),
    ]
)
"""LaTeX commands that math-verify always reads if they are used correctly."""
_OPEN_ENDED = re.compile(r"[-+*/^_=<>.,]\s*$")
_OVER_NOTHING = re.compile(r"frac\s*(\{[^{}]*\}|\S)\s*(\{\s*0*\s*\}|0)|/\s*0+(?![\d.])")
_LONGEST = 200


def is_doubtful(gold: str) -> bool:
    """Whether math-verify may fail to read a gold answer."""
    if plain_verdict(gold, gold):
        return False
    return (
        any(command not in _COMMON for command in _COMMAND.findall(gold))
        or gold.count("{") != gold.count("}")
        or not any(character.isalnum() for character in gold)
        or _OPEN_ENDED.search(gold) is not None
        or _OVER_NOTHING.search(gold) is not None
        or gold.count("^") > 3
        or len(gold) > _LONGEST
    )


def unverifiable(golds: Iterable[str]) -> frozenset[str]:
    """The gold answers that cannot be verified. Blocks while doubtful ones are checked.

    Raises:
        EnvFailure: math-verify's processes do not respond.
    """
    doubtful = sorted({gold for gold in golds if is_doubtful(gold)})
    if not doubtful:
        return frozenset()
    verifier = MathVerifier()

    def is_bad(gold: str) -> bool:
        try:
            verifier.check(gold, gold)
        except UnverifiableGold:
            return True
        return False

    try:
        with ThreadPoolExecutor(4) as threads:
            bad = list(threads.map(is_bad, doubtful))
    except VerifierFailure as error:
        raise EnvFailure(f"gold answers cannot be checked: {error}", retryable=True) from error
    finally:
        verifier.close()
    return frozenset(gold for gold, is_so in zip(doubtful, bad, strict=True) if is_so)
