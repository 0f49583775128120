r"""Rewrites notations of numbers and sets that math-verify misreads.

======================= ======================= ===================================
as written              as rewritten            math-verify's reading as written
======================= ======================= ===================================
``1\,000``              ``1000``                1 times 0
``1.5e3``               ``(1.5\times 10^{3})``  1.5 times e times 3
``1.5E-10``             ``(1.5\times 10^{-10})`` equal to every other tiny number
``12_{9}``              a symbol of its own     12
``\varnothing``         ``\emptyset``           a variable
======================= ======================= ===================================

A number with a base equals only the same digits with the same base. The base ten may be left out.
"""

from __future__ import annotations

import re

_GROUPED = re.compile(r"(?<![\d.])\d{1,3}(?:\\[,;: ]\d{3})+(?!\d)", re.ASCII)
_SPACE = re.compile(r"\\[,;: ]")
# A sign after a small e may also mean a sum with Euler's number: 2e+3. Decimals before the e, or a
# zero after the sign, identify an exponent.
_SCIENTIFIC = re.compile(
    r"(?<![\w\\.])(?P<mantissa>\d+\.\d+(?=[eE])|\d+(?=e\d|E|e[+-]0))[eE]"
    r"\+?(?P<exponent>-?\d{1,3})(?![\w.\\^{])",
    re.ASCII,
)
# After a ^ or a _, digits are one bound and the rest is the other: \int^1_0.
_BASED = re.compile(
    r"(?<![\d^_.])(?P<digits>\d+)\s*_\s*(?:\{\s*(?P<base>\d+)\s*\}|(?P<short>\d+))", re.ASCII
)


def standard(text: str) -> str:
    """Equivalent LaTeX in notation that math-verify reads; most texts stay unchanged."""
    if r"\varnothing" in text:
        text = re.sub(r"\\varnothing(?![a-zA-Z])", r"\\emptyset ", text)
    text = _GROUPED.sub(lambda match: _SPACE.sub("", match[0]), text)
    text = _SCIENTIFIC.sub(r"(\g<mantissa>\\times 10^{\g<exponent>})", text)
    return _BASED.sub(_symbol, text)


def _symbol(match: re.Match[str]) -> str:
    """The digits alone if the base is ten; otherwise a symbol named after digits and base."""
    base = int(match["base"] or match["short"])
    return match["digits"] if base == 10 else rf"N_{{{int(match['digits'])}b{base}}}"
