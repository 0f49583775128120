"""Random pairs of answers in many notations, with the verdicts of exact arithmetic."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction as F
from math import factorial

import pytest

from envs.math.verification.verifier import MathVerifier, Outcome

Pair = tuple[str, str, bool]
BLANKS = (" ", r"\,", r"\ ", "~", r"\;", "\u00a0", "\u202f", "\u2009", "{,}", ",")
VULGAR = {F(1, 2): "½", F(1, 4): "¼", F(3, 4): "¾", F(1, 3): "⅓", F(2, 3): "⅔"}


def grouped(number: int, blank: str) -> str:
    return f"{number:,}".replace(",", blank)


def scientific(rng, digits: int, power: int) -> str:
    """digits * 10**power"""
    text, power = str(digits), power + len(str(digits)) - 1
    mantissa = text if len(text) == 1 else f"{text[0]}.{text[1:]}"
    return rng.choice(
        [
            rf"{mantissa} \times 10^{{{power}}}",
            rf"{mantissa}\cdot 10^{{{power}}}",
            f"{mantissa}e{power:+03d}" if "." in mantissa else f"{mantissa}E{power}",
            f"{mantissa} × 10^{{{power}}}",
        ]
    )


def minus(rng, text: str) -> str:
    return rng.choice("-\u2212–" if rng.random() < 0.5 else "-") + text


def fraction(rng, value: F) -> str:
    k = rng.randint(1, 4)
    top, bottom = value.numerator * k, value.denominator * k
    return rng.choice(
        [rf"\frac{{{top}}}{{{bottom}}}", rf"\dfrac{{{top}}}{{{bottom}}}", f"{top}/{bottom}"]
    )


def mixed(rng, value: F) -> str:
    whole, rest = divmod(value.numerator, value.denominator)
    part = F(rest, value.denominator)
    a, b = part.numerator, part.denominator
    forms = [
        f"{whole} {a}/{b}",
        rf"{whole}\frac{{{a}}}{{{b}}}",
        rf"{whole}\tfrac{{{a}}}{{{b}}}",
        rf"{whole} \dfrac{{{a}}}{{{b}}}",
        rf"{whole}\,\frac{{{a}}}{{{b}}}",
        rf"{whole}\ {a}/{b}",
        rf"{whole}~\frac{{{a}}}{{{b}}}",
        rf"{whole}\,{a}/{b}",
    ]
    if a < 10 and b < 10:
        forms.append(rf"{whole}\frac{a}{b}")
    if part in VULGAR:
        forms.append(f"{whole}{VULGAR[part]}")
    return rng.choice(forms)


def positive(rng, value: F) -> str:
    if value.denominator == 1:
        n = value.numerator
        forms = [str(n), f"{n}.0", fraction(rng, value), rf"\sqrt{{{n * n}}}"]
        if n >= 1000:
            forms += [grouped(n, blank) for blank in BLANKS]
        if n % 1000 == 0:
            forms.append(scientific(rng, n // 1000, 3))
        return rng.choice(forms)
    forms = [fraction(rng, value)]
    if value > 1:
        forms += [mixed(rng, value) for _ in range(3)]
    if value in VULGAR:
        forms.append(VULGAR[value])
    if 10**6 % value.denominator == 0:
        forms.append(str(float(value)))
    return rng.choice(forms)


def number(rng, value: F) -> str:
    return minus(rng, positive(rng, -value)) if value < 0 else positive(rng, value)


def some(rng) -> F:
    kind = rng.randrange(3)
    if kind == 0:
        return F(rng.choice((1, -1)) * rng.randint(1, 99))
    if kind == 1:
        return F(rng.choice((1, 1, -1)) * rng.randint(1000, 999_999_999))
    return F(rng.choice((1, 1, -1)) * rng.randint(1, 60), rng.choice((2, 3, 4, 5, 7, 8)))


def other(rng, value: F) -> F:
    whole, rest = divmod(abs(value.numerator), value.denominator)
    wrong = [value + 1, -value, 2 * value, value + F(1, 2)]
    if value.denominator > 1 and whole:  # read as a product or as digits
        wrong += [F(whole * rest, value.denominator), F(10 * whole + rest, value.denominator)]
    if abs(value) >= 1000:
        wrong += [F(int(abs(value)) // 1000 + int(abs(value)) % 1000)]
    return rng.choice([one for one in wrong if one != value])


def numbers(rng) -> Pair:
    value, right = some(rng), rng.random() < 0.5
    return number(rng, value), number(rng, value if right else other(rng, value)), right


def tiny(rng) -> Pair:
    base, power = rng.choice((2, 3, 5)), rng.randint(55, 130)
    n, k, d = rng.randint(18, 30), rng.randint(17, 40), rng.randint(2, 9)

    def written(factor: int, kind: int) -> str:
        if kind == 0:
            top = factor
            return rng.choice(
                [rf"\frac{{{top}}}{{{base}^{{{power}}}}}", rf"{top} \cdot {base}^{{-{power}}}"]
            )
        if kind == 1:
            return rng.choice(
                [rf"\frac{{{factor}}}{{{n}!}}", rf"\frac{{{factor}}}{{{factorial(n)}}}"]
            )
        if kind == 2:
            return scientific(rng, d * factor, -k)
        return rng.choice([f"0.{d * factor:09d}", scientific(rng, d * factor, -9)])

    kind, right = rng.randrange(4), rng.random() < 0.5
    factor = 1 if right else rng.choice((2, 3, 5))
    gold, answer = written(1, kind), written(factor, kind)
    wrap = rng.choice(["{}", "({}, 1)", r"\{{{}, 3\}}", "[{}, 2]", "x = {}", r"({}, 4, 5)"])
    return wrap.format(gold), wrap.format(answer), right


def regions(rng) -> Pair:
    a = rng.randint(-9, 9)
    b = a + rng.randint(1, 9)
    strict, right = rng.random() < 0.5, rng.random() < 0.5

    def union(a: int, b: int, strict: bool) -> str:
        left, close = ("(", ")") if strict else ("[", "]")
        return rf"(-\infty, {a}{close} \cup {left}{b}, \infty)"

    def words(a: int, b: int, strict: bool) -> str:
        below, above = ("<", ">") if strict else rng.choice([(r"\le ", r"\ge "), ("≤", "≥")])
        link = rng.choice([" or ", r" \text{ or } ", r" \text{or} ", r"\ \text{or}\ "])
        one, two = f"x{below}{a}", f"x{above}{b}"
        return link.join(rng.sample([one, two], 2))

    gold, answer = rng.choice([(union, words), (words, union), (words, words)])
    wrong = rng.choice([(a - 1, b, strict), (a, b + 1, strict), (a, b, not strict)])
    return gold(a, b, strict), answer(*((a, b, strict) if right else wrong)), right


def ratios(rng) -> Pair:
    terms = rng.sample(range(1, 9), rng.choice((2, 3, 3, 4)))
    right, k = rng.random() < 0.5, rng.randint(1, 5)
    given = [k * term for term in terms]
    if not right:
        given[rng.randrange(1, len(given))] += 1 if len(terms) > 2 else k
    colon = rng.choice([":", " : ", r"\colon "]) if right else ":"
    return ":".join(map(str, terms)), colon.join(map(str, given)), right


def times(rng) -> Pair:
    hour, minute, right = rng.randint(1, 5), rng.choice((0, 5, 10, 15, 20, 25)), rng.random() < 0.5
    given = (hour, minute) if right else rng.choice([(2 * hour, 2 * minute), (hour + 1, minute)])
    gold, answer = f"{hour}:{minute:02d}", "{}:{:02d}".format(*given)
    late = rng.choice(["", r"\text{ p.m.}", " PM"])
    if rng.random() < 0.3 and late:
        return gold + late, answer + r"\text{ PM}", right
    return gold, answer, right


UNITS = {  # name -> (dimension, size)
    "m": ("length", F(1)),
    "cm": ("length", F(1, 100)),
    "km": ("length", F(1000)),
    "mm": ("length", F(1, 1000)),
    "kg": ("mass", F(1)),
    "g": ("mass", F(1, 1000)),
    "s": ("time", F(1)),
    "min": ("time", F(60)),
    "h": ("time", F(3600)),
}


def units(rng) -> Pair:
    def written(value: F, unit: str) -> str:
        form = rng.choice(["{} {}", r"{}\text{{ {}}}", r"{}\,\mathrm{{{}}}", r"{}~\text{{{}}}"])
        text = (
            str(value)
            if value.denominator == 1
            else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
        )
        return form.format(text, unit)

    value, unit = F(rng.randint(1, 90)), rng.choice(list(UNITS))
    dimension, size = UNITS[unit]
    same = [name for name, (kind, _) in UNITS.items() if kind == dimension]
    if rng.random() < 0.5:
        target = rng.choice(same)
        return written(value, unit), written(value * size / UNITS[target][1], target), True
    target = rng.choice([name for name in UNITS if name != unit])
    return written(value, unit), written(value, target), False


def letters(rng) -> Pair:
    e, i = (
        rng.choice(
            [
                f"\\mathrm{{{c}}}",
                f"\\operatorname{{{c}}}",
                f"\\text{{{c}}}",
                f"{{\\rm {c}}}",
                f"\\mathrm {c}",
                f"\\textrm{{{c}}}",
            ]
        )
        for c in "ei"
    )
    a, b, k = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 5)
    upright, plain, wrong = rng.choice(
        [
            (rf"{e}^{{{k}}}", f"e^{k}", f"e^{k + 1}"),
            (rf"{a}{e}", f"{a}e", f"{a}"),
            (rf"{a} + {b}{i}", f"{a}+{b}i", f"{a}-{b}i"),
            (rf"{b}{i}", f"{b}i", f"{b}"),
            (rf"\frac{{{a}}}{{{e}}}", rf"\frac{{{a}}}{{e}}", f"{a}"),
            (rf"\ln {e}^{{{k}}}", f"{k}", f"{k + 1}"),
            (rf"{a}{e}^{{{k}x}}", f"{a}e^{{{k}x}}", f"{a}e^{{{k + 1}x}}"),
            (rf"{i}^2", "-1", "1"),
        ]
    )
    right = rng.random() < 0.5
    pair = (upright, plain if right else wrong)
    return (*rng.sample(pair, 2), right)


def tuples(rng) -> Pair:
    values = [some(rng) for _ in range(rng.choice((2, 3)))]
    right = rng.random() < 0.5
    given = list(values)
    if not right:
        at = rng.randrange(len(given))
        given[at] = other(rng, given[at])
    size = len(values)
    angles = [r"\langle {}\rangle", r"\left\langle {} \right\rangle"]
    gold = rng.choice(angles) if size == 3 else rng.choice(["({})", *angles])
    answer = rng.choice(["({})", *angles, r"\left({}\right)"])
    plain = [
        [rng.choice([fraction(rng, v) if v > 0 else "-" + fraction(rng, -v)]) for v in vs]
        for vs in (values, given)
    ]
    return gold.format(", ".join(plain[0])), answer.format(", ".join(plain[1])), right


def roots(rng) -> Pair:
    a, k = rng.choice((2, 3, 5, 6, 7)), rng.randint(2, 6)
    right = rng.random() < 0.5
    gold = rng.choice([rf"{k}\sqrt{{{a}}}", rf"\sqrt{{{k * k * a}}}", rf"{k}√{a}", f"√{k * k * a}"])
    b = k if right else k + 1
    answer = rng.choice(
        [rf"{b}\sqrt{{{a}}}", rf"\sqrt{{{b * b * a}}}", rf"{b}√{a}", rf"{b}√{{{a}}}"]
    )
    return gold, answer, right


KINDS: tuple[Callable[[random.Random], Pair], ...] = (
    numbers,
    tiny,
    regions,
    ratios,
    times,
    units,
    letters,
    tuples,
    roots,
)


@pytest.fixture(scope="module")
def verifier():
    made = MathVerifier()
    yield made
    made.close()


@pytest.mark.parametrize("kind", KINDS)
def test_verdicts_are_those_of_exact_arithmetic(verifier, kind):
    rng = random.Random(kind.__name__)
    pairs = [kind(rng) for _ in range(10)]
    verdicts = [verifier.check(gold, answer) is Outcome.RIGHT for gold, answer, _ in pairs]
    assert [pair for pair, right in zip(pairs, verdicts, strict=True) if pair[2] != right] == []
