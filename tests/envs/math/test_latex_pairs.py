"""Pairs of answers, judged by mathematics and not by the library: equal, and not equal."""

from __future__ import annotations

import random

import math_verify
import pytest

from envs.math.verification import worker
from envs.math.verification.verifier import MathVerifier, Outcome

EQUAL = [
    # Numbers written in several ways.
    (r"\frac{1}{2}", "0.5"),
    (r"\frac{1}{2}", r"\frac12"),
    (r"\frac{3}{4}", r"\dfrac{3}{4}"),
    (r"\frac{3}{4}", r"\tfrac{6}{8}"),
    (r"\frac{3}{4}", "3/4"),
    (r"-\frac{3}{4}", r"\frac{-3}{4}"),
    (r"-\frac{3}{4}", r"\frac{3}{-4}"),
    ("7", "7.0"),
    ("7", "007"),
    ("1234", "1,234"),
    ("1000000", "10^6"),
    ("0.25", r"\frac{1}{4}"),
    ("2.5", r"\frac{5}{2}"),
    ("125", "5^3"),
    (r"\frac{22}{7}", "22/7"),
    ("0.000001", "10^{-6}"),
    ("1.5", r"\frac{3}{2}"),
    # Roots, powers, logarithms.
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    (r"2\sqrt{3}", r"\sqrt{12}"),
    (r"\sqrt{8}", r"2\sqrt2"),
    (r"\sqrt[3]{27}", "3"),
    ("x^{1/2}", r"\sqrt{x}"),
    (r"\frac{1}{\sqrt{3}}", r"\frac{\sqrt{3}}{3}"),
    (r"\frac{1}{1+\sqrt{2}}", r"\sqrt{2}-1"),
    (r"(\sqrt{2}+1)^2", r"3+2\sqrt{2}"),
    (r"\ln 8", r"3\ln 2"),
    (r"\log_{2} 8", "3"),
    ("e^{0}", "1"),
    (r"\ln e", "1"),
    ("2^{10}", "1024"),
    ("16^{3/4}", "8"),
    # Angles and constants.
    (r"\frac{\pi}{2}", r"0.5\pi"),
    (r"\frac{2\pi}{4}", r"\frac{\pi}{2}"),
    (r"\pi/3", r"\frac{\pi}{3}"),
    (r"\sin\frac{\pi}{6}", r"\frac{1}{2}"),
    (r"\cos\pi", "-1"),
    (r"\tan\frac{\pi}{4}", "1"),
    # Algebra.
    ("x^2-1", "(x-1)(x+1)"),
    ("(x+1)^2", "x^2+2x+1"),
    ("x(x+3)", "3x+x^2"),
    (r"\frac{x^2-1}{x-1}", "x+1"),
    ("a+b", "b+a"),
    ("2(a+b)", "2a+2b"),
    (r"\frac{x}{2}", "0.5x"),
    ("x^3-8", "(x-2)(x^2+2x+4)"),
    (r"\frac{1}{x}+\frac{1}{y}", r"\frac{x+y}{xy}"),
    (r"\sin^2 x+\cos^2 x", "1"),
    (r"2\sin x\cos x", r"\sin 2x"),
    ("e^{x+y}", "e^x e^y"),
    # Equations and inequalities.
    ("5", "x=5"),
    ("y=2x+3", "2x+3"),
    ("x=5", "5"),
    ("y=2x+3", "y=3+2x"),
    ("x>3", "3<x"),
    (r"x\ge 3", r"3\le x"),
    # Sets, tuples and intervals.
    (r"\{1,2,3\}", r"\{3,2,1\}"),
    ("1,2", "2,1"),
    ("(1,2)", r"\left(1,2\right)"),
    ("(1,2)", "( 1 , 2 )"),
    (r"(\frac{1}{2},3)", "(0.5,3)"),
    ("[0,1]", r"\left[0,1\right]"),
    (r"(-\infty,3)", r"(-\infty, 3)"),
    (r"(-\infty,1)\cup(2,\infty)", r"(2,\infty)\cup(-\infty,1)"),
    # Complex numbers and matrices.
    ("1+2i", "2i+1"),
    ("(1+i)(2+i)", "2+3i+i^2"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"),
    (r"\begin{pmatrix}1\\0.5\end{pmatrix}", r"\begin{pmatrix}1\\\frac{1}{2}\end{pmatrix}"),
    # Units, money, percent, words.
    ("5", r"5\text{ cm}"),
    ("18", r"\$18"),
    ("25", r"25\%"),
    (r"25\%", "0.25"),
    (r"90^\circ", "90"),
    ("5", "5."),
    (r"\text{Evelyn}", r"\text{Evelyn}"),
    (r"\text{(C)}", r"\text{(C)}"),
]
# Equal, and refused by math-verify itself.
NOTATION_EQUAL = [
    # The imaginary unit, which math-verify takes for a variable.
    ("i^2", "-1"),
    ("(1+i)^2", "2i"),
    ("i", r"\sqrt{-1}"),
    (r"\sqrt{-1}", "i"),
    ("2i", r"\sqrt{-4}"),
    (r"-1+i\sqrt{3}", r"\sqrt{-3}-1"),
    (r"\frac{1}{i}", "-i"),
    (r"\{i,-i\}", r"\{\sqrt{-1},-\sqrt{-1}\}"),
    # An interval written as an inequality.
    ("[2,5)", r"2 \le x < 5"),
    (r"2 \le x < 5", "[2,5)"),
    ("[2,5)", r"5 > x \ge 2"),
    ("(2,5)", "2<x<5"),
    (r"[2,\infty)", r"x\ge 2"),
    (r"(-\infty,3)", "x<3"),
    # Scientific notation.
    ("1500", "1.5e3"),
    ("1.5e3", "1500"),
    ("0.0015", "1.5e-3"),
    ("-1500", "-1.5e3"),
    ("1000", "1e3"),
    ("0.00001", "1e-05"),
    (r"6.02\times 10^{23}", "6.02E+23"),
    (r"\frac{1}{1500}", "1/1.5e3"),
    # Digits in groups.
    ("1000", r"1\,000"),
    (r"1\,000", "1000"),
    ("12345678", r"12\,345\,678"),
    ("1000", r"1\ 000"),
    # The empty set.
    (r"\emptyset", r"\varnothing"),
    (r"\varnothing", r"\emptyset"),
    (r"\varnothing", r"\{\}"),
    # Bases.
    ("12_{9}", "12_9"),
    ("1011_2", "x=1011_{2}"),
    ("4_6, 5_6", r"5_{6}, 4_{6}"),
    ("12", "12_{10}"),
]
# Not equal, and accepted by math-verify itself, or close to a pair above.
NOTATION_UNEQUAL = [
    ("12_{9}", "12_{8}"),
    ("12_9", "12"),
    ("4_6", "4"),
    ("4", "4_6"),
    ("12_9", "11"),
    ("12_9", "12_{10}"),
    ("A1_{16}", "A1_{8}"),
    ("4_6, 5_6", "4,5"),
    ("i", "1"),
    ("i", "-i"),
    ("i^2", "1"),
    ("i", "j"),
    ("[2,5)", r"2 \le x \le 5"),
    ("[2,5)", "2 < x < 5"),
    (r"[2,\infty)", r"x\ge 3"),
    ("(2,1)", "1<x<2"),
    ("1500", "1.5e2"),
    ("1.5E-10", "2.5E-10"),
    ("2e+3", "2000"),
    ("2e-1", "0.2"),
    ("1000", r"1\,001"),
    ("(1,200)", r"1\,200"),
    (r"\emptyset", r"\{0\}"),
]
UNEQUAL = [
    (r"\frac{1}{2}", r"\frac{1}{3}"),
    (r"\frac{1}{2}", "0.51"),
    (r"\frac{1}{3}", "0.33"),
    (r"\frac{3}{4}", r"\frac{4}{3}"),
    (r"\frac{3}{4}", r"-\frac{3}{4}"),
    ("7", "-7"),
    ("7", "70"),
    ("7", "7.001"),
    ("1234", "1,235"),
    ("1234", "123"),
    ("1000000", "10^5"),
    ("0", "1"),
    ("125", "5^2"),
    (r"\sqrt{2}", "1.41"),
    (r"\sqrt{2}", "2"),
    (r"2\sqrt{3}", r"3\sqrt{2}"),
    (r"2\sqrt{3}", r"\sqrt{6}"),
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{2}"),
    (r"\sqrt[3]{27}", "9"),
    (r"\ln 8", r"2\ln 3"),
    (r"\log_{2} 8", "4"),
    ("2^{10}", "1000"),
    (r"\pi", "3.14"),
    (r"\pi", r"\frac{22}{7}"),
    (r"\frac{\pi}{2}", r"\frac{\pi}{3}"),
    (r"\frac{\pi}{2}", r"\pi"),
    (r"\sin\frac{\pi}{6}", r"\frac{\sqrt{3}}{2}"),
    ("x^2-1", "(x-1)^2"),
    ("x^2-1", "x^2+1"),
    ("(x+1)^2", "x^2+1"),
    ("x+1", "x-1"),
    ("x", "y"),
    ("2(a+b)", "2a+b"),
    ("a-b", "b-a"),
    (r"\frac{x}{2}", r"\frac{2}{x}"),
    ("e^{x+y}", "e^x+e^y"),
    (r"\sin 2x", r"2\sin x"),
    (r"\frac{1}{x}+\frac{1}{y}", r"\frac{1}{x+y}"),
    ("x=5", "x=6"),
    ("x=5", "y=5"),
    ("y=2x+3", "y=3x+2"),
    ("x>3", "x<3"),
    ("x>3", r"x\ge 3"),
    (r"\{1,2,3\}", r"\{1,2\}"),
    (r"\{1,2\}", r"\{1,3\}"),
    ("5", r"\{5,6\}"),
    ("5", r"5\text{ or }6"),
    ("5", "5,6,7"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "(1,2,3)"),
    ("[0,1]", "(0,1)"),
    ("[0,1]", "[0,1)"),
    (r"(-\infty,3)", r"(3,\infty)"),
    ("1+2i", "1-2i"),
    ("1+2i", "2+i"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&3\\2&4\end{pmatrix}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
    (r"25\%", "0.5"),
    (r"90^\circ", "45"),
    (r"\text{Evelyn}", r"\text{Carla}"),
    (r"\text{(C)}", r"\text{(D)}"),
    ("5", r"\text{five}"),
    ("5", "?"),
    ("5", r"\frac{5}"),
    ("5", r"\frac{5}{0}"),
    ("5", r"\infty"),
]


@pytest.fixture(scope="module")
def verifier():
    made = MathVerifier()
    yield made
    made.close()


def test_there_are_enough_pairs_and_none_twice():
    assert len(EQUAL) >= 50 and len(UNEQUAL) >= 50
    lists = (EQUAL, UNEQUAL, NOTATION_EQUAL, NOTATION_UNEQUAL)
    assert len({pair for pairs in lists for pair in pairs}) == sum(map(len, lists)) >= 150


@pytest.mark.parametrize(("gold", "answer"), EQUAL + NOTATION_EQUAL)
def test_equal(verifier, gold, answer):
    assert verifier.check(gold, answer) is Outcome.RIGHT


@pytest.mark.parametrize(("gold", "answer"), UNEQUAL + NOTATION_UNEQUAL)
def test_unequal(verifier, gold, answer):
    assert verifier.check(gold, answer) in (Outcome.WRONG, Outcome.UNVERIFIABLE)


def plainly(gold, answer):
    """math-verify's own verdict, without a short cut."""
    box = (math_verify.LatexExtractionConfig(boxed_match_priority=0),)
    parsed = [
        math_verify.parse(rf"\boxed{{{text}}}", extraction_config=box, parsing_timeout=None)
        for text in (gold, answer)
    ]
    return math_verify.verify(*parsed, timeout_seconds=None)


def test_short_cuts_change_no_verdict():
    texts = sorted({text for pair in EQUAL + UNEQUAL for text in pair if text != "5."})
    rng = random.Random(0)
    pairs = [pair for pair in EQUAL + UNEQUAL if "5." not in pair][::2]
    pairs += [tuple(rng.sample(texts, 2)) for _ in range(60)]
    verdicts = {pair: worker.check(*pair) for pair in pairs}
    compared = {pair: word for pair, word in verdicts.items() if word != worker.BAD_GOLD}
    assert len(compared) > 0.9 * len(verdicts)
    assert {p: w == worker.RIGHT for p, w in compared.items()} == {p: plainly(*p) for p in compared}
