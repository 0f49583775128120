r"""Comparison of plain numbers without a computer algebra system.

Most answers are integers, decimals or fractions. If the verdict on such an answer is certain, this
module returns the same verdict as math-verify, about a thousand times faster. Otherwise it returns
None.
"""

from __future__ import annotations

import re
from fractions import Fraction

_INTEGER = r"(?:0|[1-9]\d{0,14})"
_PLAIN = re.compile(
    rf"(?P<sign>-?)(?:(?P<whole>{_INTEGER})(?:\.(?P<decimals>\d{{1,6}}))?"
    rf"|(?P<top>{_INTEGER})/(?P<bottom>[1-9]\d{{0,14}})"
    rf"|\\d?frac\{{(?P<over>{_INTEGER})\}}\{{(?P<under>[1-9]\d{{0,14}})\}})",
    re.ASCII,
)
_CLOSE = Fraction(1, 10**5)
"""Largest difference of equal decimals; math-verify compares them after rounding to six places."""
_MOST_DIGITS = 12
"""Maximum number of digits of a decimal. The verdict on longer ones depends on binary floating
point."""


def plain_verdict(gold: str, answer: str) -> bool | None:
    """Whether ``answer`` is right, or None if a comparison of two numbers cannot decide it."""
    wanted, given = _PLAIN.fullmatch(gold), _PLAIN.fullmatch(answer)
    if wanted is None or given is None:
        return None
    left, right = _value(wanted), _value(given)
    if left is None or right is None:
        return None
    if left == right:
        return True
    exact = wanted["decimals"] is None and given["decimals"] is None
    return False if exact or abs(left - right) > _CLOSE else None


def _value(match: re.Match[str]) -> Fraction | None:
    """The number, or None if it has too many digits."""
    sign = -1 if match["sign"] else 1
    if match["decimals"] is not None:
        digits = match["whole"] + match["decimals"]
        if len(digits) > _MOST_DIGITS:
            return None
        return Fraction(sign * int(digits), 10 ** len(match["decimals"]))
    top = match["whole"] or match["top"] or match["over"]
    return Fraction(sign * int(top), int(match["bottom"] or match["under"] or 1))
