"""The ``rank-bm25`` backend: a small reference, for up to about ten thousand passages.

Scores are BM25+ (Lv & Zhai, "Lower-Bounding Term Frequency Normalization", CIKM 2011, eq. 9). The
score of a passage d is a sum over the terms t that the query shares with d; a term that is repeated
in the query counts each time:

    idf(t) * (delta + (k1 + 1) tf / (k1 (1 - b + b |d| / avgdl) + tf)),  idf(t) = ln((N + 1) / df)

with k1 = 1.5, b = 0.75 and delta = 1. tf is the number of times that t occurs in d, df the number
of passages with t, N the number of passages, |d| the number of words in d, and avgdl the mean of
|d|. Unlike the idf of Okapi BM25, this idf is positive even in the smallest library.

The package rank-bm25 itself, and bm25s, sum over all terms of the query, so each term adds idf(t) *
delta to every passage. ``absent_terms=True`` does the same, and then the results equal those of the
backend ``bm25``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from rank_bm25 import BM25Plus

from tools.retrieval.passage import Passage
from tools.retrieval.tokenizer import tokenize


class RankBM25:
    """Searches passages in memory by BM25+. Passages with equal scores are ordered by id.

    Args:
        passages: the passages to search. Their ids must differ.
        absent_terms: whether a query's terms that a passage lacks add to the passage's score.

    Raises:
        ValueError: there are no passages, two have the same id, or no passage has a word.
    """

    def __init__(self, passages: Iterable[Passage], *, absent_terms: bool = False) -> None:
        # Sorted by id, so that a stable sort by score leaves ties in that order.
        self._passages = sorted(passages, key=lambda passage: passage.id)
        repeated = [i for i, n in Counter(p.id for p in self._passages).items() if n > 1]
        if repeated:
            raise ValueError(f"passage id {repeated[0]!r} is used more than once: make ids unique")
        words = [
            tokenize(f"{passage.title} {passage.text}", characters=True)
            for passage in self._passages
        ]
        if not any(words):
            raise ValueError("the library has no passage with a word in it: nothing can be found")
        self._index = BM25Plus(words)
        self._absent_terms = absent_terms
        self._weights: dict[str, tuple[NDArray[np.intp], NDArray[np.float64]]] = {}

    def __len__(self) -> int:
        return len(self._passages)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most ``k`` passages for each query that share a word with it, best first.

        Raises:
            ValueError: ``k`` is less than 1.
        """
        if k < 1:
            raise ValueError(f"k ({k}) must be >= 1")
        return await asyncio.to_thread(lambda: [self._find(query, k) for query in queries])

    def _find(self, query: str, k: int) -> list[Passage]:
        scores, for_all = np.zeros(len(self._passages)), 0.0
        for term in tokenize(query):
            found, weights = self._term(term)
            if self._absent_terms and len(found):
                plus = self._index.idf[term] * self._index.delta
                weights, for_all = weights - plus, for_all + plus
            scores[found] += weights
        # Of all that matches, only what may be among the best k is sorted.
        matches = np.flatnonzero(scores)
        if len(matches) > k:
            least = np.partition(scores[matches], -k)[-k]
            matches = matches[scores[matches] >= least]
        best = matches[np.argsort(-scores[matches], kind="stable")][:k]
        return [replace(self._passages[i], score=float(scores[i]) + for_all) for i in best]

    def _term(self, term: str) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """The indices of the passages with ``term``, and what ``term`` adds to each score."""
        known = self._weights.get(term)
        if known is None:
            if term not in self._index.idf:
                # Unknown words are not remembered: there is no end to them.
                return np.empty(0, np.intp), np.empty(0)
            # The library scores one term at a time, over all passages; the sum is over terms.
            # It gives passages without the term idf * delta, which the formula gives to none.
            scores = self._index.get_scores([term])
            held = np.array([term in counts for counts in self._index.doc_freqs])
            found = np.flatnonzero(held)
            known = self._weights[term] = (found, scores[found])
        return known
