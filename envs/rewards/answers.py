"""Comparison of short answers with gold answers: exact match, F1, cover match, Jaccard index.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016), section 6.1.
The rule for yes and no is HotpotQA's (Yang et al., 2018, official evaluation). Texts are normalised
before the comparison, by the normaliser of SQuAD or of R1-Searcher.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)
_BLANK_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation + "‘’´", " "))
_BOOLEANS = {"True": "yes", "False": "no"}
_CLOSED = frozenset({"yes", "no", "noanswer"})

Normalizer = Callable[[str], str]
"""A function from an answer to its normalised form."""


def normalize_answer(text: str) -> str:
    """SQuAD's normaliser: lower case, no ASCII punctuation, no articles, single spaces."""
    bare = text.lower().translate(_DELETE_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", bare).split())


def searcher_normalize(text: str) -> str:
    """R1-Searcher's normaliser.

    It differs from SQuAD's in three ways: punctuation becomes a space, True becomes yes, and False
    becomes no. "well-known" is therefore two words here and one in SQuAD (arXiv:2503.05592, the
    authors' reward servers).
    """
    bare = _BOOLEANS.get(text, text).lower().translate(_BLANK_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", bare).split())


NORMALIZERS: dict[str, Normalizer] = {"squad": normalize_answer, "r1-searcher": searcher_normalize}
"""Normalisers by their names in rubrics."""


def exact_match(
    prediction: str, golds: Sequence[str], normalize: Normalizer = normalize_answer
) -> float:
    """1.0 if the normalised prediction equals a normalised gold, otherwise 0.0."""
    return float(normalize(prediction) in {normalize(gold) for gold in golds})


def f1(prediction: str, golds: Sequence[str], normalize: Normalizer = normalize_answer) -> float:
    """The highest F1 of word overlap between the prediction and any gold, in [0, 1].

    "yes", "no" and "noanswer" earn no partial credit: if the prediction or the gold is one of them
    and the two differ, F1 is 0.
    """
    return max(_f1(normalize(prediction), normalize(gold)) for gold in golds)


def cover_match(
    prediction: str, golds: Sequence[str], normalize: Normalizer = searcher_normalize
) -> float:
    """1.0 if the prediction contains every word of a gold, in any order, otherwise 0.0.

    This is R1-Searcher's cover exact match (arXiv:2503.05592, stage 1). A gold without words gives
    0.
    """
    words = set(normalize(prediction).split())
    covers = (set(normalize(gold).split()) for gold in golds)
    return float(any(cover and cover <= words for cover in covers))


def jaccard(prediction: str, golds: Sequence[str]) -> float:
    """The best Jaccard index over the golds: the share of common words among all words, in [0, 1].

    This is the rule-based soft reward of Crossing the Reward Bridge (arXiv:2503.23829). It compares
    sets of lower-case words without punctuation; articles are kept. Two texts without words have 0.
    """
    predicted = _words(prediction)
    return max(_index(predicted, _words(gold)) for gold in golds)


def _words(text: str) -> set[str]:
    return set(text.lower().translate(_DELETE_PUNCTUATION).split())


def _index(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other) if one | other else 0.0


def _f1(prediction: str, gold: str) -> float:
    if prediction != gold and (prediction in _CLOSED or gold in _CLOSED):
        return 0.0
    predicted, wanted = prediction.split(), gold.split()
    shared = sum((Counter(predicted) & Counter(wanted)).values())
    if shared == 0:
        return 0.0
    return 2 * shared / (len(predicted) + len(wanted))
