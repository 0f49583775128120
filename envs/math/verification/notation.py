r"""Rewrites notations of numbers and sets that math-verify misreads.

================================= =========================== ================================
as written                        as rewritten                math-verify's reading as written
================================= =========================== ================================
``1\,000``, ``12 345``            ``1000``, ``12345``         1 times 0, 12 + 345
``2 1/2``                         ``\frac{5}{2}``             3/2
``1.5e3``                         ``(1.5\times 10^{3})``      1.5 times e times 3
``\mathrm{e}``, ``3\text{i}``     ``e``, ``3i``               a variable, the number 3
``12_{9}``                        a symbol of its own         12
``0.1\overline{6}``, ``0.166...`` ``\frac{15}{90}``           none, 0.166
``x**10``                         ``x^{10}``                  none
``cos(2*pi)``, ``oo``             ``\cos(2*\pi)``, ``\infty`` products of variables
``\sin 30^\circ``                 ``\sin(\frac{30\pi}{180})`` the sine of 30
``(1,2)^T``                       a column                    none
``\lg x``, ``12 percent``         ``\log_{10} x``, ``12\%``   none, 12
``\underline{5}``, ``\text{\$}5`` ``5``, ``\$5``              none, none
``\varnothing``                   ``\emptyset``               a variable
``\langle 1,2\rangle``            ``(1,2)``                   none
``½``, ``√2``, ``x²``, ``–``      LaTeX or ASCII              none
``2\text{cis}\,60^\circ``         ``2e^{i\cdot(60\pi/180)}``  none
``(3+4j)``                        ``(3+4i)``                  a variable
================================= =========================== ================================

A number with a base equals only the same digits with the same base. The base ten may be left out.
Notations whose meaning depends on both answers are in :mod:`envs.math.verification.pairs`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from unicodedata import normalize

BLANK = r"(?:\\[,;:! ]|\\thinspace(?![A-Za-z])|[ ~]|\{(?:\\[,; ]|~| )\})"
"""Matches one blank between digits, or between a number and its unit."""
_SEPARATOR = rf"(?:{BLANK}|\{{,\}}|,\\!)"
_INTEGER = rf"[1-9]\d{{0,2}}(?:{_SEPARATOR}\d{{3}})+"
_DECIMALS = rf"\.\d{{3}}(?:{BLANK}\d{{3}})*(?:{BLANK}\d{{1,3}})?"
_GROUPED = re.compile(
    rf"(?<![\d.^_])(?:{_INTEGER}(?:{_DECIMALS}|\.\d+)?|\d+{_DECIMALS})(?!\d|{BLANK}\d)",
    re.ASCII,
)
_GROUPED_COMMA = re.compile(
    rf"(?P<whole>[^\d,]*[1-9]\d{{0,2}}(?:{BLANK}\d{{3}})+)(?:,|\{{,\}})(?P<decimals>\d+)(?=\D*$)",
    re.ASCII,
)
_SEPARATORS = re.compile(_SEPARATOR)
_MIXED = re.compile(
    rf"(?<![\w.^_}}\\])(?P<whole>{_INTEGER}|\d+)(?:"
    rf"{BLANK}*\\[dtc]?frac\s*(?:\{{\s*(?P<a>\d+)\s*\}}|(?P<c>\d)\s*)"
    r"(?:\{\s*(?P<b>\d+)\s*\}|(?P<d>\d))"
    rf"|{BLANK}+(?P<e>[1-9]\d*)\s?/\s?(?P<f>\d+))(?![\d.^!/]|{BLANK}\d)",
    re.ASCII,
)
# The digits after these commands are arguments: \frac 1 200 is a fraction.
_TAKES_DIGITS = re.compile(r"\\(?:[dtc]?frac|[dt]?binom|sqrt)\s*\d?\s*$")
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
_UPRIGHT = re.compile(
    r"\\(?:math(?:rm|it|sf|normal|up)|text(?:rm|it|normal|up)?|operatorname\*?|mbox|rm)\s*"
    r"(?:\{\s*([eij])\s*\}|(?<=[a-z*] )([eij])(?![A-Za-z]))"
    r"|\{\s*\\(?:rm|it)\s+([eij])\s*\}"
    r"|\\(?:math(?:bf|bb)|textbf|bm|boldsymbol|hat|vec)\s*(?:\{\s*\\?([ijk])(?:math)?\s*\})"
)
_REPEATING = re.compile(
    r"(?<![\d.])(?P<whole>\d{0,30})\.(?P<fixed>\d{0,30}?)(?:"
    r"\\(?:overline|bar)\s*(?:\{\s*(?P<a>\d{1,30})\s*\}|(?P<b>\d))"
    r"|\\dot\s*\{?(?P<c>\d)\}?(?:(?P<d>\d{0,30})\\dot\s*\{?(?P<e>\d)\}?)?"
    r"|(?:(?P<f>\d)(?P=f){2,30}|(?P<g>\d{2,15})(?P=g){1,15})(?P<h>\d{0,15})"
    r"\s*(?:\\[lc]?dots(?![A-Za-z])|\.\.\.))",
    re.ASCII,
)
_PYTHON_POWER = re.compile(
    r"(?<=[\w)\]}])\s*\*\*\s*(-?\d+|[A-Za-z](?![A-Za-z])|\((?:[^()]|\([^()]*\))*\))"
)
_PLAIN_NAME = re.compile(
    r"(?<![A-Za-z])(?:(arc)?(sinh?|cosh?|tanh?|cot|sec|csc)|a(sin|cos|tan)|(ln|log|exp|pi)"
    r"|(oo|inf(?:inity)?))(?![A-Za-z])"
)
"""Matches a name in an answer without LaTeX, as programs print it."""
_CIS = re.compile(
    r"(?:\\(?:operatorname\*?|text|mathrm|mbox)\s*\{\s*cis\s*\}|\\?(?<![A-Za-z])cis(?![A-Za-z]))"
    rf"(?:{BLANK}|\s)*(?:(?:\\left\s*)?\((?P<inside>(?:[^()]|\([^()]*\))+?)(?:\\right\s*)?\)"
    r"|\{(?P<braced>[^{}]*(?:\{[^{}]*\}[^{}]*)*)\}|(?P<angle>(?:\{[^{}]*\}|[^-+=,;(){}])+))"
)
"""Matches a polar form's function: cis x is cos x + i sin x."""
_IN_DEGREES = re.compile(r"\s*(.*?)\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})\s*", re.DOTALL)
_PYTHON_COMPLEX = re.compile(r"[-+\d.\s()]*\d\.?j[-+\d.\s()]*", re.ASCII)
_PERCENT = re.compile(
    rf"(?<=[\d}}])(?:\s|{BLANK})*"
    r"(?:\\(?:text|mathrm|mbox)\s*\{\s*percent\s*\}|percent(?![A-Za-z ]))"
)
_DEGREES = re.compile(
    r"(?P<function>\\(?:sin|cos|tan|cot|sec|csc)(?:\s*\^\s*(?:\d|\{\d+\}))?)"
    r"\s*(?P<open>\(|\{|\\left\s*\()?\s*(?P<angle>\d+(?:\.\d+)?)\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})"
    r"\s*(?(open)(?:\\right\s*)?[)}])"
)
_DECORATED = re.compile(
    r"\s*(?:\\(?:underline|textcolor\s*\{\w+\}|color\s*\{\w+\})\s*"
    r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}|\\color\s*\{\w+\}(.*))\s*"
)
_TRANSPOSED = re.compile(
    r"\s*(?:\\left)?[(\[]([^()\[\]]+,[^()\[\]]+?)(?:\\right)?[)\]]\s*\^\s*\{?\s*"
    r"(?:T|\\top|\\intercal|\\(?:mathrm|mathsf|text)\s*\{T\})\s*\}?\s*"
)
_WRAPPED_DOLLAR = re.compile(r"\\(?:text|mathrm|mbox)\s*\{\s*\\?\$\s*\}")
_ANGLES = re.compile(r"\\langle(?![A-Za-z])|\\rangle(?![A-Za-z])|(?<=\\left)<|(?<=\\right)>")
_ANGLED = re.compile(r"\s*<([^<>=]*,[^<>=]*)>\s*")

_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-()n0123456789+-")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ]+")
_SUBSCRIPT = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋]+")
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_ROOT = re.compile(
    r"([√∛∜])\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[A-Za-z]|\\[A-Za-z]+|(?=\{)))", re.ASCII
)
_ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}
_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("−–—‐‑‒﹣", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "),
        **dict.fromkeys("\u200b\u2060\ufeff\u2061\u2062", ""),
        **dict.fromkeys("·⋅∙•", r"\cdot "),
        **dict.fromkeys("⟨〈", "("),
        **dict.fromkeys("⟩〉", ")"),
        **dict.fromkeys("ℯⅇ", "e"),
        **dict.fromkeys("ⅈ", "i"),
        **dict.fromkeys("⁄∕", "/"),
        **{
            "…": r"\ldots ",
            "∞": r"\infty ",
            "°": r"^\circ ",
            "º": r"^\circ ",
            "∅": r"\emptyset ",
            "∪": r"\cup ",
        },
        **{"∩": r"\cap ", "∈": r"\in ", "⩽": r"\le ", "⩾": r"\ge ", "∨": r"\lor ", "∗": "*"},
        # The full-width forms of ASCII.
        **{chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)},
    }
)


@lru_cache(maxsize=4096)
def standard(text: str) -> str:
    """Equivalent LaTeX in notation that math-verify reads; most texts stay unchanged."""
    if _PYTHON_COMPLEX.fullmatch(text):
        text = text.replace("j", "i")
    if "\\" not in text:
        text = _PLAIN_NAME.sub(_command, text)
    if not text.isascii():
        text = _ascii(text)
    if "cis" in text:
        text = _CIS.sub(_exponential, text)
    if "\\" in text:
        text = re.sub(r"\\varnothing(?![a-zA-Z])", r"\\emptyset ", text)
        text = re.sub(r"\\colon(?![A-Za-z])", ":", text)
        text = _WRAPPED_DOLLAR.sub(r"\\$", text)
        text = re.sub(r"\\lg(?![A-Za-z])", r"\\log_{10}", text)
        text = _DEGREES.sub(r"\g<function>(\\frac{\g<angle>\\pi}{180})", text)
        if match := _DECORATED.fullmatch(text):
            text = match[1] or match[2] or ""
        text = _UPRIGHT.sub(_letter, text)
        text = _ANGLES.sub(lambda match: "(" if match[0] in (r"\langle", "<") else ")", text)
    if match := _TRANSPOSED.fullmatch(text):
        rows = match[1].replace(",", r"\\")
        text = rf"\begin{{pmatrix}}{rows}\end{{pmatrix}}"
    text = _PERCENT.sub(r"\\%", text)
    text = _PYTHON_POWER.sub(r"^{\1}", text.replace("{:}", ":"))
    text = _REPEATING.sub(_fraction_of_period, text)
    if "<" in text:
        text = _ANGLED.sub(r"(\1)", text) if _ANGLED.fullmatch(text) else text
    if match := _GROUPED_COMMA.match(text):
        text = f"{match['whole']}.{match['decimals']}{text[match.end() :]}"
    text = _MIXED.sub(_improper, text)
    text = _GROUPED.sub(_ungrouped, text)
    text = _SCIENTIFIC.sub(r"(\g<mantissa>\\times 10^{\g<exponent>})", text)
    return _BASED.sub(_symbol, text)


def _ascii(text: str) -> str:
    """The text with LaTeX or ASCII in place of other characters, where there is an equivalent."""
    text = _VULGAR.sub(_fraction, text)
    text = _SUPERSCRIPT.sub(lambda match: f"^{{{match[0].translate(_RAISED)}}}", text)
    text = _SUBSCRIPT.sub(lambda match: f"_{{{match[0].translate(_RAISED)}}}", text)
    text = text.translate(_CHARACTERS)
    return _ROOT.sub(_latex_root, text)


def _command(match: re.Match[str]) -> str:
    arc, function, inverse, other, _ = match.groups(default="")
    return f"\\{'arc' * bool(inverse) + arc}{function or inverse or other or 'infty'} "


def _exponential(match: re.Match[str]) -> str:
    """Euler's form of a polar form."""
    angle = match["inside"] or match["braced"] or match["angle"]
    if degrees := _IN_DEGREES.fullmatch(angle):
        angle = rf"\frac{{({degrees[1]})\cdot\pi}}{{180}}"
    return rf"e^{{i\cdot({angle})}}"


def _fraction(match: re.Match[str]) -> str:
    over, _, under = normalize("NFKC", match[0]).partition("⁄")
    return rf"\frac{{{over}}}{{{under}}}"


def _latex_root(match: re.Match[str]) -> str:
    inside = match[2] or match[3]
    return f"{_ROOTS[match[1]]}{{{inside}}}" if inside else _ROOTS[match[1]]


def _letter(match: re.Match[str]) -> str:
    """The letter alone, with a blank after the letters of a command."""
    apart = match.string[max(0, match.start() - 1) : match.start()].isalpha()
    return " " * apart + "".join(filter(None, match.groups()))


def _takes(match: re.Match[str]) -> bool:
    """Whether the text before a match ends in a command whose argument is the match's start."""
    before = match.string[max(0, match.start() - 12) : match.start()]
    return _TAKES_DIGITS.search(before) is not None


def _improper(match: re.Match[str]) -> str:
    """The fraction that equals a mixed number; other texts, such as ``2 500/3``, stay unchanged."""
    over = int(match["a"] or match["c"] or match["e"])
    under = int(match["b"] or match["d"] or match["f"])
    if over >= under or over == 0 or _takes(match):
        return match[0]
    whole = int(_SEPARATORS.sub("", match["whole"]))
    return rf"\frac{{{whole * under + over}}}{{{under}}}"


def _fraction_of_period(match: re.Match[str]) -> str:
    """The fraction that equals a repeating decimal; other texts, such as 3.1415..., stay."""
    found = match.groupdict(default="")
    period = "".join(found[name] for name in "abcdefg")
    if not period.startswith(found["h"]):  # the dots cut the last period short
        return match[0]
    under = 10 ** len(found["fixed"]) * (10 ** len(period) - 1)
    fixed = int(f"0{found['whole']}{found['fixed']}")
    return rf"\frac{{{fixed * (10 ** len(period) - 1) + int(period)}}}{{{under}}}"


def _ungrouped(match: re.Match[str]) -> str:
    return match[0] if _takes(match) else _SEPARATORS.sub("", match[0])


def _symbol(match: re.Match[str]) -> str:
    """The digits alone if the base is ten; otherwise a symbol named after digits and base."""
    base = int(match["base"] or match["short"])
    return match["digits"] if base == 10 else rf"N_{{{int(match['digits'])}b{base}}}"
