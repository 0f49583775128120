r"""One value in many forms of writing, and values that one reading would confuse.

A pair is a gold answer and an answer, separated by a bar; ``;;`` separates pairs.
"""

from __future__ import annotations

import pytest

from envs.math.verification.verifier import MathVerifier, Outcome

RIGHT = r"""
\frac{1}{2^{99}} | 2^{-99} ;; \frac{1}{20!} | \frac{1}{2432902008176640000}
6.626\times 10^{-34} | 6.626e-34 ;; 6.62607015\times 10^{-34} | 6.62607016\times 10^{-34}
1.6\times 10^{-19} | 16\times 10^{-20} ;; 1.6\times 10^{-19} | 0.16 \times 10^{-18}
0.00000001 | 10^{-8} ;; 0.00000001 | \frac{1}{100000000} ;; 10^{-8} | 0.00000001
\frac{1}{2^{98}}+1 | 1+2^{-98} ;; \frac{1}{2^{98}}+\frac{1}{2^{99}} | \frac{3}{2^{99}}
[0, 10^{-20}] | 0 \le x \le 10^{-20} ;; x = 10^{-20} | 10^{-20}
\frac{\pi}{2^{98}} | \pi \cdot 2^{-98}
\sqrt{2}\cdot 10^{-30} | \frac{2}{\sqrt{2}}\cdot 10^{-30} ;; e^{-50} | \frac{1}{e^{50}}
10^{-400} | \frac{1}{10^{400}} ;; 10^{-20}i | i \cdot 10^{-20}
\{10^{-20}, 10^{-21}\} | \{10^{-21}, 10^{-20}\} ;; \frac{1}{3} | 0.333333
\frac{1}{81} | 0.012346 ;; \frac{1}{720} | 0.001389 ;; \frac{1}{3000} | 0.00033333333
1-\frac{1}{3000} | 0.999667 ;; 6.02\times10^{23} | 602000000000000000000000
6.02214076\times10^{23} | 602214076000000000000000 ;; \mathrm{e} | e ;; e | \mathrm{e}
\mathrm{e}^2 | e^2 ;; \mathrm{e}^{-x} | e^{-x} ;; 2\mathrm e | 2e ;; {\rm e}^x | e^x
\text{e}^{3} | e^3 ;; \operatorname{e}^{3} | e^3 ;; \mathrm{i} | i ;; 3+4\mathrm{i} | 3+4i
\frac{1+\mathrm{i}}{2} | \frac{1+i}{2} ;; \mathrm{e}^{\mathrm{i}\pi} | -1 ;; \ln\mathrm{e} | 1
\sqrt{3}\mathrm{i} | i\sqrt{3} ;; 2\mathbf{i}+3\mathbf{j} | 2\hat{i}+3\hat{j}
2\mathbf{i}+3\mathbf{j} | 2\mathbf{i}+3\mathbf{j} ;; 2:30 | 2:30 ;; 12:00 | 12:00 ;; 6:00 | 6:00
6:00 | 6{:}00 ;; 12:00 | \text{12:00} ;; 12:00\text{ noon} | 12:00 ;; 2:30\text{ p.m.} | 2:30 PM
2:30\text{ p.m.} | 2:30 ;; 2:30\text{ p.m.} | 14:30 ;; 5:00 \text{ PM} | 5 \text{ PM}
5 \text{ PM} | 5 PM ;; 1:2 | 2:4 ;; 1:2 | \frac{1}{2} ;; 3:4 | 6:8 ;; 3:4 | 15:20 ;; 9:16 | 18:32
1:15 | \frac{1}{15} ;; 1:15 | 1/15 ;; 1:2:3 | 2:4:6 ;; 1 : 2 : 3 | 1\colon 2\colon 3
1:\sqrt{3}:2 | \sqrt{3}:3:2\sqrt{3} ;; a:b:c = 1:2:3 | 1:2:3 ;; AB:BC:CA=3:4:5 | 6:8:10
\text{no solution} | no solution ;; \text{no solution} | No Solution
\text{No solution} | \text{no solution}. ;; no solution | \text{no solution}
\text{no real solutions} | no real solutions ;; \text{Yes} | Yes ;; \text{Evelyn} | Evelyn
\text{red and blue} | red and blue ;; 12345 | 12 345 ;; 12 345 | 12345 ;; 12 345 | 12\,345
2500 | 2 500 ;; 1000 | 1 000 ;; 1000000 | 1~000~000 ;; 12345 | 12\ 345 ;; 12345 | 12{,}345
12345 | 12,\!345 ;; 12345 | 12{ }345 ;; 12345.6 | 12 345.6 ;; 12345.6 | 12 345,6
3.14159 | 3.141 59 ;; -12345 | -12 345 ;; (1000, 2000) | (1 000, 2 000)
(1000, 2000) | (1{,}000, 2{,}000) ;; 12345\text{ cm} | 12 345\text{ cm} ;; x = 12345 | x = 12 345
12 345^2 | 12345^2 ;; \frac{12 345}{2} | \frac{12345}{2} ;; \sqrt{12\,345} | \sqrt{12345}
\frac{5}{2} | 2 1/2 ;; 2.5 | 2 1/2 ;; 2.5 | 2\frac{1}{2} ;; 2.5 | 2 \frac12
2.5 | 2\tfrac{1}{2} ;; 2.5 | 2\ \frac{1}{2} ;; 2.5 | 2\,\dfrac{1}{2} ;; 2.5 | 2½ ;; 2.5 | 2 ½
-2.5 | -2 1/2 ;; -2.5 | -2\frac{1}{2} ;; -2.5 | -2½ ;; -2.5 | −2 1/2 ;; (2.5, 3) | (2 1/2, 3)
2.5\text{ cm} | 2 1/2\text{ cm} ;; x=2.5 | x = 2 1/2 ;; 33\frac{1}{3}\% | 33 1/3 \%
33\frac{1}{3}\% | \frac{100}{3}\% ;; 1234.5 | 1 234 1/2 ;; (-\infty,1)\cup(2,\infty) | x<1 or x>2
(-\infty,1)\cup(2,\infty) | x<1 \text{ or } x>2 ;; (-\infty,1)\cup(2,\infty) | x > 2 or x < 1
(-\infty,1)\cup(2,\infty) | x<1 \lor x>2 ;; (-\infty,1)\cup(2,\infty) | 1>x or 2<x
(-\infty,1]\cup(2,3) | x\leq 1 or 2<x<3 ;; x<1 or x>2 | (-\infty,1)\cup(2,\infty)
x<1 or x>2 | x>2 or x<1 ;; x<1 or x>2 | x<1, x>2 ;; x=1 \text{ or } x=2 | x=2 or x=1
x=1 \text{ or } x=2 | 1,2 ;; x = 2 or x > 5 | \{2\}\cup(5,\infty) ;; \langle 1,2\rangle | (1,2)
(1,2) | \langle 1,2\rangle ;; \langle 1,2,3\rangle | \left\langle 1,2,3\right\rangle
(1,2,3) | <1,2,3> ;; (1,2,3) | ⟨1,2,3⟩ ;; -5 | –5 ;; -5 | −5 ;; x-1 | x−1 ;; \frac{1}{2} | ½
\frac{3}{4} | ¾ ;; \sqrt{2} | √2 ;; 2\sqrt{3} | 2√3 ;; \sqrt{12} | √12 ;; \sqrt{x+1} | √(x+1)
\frac{\sqrt{2}}{2} | √2/2 ;; x^2 | x² ;; 10^{-3} | 10⁻³ ;; 90^\circ | 90° ;; x\ge 3 | x ≥ 3
\infty | ∞ ;; 5\text{ m} | 500\text{ cm} ;; 5 m | 500 cm ;; 5\text{ m} | 5 ;; 5 | 5\text{ m}
5\text{ m} | 5\text{ meters} ;; 5\text{ cm}^2 | 5\text{ square centimeters}
2\text{ hours} | 120\text{ minutes} ;; 1\text{ hour }15\text{ minutes} | 75\text{ minutes}
36\text{ km/h} | 10\text{ m/s} ;; 36 km/h | 36 ;; \$5 | 5\text{ dollars}
\$5 | 500\text{ cents} ;; \$0.50 | 50\text{ cents} ;; 90^\circ | 90\text{ degrees}
180^\circ | \pi\text{ rad} ;; 25^\circ\text{C} | 25^\circ C ;; 5\text{ kg} | 5000\text{ g}
3\text{ L} | 3000\text{ mL} ;; 5\text{ apples} | 5 ;; 5\text{ apples} | 5\text{ fruits}
12\text{ in} | 1\text{ ft}
"""
NOT_RIGHT = r"""
\frac{1}{2^{99}} | \frac{1}{2^{98}} ;; \frac{1}{20!} | \frac{1}{21!}
6.626\times 10^{-34} | 6.627\times 10^{-34} ;; 6.62607\times 10^{-34} | 6.62608\times 10^{-34}
0.00000001 | 0.00000002 ;; 10^{-20} | 0 ;; 0 | 10^{-20} ;; 10^{-20} | -10^{-20}
(\frac{1}{2^{98}}, 1) | (\frac{1}{2^{99}}, 1) ;; \frac{1}{2^{98}}+1 | \frac{1}{2^{99}}+1
\frac{1}{2^{98}}+\frac{1}{2^{99}} | \frac{1}{2^{98}} ;; [0, 10^{-20}] | [0, 10^{-21}]
0 < x < 10^{-20} | 0<x<10^{-19} ;; x = 10^{-20} | x = 10^{-21} ;; 10^{-20}x | 10^{-21}x
x+10^{-20} | x+10^{-21} ;; \frac{\pi}{2^{98}} | \frac{\pi}{2^{99}} ;; \pi + 10^{-20} | \pi
\sqrt{2}\cdot 10^{-30} | \sqrt{3}\cdot 10^{-30} ;; e^{-50} | e^{-51} ;; e^{-1000} | e^{-1001}
10^{-400} | 10^{-401} ;; 10^{-20}i | 10^{-21}i
\begin{pmatrix}10^{-20}\\1\end{pmatrix} | \begin{pmatrix}10^{-21}\\1\end{pmatrix}
\{10^{-20}, 10^{-21}\} | \{10^{-20}, 10^{-22}\}
(-\infty, 10^{-20}) \cup (1,\infty) | (-\infty, 10^{-21}) \cup (1,\infty)
\pm 10^{-20} | \pm 10^{-21} ;; \left(\frac{1}{2}\right)^{100} | \left(\frac{1}{2}\right)^{101}
0.0001 | 0.00010049 ;; \frac{1}{3000} | 0.000333 ;; \frac{1}{3000} | 0.000334
\binom{100}{50}^{-1} | \binom{100}{51}^{-1} ;; 2.5e-7 | 2.4e-7 ;; 1-10^{-20} | 1-10^{-21}
\mathrm{e} | 2.71828 ;; \mathrm{e} | \mathrm{e}^2 ;; \mathrm{i} | -i ;; 3+4\mathrm{i} | 3-4i
3\mathrm{i} | 3 ;; 2\mathbf{i}+3\mathbf{j} | 2\mathbf{i}+3\mathbf{k} ;; 2:30 | 1:15
1:15 | 2:30 ;; 6:00 | 12:00 ;; 2:30\text{ p.m.} | 2:30 AM ;; 2:30\text{ a.m.} | 14:30
5 PM | 6 PM ;; 10:05 | 10:5 ;; 3:4 | 4:3 ;; 1:2:3 | 1:2:4 ;; 1:2:3 | 3:2:1 ;; 1:2:3 | 1:6
\text{no solution} | one solution ;; \text{Yes} | No ;; 2 500 | 502 ;; 1 000 | 0
12345 | 12 346 ;; \frac 1 200 | 0 ;; 1.5 | 2 1/2 ;; 2 1/2 | 1.5 ;; -1.5 | -2 1/2
(-\infty,1)\cup(2,\infty) | x\le 1 or x>2 ;; x<1 or x>2 | y<1 or y>2
(1,2) | \langle 2,1\rangle ;; 5 | –5 ;; \frac{1}{2} | ⅓ ;; \sqrt{2} | √3
5\text{ m} | 5\text{ cm} ;; 5\text{ cm} | 5\text{ m} ;; 5 m | 5 cm ;; 5\text{ m} | 5\text{ kg}
5\text{ cm}^2 | 5\text{ cm}^3 ;; 5\text{ cm}^2 | 5\text{ cm} ;; 2\text{ hours} | 2\text{ minutes}
36\text{ km/h} | 36\text{ m/s} ;; \$5 | 5\text{ cents} ;; 180^\circ | 180\text{ rad}
25^\circ\text{C} | 25^\circ\text{F} ;; 5\text{ kg} | 5\text{ g} ;; 5x | 5y
"""


def pairs(text):
    """Pairs of a table, in groups of twelve."""
    found = [
        tuple(pair.strip().split(" | ")) for pair in text.replace("\n", ";;").split(";;") if pair
    ]
    return [found[start : start + 12] for start in range(0, len(found), 12)]


@pytest.fixture(scope="module")
def verifier():
    made = MathVerifier()
    yield made
    made.close()


@pytest.mark.parametrize("some", pairs(RIGHT))
def test_right(verifier, some):
    verdicts = {pair: verifier.check(*pair) for pair in some}
    assert [pair for pair, verdict in verdicts.items() if verdict is not Outcome.RIGHT] == []


@pytest.mark.parametrize("some", pairs(NOT_RIGHT))
def test_not_right(verifier, some):
    verdicts = {pair: verifier.check(*pair) for pair in some}
    assert [pair for pair, verdict in verdicts.items() if verdict is Outcome.RIGHT] == []
