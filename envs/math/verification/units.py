r"""Units of answers: ``5\text{ m}`` equals ``500\text{ cm}``, and is neither 5 cm nor 5 kg.

math-verify omits units. A unit counts only if both answers name one of this table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from envs.math.verification.notation import BLANK

WRAPPER = r"\\(?:text(?:rm|bf|it|normal)?|math(?:rm|bf|it|sf|normal)|mbox|operatorname|rm)"
"""Matches a command around words."""
_WORDS = rf"{WRAPPER}\s*\{{((?:[^{{}}]|\{{[^{{}}]*\}})*)\}}"
UNWRAPPED = re.compile(_WORDS)

# Each entry: names, size, and base units with exponents. A radian is 180/π degrees: π is a
# pseudo-unit.
_METRIC = """
m=1 m; g=1/1000 kg; s=1 s; L,l=1/1000 m3; N=1 kg m s-2; J=1 kg m2 s-2; W=1 kg m2 s-3; A=1 A;
Pa=1 kg m-1 s-2; Hz=1 s-1; V=1 kg m2 s-3 A-1; mol=1 mol; eV=1 eV; meter,metre=1 m;
gram=1/1000 kg; second=1 s; liter,litre=1/1000 m3; newton=1 kg m s-2; joule=1 kg m2 s-2;
watt=1 kg m2 s-3; volt=1 kg m2 s-3 A-1; hertz=1 s-1; mole=1 mol
"""
_OTHERS = """
in,inch=127/5000 m; ft,foot,feet=381/1250 m; yd,yard=1143/1250 m; mi,mile=201168/125 m;
ha,hectare=10000 m2; acre=316160658/78125 m2; cc=1/1000000 m3; kilo=1 kg; sec=1 s;
gal,gallon=473176473/125000000000 m3; quart=473176473/500000000000 m3;
lb,pound=45359237/100000000 kg; oz,ounce=45359237/1600000000 kg; t,tonne=1000 kg;
min,minute=60 s; h,hr,hour=3600 s; d,day=86400 s; week=604800 s; month=1 month; yr,year=12 month;
mph=1397/3125 m s-1; kph,kmph,kmh=5/18 m s-1; $,usd,dollar=1 dollar; cent=1/100 dollar;
€,eur,euro=1 euro; rs,rupee=1 rupee; yen=1 yen; deg,degree=1 degree; rad,radian=180 degree π-1;
celsius=1 celsius; F,fahrenheit=1 fahrenheit; C=1 A s; K,kelvin=1 K
"""
_PREFIXES = {"k": 3, "M": 6, "G": 9, "c": -2, "d": -1, "m": -3, "u": -6, "µ": -6, "μ": -6, "n": -9}
_LONG_PREFIXES = {"kilo": 3, "mega": 6, "centi": -2, "deci": -1, "milli": -3, "micro": -6}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_FACTOR = re.compile(r"([A-Za-zµμ$€]+)(?:\^\{?(-?\d)\}?|(\d))?")


class Unit(NamedTuple):
    """A product of powers of units."""

    size: Fraction
    """The size in base units."""
    base: frozenset[tuple[str, int]]
    """The base units and their exponents."""


class _Quantity(NamedTuple):
    """An answer that ends in a unit."""

    number: str
    """The answer without the unit."""
    unit: Unit
    apart: bool
    """Whether the unit is in words or has several letters, so that it is hardly a variable."""


def in_one_unit(gold: str, answer: str) -> tuple[str, str] | None:
    """The answers without their units, the second one converted, or None if they do not convert."""
    wanted, given = _quantity(gold), _quantity(answer)
    if wanted is None or given is None:
        return _without(wanted, gold), _without(given, answer)
    size = given.unit.size / wanted.unit.size
    turns = Counter(dict(given.unit.base))
    turns.subtract(dict(wanted.unit.base))
    turned = turns.pop("π", 0)
    if any(turns.values()):
        return None
    if size == 1 and not turned:
        return wanted.number, given.number
    name, equals, number = given.number.rpartition("=")
    scale = rf"\frac{{{size.numerator}}}{{{size.denominator}}}"
    if turned:
        scale += rf" \cdot \pi^{{{turned}}}"
    return wanted.number, rf"{name}{equals}({number}) \cdot {scale}"


def _without(quantity: _Quantity | None, text: str) -> str:
    return quantity.number if quantity is not None and quantity.apart else text


_MONEY = re.compile(r"(?P<sign>-?)\s*(?P<unit>\\?\$|€)\s*(?P<number>[\d.,]+)")
_ENDS_IN_UNIT = re.compile(
    r"(?P<number>[^;]*?(?:[\d})]|\\pi))(?P<gap>\s*)(?P<unit>[A-Za-zµμ$€][A-Za-zµμ$€\d\s/^{}.*-]*)"
)
_OVER = re.compile(rf"\\[dt]?frac\s*\{{\s*{_WORDS}\s*\}}\s*\{{\s*{_WORDS}\s*\}}")
_COMPOUND = re.compile(r"(?:\d+(?:\.\d+)?\s*[A-Za-z]+(?:\s*,|\s+and)?\s*){2,}")
_NUMERIC = re.compile(
    r"\\(?:[dtc]?frac|sqrt|pi|cdot|times|left|right)(?![A-Za-z])|\d,(?=\d{3}(?!\d))"
)


@lru_cache(maxsize=4096)
def _quantity(text: str) -> _Quantity | None:
    """The number and the unit of an answer, or None if it is not one number with a known unit."""
    if money := _MONEY.fullmatch(text.strip(" .")):
        return _Quantity(money["sign"] + money["number"], _UNITS[money["unit"][-1]], True)
    plain = re.sub(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))", r"\\text{degree}", text)
    plain = re.sub(rf"\\(?:cdot|times)(?![A-Za-z])\s*(?={WRAPPER})", " ", plain)
    plain = _OVER.sub(r"\\text{\1/\2}", plain)
    unwrapped = UNWRAPPED.sub(r" \1 ", re.sub(BLANK, " ", plain)).strip(" .")
    unwrapped = re.sub(r"\s+\^\s*", "^", unwrapped)
    if _COMPOUND.fullmatch(unwrapped):
        return _sum(re.findall(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", unwrapped.replace(" and", "")))
    match = _ENDS_IN_UNIT.fullmatch(unwrapped)
    unit = unit_of(match["unit"]) if match else None
    if match is None or unit is None:
        return None
    # Letters or commas in the number: an expression of algebra, or several numbers.
    if re.search(r"[A-Za-z,]", _NUMERIC.sub("", match["number"].rpartition("=")[2])):
        return None
    apart = bool(match["gap"]) and (len(match["unit"]) > 1 or UNWRAPPED.search(plain) is not None)
    return _Quantity(match["number"], unit, apart)


def _sum(terms: list[tuple[str, str]]) -> _Quantity | None:
    """The sum of numbers with units, such as 5 feet 6 inches, in the first unit."""
    units = [(Fraction(number), unit_of(name)) for number, name in terms]
    first = units[0][1]
    sizes = [
        value * unit.size for value, unit in units if unit and first and unit.base == first.base
    ]
    if first is None or len(sizes) < len(units):
        return None
    total = sum(sizes, Fraction(0)) / first.size
    return _Quantity(rf"\frac{{{total.numerator}}}{{{total.denominator}}}", first, True)


@lru_cache(maxsize=1024)
def unit_of(text: str) -> Unit | None:
    """The unit that a text names, such as ``km/h`` or ``square feet``, or None."""
    size, base, sign, raised = Fraction(1), Counter[str](), 1, 1
    text = re.sub(r"\bper\b", "/", re.sub(r"[.*]", " ", text))
    for word in re.findall(r"/|[^\s/]+", text):
        if word == "/":
            sign = -1
        elif word.lower() in _POWERS:
            raised = _POWERS[word.lower()]
        elif (factor := _FACTOR.fullmatch(word)) and (unit := _simple(factor[1])):
            power = sign * raised * int(factor[2] or factor[3] or 1)
            size *= unit.size**power
            base.update({name: power * exponent for name, exponent in unit.base})
            raised = 1
        else:
            return None
    # 25 degrees Celsius.
    if base["degree"] == 1 and (base["celsius"] or base["fahrenheit"] or base["A"]):
        base = Counter({"fahrenheit" if base["fahrenheit"] else "celsius": 1})
    kept = frozenset((name, exponent) for name, exponent in base.items() if exponent)
    return Unit(size, kept) if kept else None


def _entries(table: str) -> Iterator[tuple[str, Unit]]:
    for names, _, value in (entry.strip().partition("=") for entry in table.split(";")):
        size, *bases = value.split()
        powers = [re.fullmatch(r"(\D+?)(-?\d+)?", base) for base in bases]
        base = frozenset((power[1], int(power[2] or 1)) for power in powers if power)
        yield from ((name, Unit(Fraction(size), base)) for name in names.split(","))


def _prefixed() -> Iterator[tuple[str, Unit]]:
    for name, (size, base) in _entries(_METRIC):
        prefixes = _LONG_PREFIXES if len(name) > 3 else _PREFIXES
        for prefix, exponent in prefixes.items():
            yield prefix + name, Unit(size * Fraction(10) ** exponent, base)


_UNITS = {**dict(_prefixed()), **dict(_entries(_METRIC)), **dict(_entries(_OTHERS))}


def _simple(name: str) -> Unit | None:
    """The unit of a name. The case counts in names of one or two letters; others have a plural."""
    names = [name]
    if len(name) > 2:
        word = name.lower()
        names += [word, name.removesuffix("s"), word.removesuffix("s"), word.removesuffix("es")]
    return next((_UNITS[known] for known in names if known in _UNITS), None)
