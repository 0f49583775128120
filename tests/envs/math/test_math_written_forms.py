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
\frac{1}{3} | 0.\overline{3} ;; 0.\overline{3} | \frac{1}{3} ;; 0.\overline{3} | 0.\overline{3}
\frac{1}{6} | 0.1\overline{6} ;; \frac{1}{6} | 0.1\bar{6} ;; \frac{1}{3} | 0.\dot{3}
\frac{41}{333} | 0.\dot{1}2\dot{3} ;; \frac{1}{3} | 0.333\ldots ;; \frac{1}{3} | 0.333...
\frac{1}{6} | 0.1666\dots ;; \frac{1}{7} | 0.142857142857\ldots ;; \frac{4}{33} | 0.1212\ldots
\frac{4}{33} | 0.12121\ldots ;; -\frac{7}{3} | -2.\overline{3} ;; x=\frac{1}{3} | x = 0.\overline{3}
(\frac{1}{3}, 2) | (0.\overline 3, 2) ;; 33\frac{1}{3}\% | 33.\overline{3}\%
33\frac{1}{3}\% | 33.333...\% ;; \frac{1}{3} | 0.333… ;; \frac{1}{3} | .\overline{3}
1 | 0.\overline{9} ;; x^2-1 | x**2 - 1 ;; x^{10}+1 | x**10 + 1 ;; 2^{n-1} | 2**(n-1)
\frac{1}{x} | x**-1 ;; 2\sqrt{3} | 2*sqrt(3) ;; \sin^2 x | sin(x)**2 ;; \frac{3\pi}{2} | 3*pi/2
\frac{2\sqrt{3}}{3} | 2*sqrt(3)/3 ;; e^2 | exp(2) ;; a^b | a**b ;; \sqrt{x} | x**(1/2)
1250 | \text{\$}1{,}250 ;; 1250 | \text{\$}1,250 ;; \$5 | \text{\$}5.00 ;; 5 | \mathrm{\$}5
C | \textbf{(C)}\ 12 ;; C | (C) 12 ;; C | C. Paris ;; \text{(C)} | \text{(C) } \frac{1}{2}
C | C) x^2+1 ;; C | C: 12 ;; (C) | \text{C. 12 cm} ;; C | \mathrm{(C)}\quad 12
\textbf{(C)} | \textbf{(C) } 12 ;; C | (C) ;; [2,5) | \{x \mid 2\le x<5\}
[2,5) | \{x : 2\le x<5\} ;; (2,\infty) | \{x\in\mathbb{R} \mid x>2\}
(2,\infty) | \left\{x \in \mathbb R \,\middle|\, x>2\right\} ;; \{x: x > 2\} | (2,\infty)
\{x: x > 2\} | x>2 ;; (-\infty,1)\cup(2,\infty) | \{x \mid x<1 \text{ or } x>2\}
\{x: x > 2\} | \{x \mid x>2\} ;; (-\infty,3] | \{t: t \leq 3\} ;; 2:3 | 2 \text{ to } 3
2:3 | 4 to 6 ;; \frac{2}{3} | 2\text{ to }3
\infty | \text{infinity} ;; -\infty | \text{negative infinity}
(-\infty,\infty) | \text{all real numbers} ;; \mathbb{R} | \text{All real numbers.}
\text{all real numbers} | (-\infty, \infty) ;; \text{all real numbers} | \mathbb{R}
\text{all real numbers} | all real numbers ;; 0.12 | 12\text{ percent} ;; 12\% | 12 percent
12 | 12\text{ percent} ;; \lg 100 | 2 ;; \lg 2 | \log_{10} 2 ;; 1 | \tan 45^\circ
\frac{1}{2} | \sin(30^\circ) ;; \frac{\sqrt{3}}{2} | \sin 60^{\circ} ;; \tan 45^\circ | 1
\frac{1}{4} | \sin^2 30^\circ ;; 2\cos 20^\circ | 2\cos 20^\circ
2\cos 20^\circ | 2 \cos(\frac{\pi}{9}) ;; 2\cos 20^\circ | 2\sin 70^\circ
\frac{1}{2} | \cos\left(60^\circ\right) ;; 5 | \approx 5 ;; 5 | = 5
\frac{22}{7} | \frac{22}{7} \approx 3.14 ;; 3.14 | \frac{22}{7} \approx 3.14 ;; 5.2 | x \approx 5.2
5 | x \approx 5 ;; \sqrt{2} | \sqrt{2} ≈ 1.41 ;; x = 5 | x\approx 5 ;; 5 | \underline{5}
5 | \color{red}{5} ;; 5 | \textcolor{red}{5} ;; \frac{1}{2} | \color{blue} \frac{1}{2}
\frac{1}{2} | \textcolor{blue}{\frac{1}{2}} ;; \begin{pmatrix}1\\2\end{pmatrix} | (1,2)^T
\begin{pmatrix}1\\2\\3\end{pmatrix} | [1, 2, 3]^{\top}
\begin{pmatrix}1\\\frac{1}{2}\end{pmatrix} | \left(1,\frac12\right)^\mathrm{T}
(1,2)^T | \begin{bmatrix}1\\2\end{bmatrix}
\approx 5.2 | 5.2 ;; \frac{1}{2} \approx 0.5 | \frac{1}{2}
3+4i | 3+4j ;; 3+4i | (3+4j) ;; 4i+3 | 3.0 + 4.0j ;; -4i | -4j ;; 3-i | (3-1j) ;; 3j+4 | 4+3j
1+\sqrt{3}i | 2\operatorname{cis}(60^\circ) ;; 2\operatorname{cis} 60^{\circ} | 1+i\sqrt{3}
2\text{cis}\frac{\pi}{3} | 2e^{i\pi/3} ;; i | \text{cis }(\pi/2) ;; 2i | 2 cis 90°
\cos 60^\circ+i\sin 60^\circ | \operatorname{cis} 60^\circ ;; -1 | \mathrm{cis}{\pi}
-4\sqrt2-4\sqrt2 i | 8\,\text{cis}\left(\frac{5\pi}{4}\right) ;; 1+i | 1+\cis 90^\circ
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
\frac{1}{3} | 0.\overline{4} ;; \frac{1}{3} | 0.33\overline{4} ;; \frac{1}{3} | 3.\overline{3}
\pi | 3.1415\ldots ;; \frac{1}{3} | 0.334... ;; 0.\overline{12} | 0.\overline{21}
0.\overline{3} | 0.3 ;; 0.\overline{3} | 0.33 ;; \frac{1}{6} | 0.\overline{16} ;; 3 | \overline{3}
x^2-1 | x**3-1 ;; x^2 | x*2 ;; 6 | 2**3 ;; 2^{n-1} | 2**n-1 ;; 2^{10} | 2**1*0
1250 | \text{\$}1{,}520 ;; \$5 | \text{\$}6 ;; C | \textbf{(D)}\ 12 ;; C | (C) or (D)
C | (C), (D) ;; C | C. or D. ;; C | C: not D ;; C | (C) is wrong ;; C | (A) 12 (C) 13 ;; C | A) C
C | Cat. 12 ;; 12 | (C) 12.5 ;; C | (C) and (B) ;; C | A, B, C ;; [2,5) | \{x \mid 2< x<5\}
[2,5) | \{2,5\} ;; (2,\infty) | \{x\in\mathbb{Z} \mid x>2\} ;; \{x: x > 2\} | x<2
\{x: x > 2\} | x \ge 2 ;; \{x: x > 2\} | \{x \mid x>3\} ;; (2,\infty) | \{x \mid y>2\}
\{2\} | \{x \mid x>2\} ;; 2:3 | 3 \text{ to } 2 ;; 2:3 | 2 to 4 ;; [2,3] | 2 to 3 ;; 2:30 | 2 to 15
\infty | \text{negative infinity} ;; \mathbb{R} | \text{all integers}
\text{all real numbers} | (0,\infty) ;; \text{all real numbers} | \mathbb{Q}
0.12 | 1.2\text{ percent} ;; \lg 2 | \ln 2 ;; 1 | \tan 30^\circ ;; \frac{1}{2} | \sin 60^\circ
\frac{1}{2} | \sin 30 ;; 5 | \approx 6 ;; 5 | 6 \approx 5 ;; \frac{22}{7} | \pi \approx \frac{22}{7}
3.14 | 3.14 \approx 3.15 ;; 5 | \underline{6} ;; 5 | \color{5}{6}
\begin{pmatrix}1\\2\end{pmatrix} | (2,1)^T ;; \begin{pmatrix}1&2\end{pmatrix} | (1,2)^T
(1,2) | (2,1)^T ;; 3+4i | 3+5j ;; 3+4i | 3-4j ;; i | j ;; 3x+4i | 3x+4j
2\operatorname{cis}(60^\circ) | 2\operatorname{cis}(30^\circ) ;; i | \operatorname{cis} 90
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
