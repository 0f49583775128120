"""The first half of building an index: counts the terms of passages, shard by shard.

A shard is a file with the counts of consecutive passages. The file appears only when it is
complete, so an interrupted build resumes after the last shard.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tools.retrieval.passage import Passage
from tools.retrieval.tokenizer import tokenize

PASSAGES = "passages.jsonl"


@dataclass(frozen=True, slots=True)
class Shard:
    """Counts of terms in up to ``SHARD_SIZE`` consecutive passages.

    A posting is the occurrence of a term in a passage.
    """

    terms: NDArray[np.int32]
    """Number of each posting's term, in ascending order."""
    passages: NDArray[np.int32]
    """The number of each posting's passage in the corpus, ascending within a term."""
    counts: NDArray[np.int32]
    """Number of times that each posting's term occurs in the posting's passage."""
    lengths: NDArray[np.int32]
    """Number of words in each passage."""
    sizes: NDArray[np.int64]
    """Number of bytes of each passage in the file of passages."""
    ids: NDArray[np.bytes_]
    """Id of each passage."""
    new_terms: NDArray[np.uint8]
    """Terms that no earlier shard has, as a JSON list."""


class ShardWriter:
    """Writes shards, and the file of passages, to the folder of an index.

    Args:
        folder: the index's folder. Its subfolder ``shards`` holds the shards until the index is
            finished.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "shards"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / PASSAGES
        self.vocabulary: dict[str, int] = {}
        """For each term, its number. Terms are numbered in the order of their first occurrence."""
        self.num_passages = 0
        num_bytes = 0
        for shard in self.shards():
            for term in json.loads(shard.new_terms.tobytes()):
                self.vocabulary[term] = len(self.vocabulary)
            self.num_passages += len(shard.lengths)
            num_bytes += int(shard.sizes.sum())
        self._file.touch()
        # What an interrupted shard wrote is written again.
        os.truncate(self._file, num_bytes)

    def shards(self) -> Iterator[Shard]:
        """Yield the complete shards in order, one in memory at a time."""
        for path in sorted(self._folder.glob("*.npz")):
            with np.load(path) as arrays:
                yield Shard(**{name: arrays[name] for name in arrays.files})

    def add(self, passages: Sequence[Passage]) -> None:
        """Append passages to the file of passages, and write their terms' counts as a shard."""
        lines = [json.dumps([p.id, p.title, p.text]).encode() + b"\n" for p in passages]
        with self._file.open("ab") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        first_new = len(self.vocabulary)
        words = [np.fromiter(self._numbers(passage), np.int64) for passage in passages]
        lengths = np.array([len(numbers) for numbers in words], np.int32)
        # Term and passage in one number: sorted, they are in the order of postings.
        pairs = np.concatenate(words) * len(passages) + np.arange(len(passages)).repeat(lengths)
        distinct, counts = np.unique(pairs, return_counts=True)
        terms, places = np.divmod(distinct, len(passages))
        new_terms = json.dumps(list(self.vocabulary)[first_new:]).encode()
        shard = Shard(
            terms=terms.astype(np.int32),
            passages=(places + self.num_passages).astype(np.int32),
            counts=counts.astype(np.int32),
            lengths=lengths,
            sizes=np.array([len(line) for line in lines], np.int64),
            ids=np.array([p.id.encode() for p in passages], np.bytes_),
            new_terms=np.frombuffer(new_terms, np.uint8),
        )
        name = f"{len(list(self._folder.glob('*.npz'))):06d}"
        partial = self._folder / f"{name}.partial"
        with partial.open("wb") as opened:
            np.savez(opened, **cast(Any, asdict(shard)))
            opened.flush()
            os.fsync(opened.fileno())
        partial.rename(self._folder / f"{name}.npz")
        self.num_passages += len(passages)

    def remove(self) -> None:
        """Remove the shards. The passages are kept."""
        for path in self._folder.iterdir():
            path.unlink()
        self._folder.rmdir()

    def _numbers(self, passage: Passage) -> Iterable[int]:
        vocabulary = self.vocabulary
        for term in tokenize(f"{passage.title} {passage.text}", characters=True):
            yield vocabulary.setdefault(term, len(vocabulary))
