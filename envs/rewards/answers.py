"""Short answers against gold ones: SQuAD's normaliser, exact match and F1.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016), section
6.1; the yes/no rule is HotpotQA's (Yang et al., 2018, official evaluation).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = frozenset({"yes", "no", "noanswer"})


def normalize_answer(text: str) -> str:
    """Lower case; ASCII punctuation deleted; articles left out; single spaces."""
    bare = text.lower().translate(_DELETE_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", bare).split())


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """1.0 where the normalised prediction is one of the normalised golds, else 0.0."""
    return float(normalize_answer(prediction) in {normalize_answer(gold) for gold in golds})


def f1(prediction: str, golds: Sequence[str]) -> float:
    """The best F1 of word overlap over the golds, in [0, 1].

    "yes", "no" and "noanswer" are right or wrong: part of an answer that contains one of them,
    where the other does not equal it, earns nothing.
    """
    return max(_f1(normalize_answer(prediction), normalize_answer(gold)) for gold in golds)


def _f1(prediction: str, gold: str) -> float:
    if prediction != gold and (prediction in _CLOSED or gold in _CLOSED):
        return 0.0
    predicted, wanted = prediction.split(), gold.split()
    shared = sum((Counter(predicted) & Counter(wanted)).values())
    if shared == 0:
        return 0.0
    return 2 * shared / (len(predicted) + len(wanted))
