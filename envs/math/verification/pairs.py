r"""Notations whose meaning depends on both answers: words, times, alternatives and ratios.

- Words: ``\text{no solution}`` is a name, but ``no solution`` a product of ten variables.
- Times: ``2:30`` and ``1:15`` are equal as ratios, but not as times.
- Alternatives: ``x<1 or x>2`` is a pair of relations, unless the other answer is a set.
- Ratios: math-verify reads ``1:2:3`` as 1/6, and ``2 to 3`` as a product.
- Options: ``(C) 12`` is the option C if the gold answer is a capital letter.
- Sets: ``\{x \mid x>2\}`` is ``x>2``.

:mod:`envs.math.verification.units` compares units.
"""

from __future__ import annotations

import re
from math import gcd

from envs.math.verification.notation import BLANK, standard
from envs.math.verification.units import UNWRAPPED, WRAPPER, in_one_unit


def comparable(gold: str, answer: str) -> tuple[str, str] | bool:
    """Two answers in notation that math-verify compares, or the verdict if it is certain."""
    gold, answer = _bare(gold), _bare(answer)
    gold = _approximated("", gold)
    answer = _approximated(gold, _option(gold, answer))
    gold, answer = (_MEANT.get(_words(one), one) for one in (gold, answer))
    words = _words(gold)
    if words and words == _words(answer) and ("\\" in gold + answer or " " in words):
        return True
    gold, answer = (rf"\text{{{one}}}" if _is_phrase(one) else one for one in (gold, answer))
    gold, answer = (_BUILDER.sub(_condition, standard(one)) for one in (gold, answer))
    measured = in_one_unit(*_times(gold, answer))
    if measured is None:
        return False
    gold, answer = _regions(*measured)
    return _ratio(gold), _ratio(answer)


def _bare(text: str) -> str:
    r"""The text without dollar signs or a ``\text`` around a number or a quantity."""
    text = text.strip()
    if len(text) > 2 and text[0] == text[-1] == "$":
        text = text.strip("$").strip()
    match = UNWRAPPED.fullmatch(text)
    return match[1] if match and re.match(r"\s*-?\d", match[1]) else text


def _words(text: str) -> str:
    """The words of a text that has nothing else, in lower case; "" for other texts."""
    plain = re.sub(r"~|\\ ", " ", UNWRAPPED.sub(r"\1", text))
    plain = " ".join(plain.rstrip(".! ").lower().split())
    return plain if re.fullmatch(r"[a-z][a-z' -]*[a-z]", plain) else ""


def _is_phrase(text: str) -> bool:
    """Whether a text is a phrase without LaTeX, and no list such as ``red and blue``."""
    words = text.split()
    plain = all(re.fullmatch(r"[A-Za-z']+", word) for word in words)
    return plain and len(words) > 1 and max(map(len, words)) > 2 and not {"and", "or"} & {*words}


_APPROX = re.compile(r"\\approx(?![A-Za-z])|≈")
_MEANT = dict.fromkeys(("all real numbers", "all reals", "all real"), r"(-\infty,\infty)")
_MEANT |= {"infinity": r"\infty", "positive infinity": r"\infty", "negative infinity": r"-\infty"}


def _approximated(gold: str, answer: str) -> str:
    r"""One side of ``\frac{22}{7} \approx 3.14``: the right one if the gold answer has decimals."""
    answer = re.sub(r"^\s*=\s*", "", answer)
    exact, *rest = _APPROX.split(answer)
    if not rest:
        return answer
    return rest[-1] if "." in gold or _VARIABLE.fullmatch(exact.strip() or "x") else exact


_LETTER = re.compile(rf"(?:{WRAPPER}\s*\{{)?\s*\(?([A-Z])\)?\s*\}}?")
_LETTER_AND_TEXT = re.compile(
    r"\s*(?:\(([A-Z])\)|([A-Z])[).:])\s*(?:\\[ ,;:!]|\\q?quad|~)*(?P<rest>.+)"
)
_OTHER_OPTION = re.compile(
    r"\([A-Z]\)|\b[A-Z][).:]|\b(?:or|and|not|wrong)\b|^\W*[A-Z]\b\W*$|,\s*[A-Z]\b"
)


def _option(gold: str, answer: str) -> str:
    """The letter of an answer such as ``(C) 12``, if the gold answer is a letter."""
    if not _LETTER.fullmatch(gold):
        return answer
    match = _LETTER_AND_TEXT.fullmatch(UNWRAPPED.sub(r"\1", answer))
    return (match[1] or match[2]) if match and not _OTHER_OPTION.search(match["rest"]) else answer


# ---- times ---------------------------------------------------------------------------------

_TIME = re.compile(
    rf"(?<![\d:.,])(?P<hour>\d{{1,2}})(?![\d.,])"
    r"(?::(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?![\d:.]))?"
    rf"(?:(?:\s|{BLANK})*(?:{WRAPPER}\s*\{{\s*)?(?P<half>[ap])\.?\s?m\b\.?\s*\}}?)?",
    re.ASCII | re.IGNORECASE,
)


def _times(gold: str, answer: str) -> tuple[str, str]:
    """The answers with a symbol in place of each time, if the gold answer has times.

    ``H:MM`` in a gold answer may also be a ratio in lowest terms. It is a time if the other answer
    has the same form, unless the minutes are no multiple of five (9:16).
    """
    wanted, given = _times_in(gold), _times_in(answer)
    surely = any(time["half"] or time["minute"][0] == "0" for time in wanted)
    if not wanted or not (surely or (given and not all(map(_may_be_ratio, wanted)))):
        return gold, answer
    if not any(time["half"] for time in wanted + given):
        form = "{hour}h{rest}"
    elif all(map(_names_half, wanted + given)):
        form = "{clock}{half}{rest}"
    else:
        form = "{clock}h{rest}"
    return _with_symbols(gold, form), _with_symbols(answer, form)


def _times_in(text: str) -> list[re.Match[str]]:
    if ":" not in text and "m" not in text.lower():
        return []
    return [time for time in _TIME.finditer(text) if time["minute"] or time["half"]]


def _may_be_ratio(time: re.Match[str]) -> bool:
    minute = int(time["minute"])
    return gcd(int(time["hour"]), minute) == 1 and minute % 5 > 0 and time["second"] is None


def _names_half(time: re.Match[str]) -> bool:
    """Whether a time says a.m. or p.m., or has an hour that only one half of the day has."""
    return time["half"] is not None or not 1 <= int(time["hour"]) <= 12


def _with_symbols(text: str, form: str) -> str:
    def symbol(time: re.Match[str]) -> str:
        if not (time["minute"] or time["half"]):
            return time[0]
        hour, rest = int(time["hour"]), f"{time['minute'] or '00'}{time['second'] or '00'}"
        half = (time["half"] or ("a" if hour < 12 else "p")).lower()
        return f"T_{{{form.format(hour=hour, clock=hour % 12, half=half, rest=rest)}}}"

    return _TIME.sub(symbol, text)


# ---- alternatives --------------------------------------------------------------------------

_OR = re.compile(
    rf"(?:\s|,|{BLANK})*(?:{WRAPPER}\s*\{{\s*or\s*\}}|(?<![A-Za-z\\])or(?![A-Za-z])"
    rf"|\\(?:lor|vee)(?![A-Za-z]))(?:\s|{BLANK})*"
)
_LESS = re.compile(r"\\leq?(?:slant|q)?(?![A-Za-z])|<=|≤")
_MORE = re.compile(r"\\geq?(?:slant|q)?(?![A-Za-z])|>=|≥")
_VARIABLE = re.compile(r"[A-Za-z]|\\(?!pi\b|infty\b)[a-z]+")


def _regions(gold: str, answer: str) -> tuple[str, str]:
    """The answers with unions of intervals in place of ``x<1 or x>2``, where the other is a set."""
    wanted, given = _union(gold), _union(answer)
    if wanted is None and given is None:
        return gold, answer
    if wanted and given:
        return (wanted[1], given[1]) if wanted[0] == given[0] else (gold, answer)
    if wanted:
        return (gold if _has_relation(answer) else wanted[1]), answer
    assert given is not None
    return gold, (answer if _has_relation(gold) else given[1])


def _has_relation(text: str) -> bool:
    return re.search(r"[<>≤≥≠]|\\[lg](?:t|e|eq|eqslant|eqq)(?![A-Za-z])", text) is not None


_BUILDER = re.compile(
    rf"\s*(?:\\left\s*)?\\\{{(?:\s|{BLANK})*(?P<variable>[a-z])\s*"
    rf"(?:\\in\s*(?:\\mathbb\s*\{{?\s*R\s*\}}?|\\R))?(?:\s|{BLANK})*"
    rf"(?:\\mid(?![A-Za-z])|(?:\\middle\s*)?\||:)(?:\s|{BLANK})*"
    rf"(?P<condition>[^|:]+?)(?:\s|{BLANK})*(?:\\right\s*)?\\\}}\s*"
)


def _condition(match: re.Match[str]) -> str:
    """The condition of a set of numbers if it is a relation of the set's variable."""
    condition = match["condition"]
    alone = len(match[0]) == len(match.string) and _has_relation(condition)
    return condition if alone and match["variable"] in _VARIABLE.findall(condition) else match[0]


def _union(text: str) -> tuple[str, str] | None:
    """The variable and the union of alternatives such as ``x<1 or x>2``, or None."""
    parts = _OR.split(text)
    if len(parts) < 2:
        return None
    regions = [_interval(part.strip()) for part in parts]
    variables = {region[0] for region in regions if region}
    if len(variables) > 1 or None in regions or not _has_relation(text):
        return None
    return variables.pop(), r" \cup ".join(region[1] for region in regions if region)


def _interval(part: str) -> tuple[str, str] | None:
    """The variable and the interval of a relation, or None."""
    part = re.sub(r"\\lt(?![A-Za-z])", "<", re.sub(r"\\gt(?![A-Za-z])", ">", part))
    tokens = re.split(r"([<>≤≥=])", _MORE.sub("≥", _LESS.sub("≤", part)))
    sides, signs = [token.strip() for token in tokens[::2]], tokens[1::2]
    if len(signs) == 1 and _VARIABLE.fullmatch(sides[0]):
        sides, signs = sides[::-1], [signs[0].translate(str.maketrans("<>≤≥", "><≥≤"))]
    if len(signs) == 2 and {*signs} <= {">", "≥"}:
        sides = sides[::-1]
        signs = [sign.translate(str.maketrans(">≥", "<≤")) for sign in signs[::-1]]
    if not (1 <= len(signs) <= 2 and _VARIABLE.fullmatch(sides[1]) and all(sides)):
        return None
    low, variable = sides[0], sides[1]
    if len(signs) == 2:
        if not {*signs} <= {"<", "≤"}:
            return None
        left, right = ("(" if signs[0] == "<" else "["), (")" if signs[1] == "<" else "]")
        return variable, f"{left}{low}, {sides[2]}{right}"
    return variable, {
        "<": rf"({low}, \infty)",
        "≤": rf"[{low}, \infty)",
        ">": rf"(-\infty, {low})",
        "≥": rf"(-\infty, {low}]",
        "=": rf"\{{{low}\}}",
    }[signs[0]]


# ---- ratios --------------------------------------------------------------------------------

_TO = re.compile(
    rf"\s*(\d+)(?:\s|{BLANK})*(?:{WRAPPER}\s*\{{\s*to\s*\}}|to)(?:\s|{BLANK})*(\d+)\s*"
)
_RATIO = re.compile(r"(?:[^=<>]*:[^=<>]*=)?\s*([^:;,=<>|]+(?::[^:;,=<>|]+){2,})")


def _ratio(text: str) -> str:
    """A ratio with colons; of three or more terms, a tuple that no common factor changes."""
    if pair := _TO.fullmatch(text):
        return f"{pair[1]}:{pair[2]}"
    match = _RATIO.fullmatch(text) if text.count(":") > 1 else None
    if match is None:
        return text
    first, *others = (term.strip() for term in match[1].split(":"))
    if not first.strip("0.") or not all(others):
        return text
    terms = ", ".join(rf"\frac{{{term}}}{{{first}}}" for term in others)
    return rf"(\text{{ratio}}, {terms})"
