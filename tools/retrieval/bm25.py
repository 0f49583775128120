"""The ``bm25`` backend: BM25+ search in an index on disk, which processes can share.

The package bm25s computes the scores by its method "bm25+". The score of a passage d is a sum over
the query's terms t that occur in the library; a term that is repeated in the query counts each
time:

    idf(t) * (delta + (k1 + 1) tf / (k1 (1 - b + b |d| / avgdl) + tf)),  idf(t) = ln((N + 1) / df)

tf is the number of times that t occurs in d, and df the number of passages with t. N is the number
of passages, |d| the number of words in d, and avgdl the mean of |d|. Because tf is 0 for a passage
without t, delta adds the same amount to all passages. In contrast, ``RankBM25`` adds delta only for
passages that contain t, as the paper defines BM25+.
"""

from __future__ import annotations

import asyncio
import json
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.retrieval.build import DONE, FORMAT, term_hashes
from tools.retrieval.passage import Passage
from tools.retrieval.shards import PASSAGES
from tools.retrieval.tokenizer import tokenize


class BM25:
    """Searches an index of ``build_index`` by BM25+. Passages with equal scores are ordered by id.

    Args:
        folder: the index's folder.

    Raises:
        ValueError: the folder holds no finished index, or an index of another format.
    """

    def __init__(self, folder: str | Path) -> None:
        home = Path(folder).expanduser()
        if not (home / DONE).is_file():
            raise ValueError(
                f"{folder}: holds no finished index: python -m tools.retrieval build CORPUS "
                f"{folder}"
            )
        about = json.loads((home / DONE).read_text())
        if about["format"] != FORMAT:
            raise ValueError(
                f"{folder}: its format ({about['format']}) is not {FORMAT}: build it again"
            )
        self._num_passages = int(about["num_passages"])
        self._term_hashes = _mapped(home / "term_hashes.npy")
        self._term_numbers = _mapped(home / "term_numbers.npy")
        self._plus = _mapped(home / "nonoccurrence_array.index.npy")
        self._id_order = _mapped(home / "id_order.npy")
        self._starts = _mapped(home / "passage_starts.npy")
        self._scores = {
            "data": _mapped(home / "data.csc.index.npy"),
            "indices": _mapped(home / "indices.csc.index.npy"),
            "indptr": _mapped(home / "indptr.csc.index.npy"),
            "num_docs": self._num_passages,
        }
        with (home / PASSAGES).open("rb") as file:
            self._texts = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._engine: Any = None

    def __len__(self) -> int:
        return self._num_passages

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most ``k`` passages for each query that share a word with it, best first.

        Raises:
            ValueError: ``k`` is less than 1.
        """
        if k < 1:
            raise ValueError(f"k ({k}) must be >= 1")
        return await asyncio.to_thread(lambda: [self.find(query, k) for query in queries])

    def find(self, query: str, k: int) -> list[Passage]:
        """Search for one query, in this thread; see :meth:`search`."""
        terms = self._terms(tokenize(query))
        if not len(terms):
            return []
        scores: NDArray[np.float32] = self._bm25s().get_scores_from_ids(terms)
        best = self._best(scores, k)
        plus = float(self._plus[terms].sum(dtype=np.float64))
        return [self._passage(int(i), float(scores[i]) + plus) for i in best]

    def _bm25s(self) -> Any:
        """The ``bm25s.BM25`` object with this index's arrays, made at the first call."""
        if self._engine is None:
            # It takes longer to import than an index takes to open.
            import bm25s

            engine = bm25s.BM25(method="bm25+", backend="numpy")
            engine.scores = self._scores
            # What all passages have in common is added to those that are shown.
            engine.nonoccurrence_array = None
            self._engine = engine
        return self._engine

    def _terms(self, words: list[str]) -> NDArray[np.int32]:
        """The term numbers of the words that occur in the library."""
        hashes = term_hashes(words)
        places = np.searchsorted(self._term_hashes, hashes)
        places = np.minimum(places, len(self._term_hashes) - 1)
        known = self._term_hashes[places] == hashes
        numbers: NDArray[np.int32] = self._term_numbers[places[known]]
        return numbers

    def _best(self, scores: NDArray[np.float32], k: int) -> NDArray[np.intp]:
        least = 0.0
        if k < len(scores):
            least = float(np.partition(scores, len(scores) - k)[len(scores) - k])
        # Of all that matches, only what may be among the best k is sorted.
        found = np.flatnonzero(scores >= least if least > 0 else scores > 0)
        order = np.lexsort((self._id_order[found], -scores[found]))
        return found[order[:k]]

    def _passage(self, number: int, score: float) -> Passage:
        line = self._texts[self._starts[number] : self._starts[number + 1]]
        name, title, text = json.loads(line)
        return Passage(name, text, title, score)


def _mapped(path: Path) -> NDArray[Any]:
    """A memory-mapped array as a plain ndarray, because slicing an ``np.memmap`` is slower."""
    array: NDArray[Any] = np.load(path, mmap_mode="r").view(np.ndarray)
    return array
