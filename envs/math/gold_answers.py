r"""Finds gold answers that cannot be verified, before episodes start.

math-verify takes about 10 ms for each gold answer, so only doubtful ones are checked: all but
words, expressions, equations, tuples and intervals of common commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from envs.episode import EnvFailure
from envs.math.verification.plain_numbers import plain_verdict
from envs.math.verification.verifier import MathVerifier, Outcome, UnverifiableGold, VerifierFailure
from envs.rewards.format import last_boxed

_ATOM = (
    r"(?:[A-Za-z\d{}()+\-*/^.! ]|\\[,!;]|\{,\}|[A-Za-z]_(?:\w|\{\w+\})|\\sqrt\[\d\]"
    r"|\\(?:[dt]?frac|binom|sqrt|pi|cdot|times|left|right|theta|alpha|beta|log|ln|sin|cos|tan)"
    r"(?![A-Za-z]))+"
)
_RELATION = r"(?:=|<|>|\\[lg]eq?(?![A-Za-z])|\\neq?(?![A-Za-z]))"
_UNIT = r"(?:(?<=\d)\s*\\%|\^\\circ|\^\{\\circ\}|\\text\{[A-Za-z ]+\}(?:\^\{?[23]\}?)?)"
_END = rf"(?:{_ATOM}|\s*-?\\infty)"
_REGION = rf"(?:\\left)?[\[(]{_END},{_END}(?:\\right)?[\])]"
_CERTAIN = re.compile(
    r"[A-Za-z][A-Za-z' -]*|\\text(?:bf)?\{[A-Za-z()][A-Za-z'() -]*\}|-?\\infty"
    rf"|(?:\\\$|\\pm|{_ATOM}{_RELATION})?{_ATOM}{_UNIT}?|\d+\s?:\s?\d+(?:\s?:\s?\d+)?"
    rf"|{_ATOM}(?:,{_ATOM})+|\\\{{{_ATOM}(?:,{_ATOM})*\\\}}|{_REGION}(?:\s*\\cup\s*{_REGION})*"
)
"""Matches gold answers that math-verify reads, unless ``_BROKEN`` matches as well."""
_BROKEN = re.compile(
    r"[-+*/^_=<>.,]\s*$|^\s*[*/^=<>,!)}]|[-+*/^({,=]\s*[*/^)!},=]|\.\s*\.|[A-Za-z)}]\.\d"
    r"|frac\s*(?:\{[^{}]*\}|\S)\s*(?:\{\s*0*\s*\}|0)|/\s*0+(?![\d.])"
    r"|\\(?:frac|dfrac|tfrac|sqrt|log|ln|sin|cos|tan)\s*(?:$|[,)}=+*/])|\bor\b|\band\b"
)
_LONGEST = 200


def is_doubtful(gold: str) -> bool:
    """Whether math-verify may fail to read a gold answer."""
    if plain_verdict(gold, gold):
        return False
    return (
        _CERTAIN.fullmatch(gold) is None
        or _BROKEN.search(gold) is not None
        or gold.count("(") + gold.count("[") != gold.count(")") + gold.count("]")
        or not any(character.isalnum() for character in gold)
        or gold.count("^") > 3
        or len(gold) > _LONGEST
    )


def unverifiable(golds: Iterable[str]) -> frozenset[str]:
    """The gold answers that cannot be verified. Blocks while doubtful ones are checked.

    Raises:
        EnvFailure: math-verify's processes do not respond.
    """
    golds = set(golds)
    # A gold answer with unmatched braces has no box.
    boxless = frozenset(gold for gold in golds if last_boxed(rf"\boxed{{{gold}}}") != gold.strip())
    doubtful = sorted(gold for gold in golds - boxless if is_doubtful(gold))
    if not doubtful:
        return boxless
    verifier = MathVerifier()

    def is_bad(gold: str) -> bool:
        try:
            # A different answer also shows that math-verify itself can read the gold answer.
            verifier.check(gold, "1")
            return verifier.check(gold, gold) is not Outcome.RIGHT
        except UnverifiableGold:
            return True

    try:
        with ThreadPoolExecutor(4) as threads:
            bad = list(threads.map(is_bad, doubtful))
    except VerifierFailure as error:
        raise EnvFailure(f"gold answers cannot be checked: {error}", retryable=True) from error
    finally:
        verifier.close()
    return boxless.union(gold for gold, is_so in zip(doubtful, bad, strict=True) if is_so)
