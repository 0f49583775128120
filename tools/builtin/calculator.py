"""The ``calculator`` tool: exact arithmetic on rational numbers.

Expressions are parsed, never executed.
"""

from __future__ import annotations

import re
from fractions import Fraction

from tools.function import tool
from tools.tool import BadArguments, Tool, ToolResult

MAX_CHARS = 1000
"""Maximum number of characters in an expression."""
MAX_DEPTH = 50
"""Maximum nesting of parentheses, signs and exponents."""
MAX_BITS = 10_000
"""Maximum number of bits in a numerator or denominator (about 3000 digits)."""
NUM_DIGITS = 10
"""Number of decimals to show for a number that is not an integer."""

_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?|\.\d+)|(\*\*|[-+*/^()]))", re.ASCII)
_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-"})


def calculator_tool() -> Tool:
    """A tool that evaluates one expression."""

    @tool
    def calculator(expression: str) -> ToolResult:
        """Evaluate an arithmetic expression exactly.

        Args:
            expression: Numbers with + - * / ^ and parentheses, for example (1/2 + 0.25) * 3^2.
        """
        value = evaluate(expression)
        return ToolResult(show(value), data=str(value))

    return calculator


def show(value: Fraction) -> str:
    """A value as text: an integer unchanged, any other number as a fraction and as a decimal."""
    if value.denominator == 1:
        return str(value)
    scaled = round(abs(value) * 10**NUM_DIGITS)
    whole, decimals = divmod(scaled, 10**NUM_DIGITS)
    digits = f"{decimals:0{NUM_DIGITS}d}".rstrip("0")
    sign = "-" if value < 0 else ""
    exact = Fraction(scaled, 10**NUM_DIGITS) == abs(value)
    return f"{value} {'=' if exact else 'is about'} {sign}{whole}.{digits or '0'}"


def evaluate(expression: str) -> Fraction:
    """The value of an expression. ``^`` (or ``**``) binds tighter than a sign, so ``-2^2`` is -4.

    Raises:
        BadArguments: the text is not an arithmetic expression, divides by zero, or has a number
            that exceeds ``MAX_BITS``.
    """
    if len(expression) > MAX_CHARS:
        raise BadArguments(f"the expression has {len(expression)} characters, at most {MAX_CHARS}")
    return _Parser(_tokens(expression.translate(_SPELLINGS))).result()


def _tokens(expression: str) -> list[str]:
    tokens, at = [], 0
    end = len(expression.rstrip())
    while at < end:
        found = _TOKEN.match(expression, at)
        if found is None:
            rest = expression[at:].lstrip()
            raise BadArguments(
                f"cannot read {rest[:20]!r}: use numbers, + - * / ^ and parentheses only"
            )
        tokens.append(found[1] or found[2].replace("**", "^"))
        at = found.end()
    return tokens


class _Parser:
    """A recursive-descent parser of sums, products, signs, powers and atoms."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def result(self) -> Fraction:
        value = self._sum()
        if self._next():
            raise BadArguments(f"cannot read {self._next()!r} where an operator should stand")
        return value

    def _next(self) -> str:
        """The next token, or "" at the end."""
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str:
        """Take the next token if it is one of ``wanted``; otherwise take nothing and return ""."""
        token = self._next()
        if token not in wanted:
            return ""
        self._at += 1
        return token

    def _sum(self) -> Fraction:
        value = self._product()
        while operator := self._take("+", "-"):
            right = self._product()
            value = _bounded(value + right if operator == "+" else value - right)
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while operator := self._take("*", "/"):
            right = self._signed()
            if operator == "*":
                value = _bounded(value * right)
            elif right == 0:
                raise BadArguments("division by zero")
            else:
                value = _bounded(value / right)
        return value

    def _signed(self) -> Fraction:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadArguments(f"more than {MAX_DEPTH} levels inside one another")
        sign = self._take("+", "-")
        value = self._signed() if sign else self._power()
        self._depth -= 1
        return -value if sign == "-" else value

    def _power(self) -> Fraction:
        base = self._atom()
        return _power(base, self._signed()) if self._take("^") else base

    def _atom(self) -> Fraction:
        if self._take("("):
            value = self._sum()
            if not self._take(")"):
                raise BadArguments("a parenthesis is not closed")
            return value
        token = self._next()
        if not token or not (token[0].isdigit() or token[0] == "."):
            raise BadArguments(
                f"a number should stand {f'before {token!r}' if token else 'at the end'}"
            )
        self._at += 1
        return _bounded(Fraction(token))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise BadArguments(f"the exponent {exponent} is no integer")
    if base == 0 and exponent < 0:
        raise BadArguments("division by zero")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) not in (0, 1) and (bits - 1) * abs(exponent) > MAX_BITS:
        raise _too_large()
    # Of 0, 1 and -1 only the sign of the exponent and its parity matter.
    power = int(exponent) if abs(base) not in (0, 1) else int(exponent % 2) + 2 * (exponent != 0)
    return _bounded(base**power)


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise _too_large()
    return value


def _too_large() -> BadArguments:
    return BadArguments(f"a number grows beyond {MAX_BITS} bits")
