"""The first half of building an index: passages counted shard by shard, so that it can resume.

A shard is a file that appears whole or not at all: who is interrupted goes on behind the last.
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
    """What is known of some thousand passages that follow one another."""

    terms: NDArray[np.int32]
    """Of each posting (a term in a passage), the term; ascending."""
    passages: NDArray[np.int32]
    """Of each posting, the passage's number in the corpus; ascending within a term."""
    counts: NDArray[np.int32]
    """Of each posting, how often."""
    lengths: NDArray[np.int32]
    """Words of each passage."""
    sizes: NDArray[np.int64]
    """Bytes of each passage in the file of passages."""
    ids: NDArray[np.bytes_]
    """Of each passage."""
    new_terms: NDArray[np.uint8]
    """Terms that no shard before has, as a JSON list."""


class ShardWriter:
    """Shards in a folder, and the file of passages beside it.

    Args:
        folder: of the index; its ``shards`` holds what is under way.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "shards"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / PASSAGES
        self.vocabulary: dict[str, int] = {}
        """Term -> number, in the order in which terms were met."""
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
        """The shards that are whole, in order, one in memory at a time."""
        for path in sorted(self._folder.glob("*.npz")):
            with np.load(path) as arrays:
                yield Shard(**{name: arrays[name] for name in arrays.files})

    def add(self, passages: Sequence[Passage]) -> None:
        """Count some passages and keep them."""
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
        """Remove the shards; the passages stay."""
        for path in self._folder.iterdir():
            path.unlink()
        self._folder.rmdir()

    def _numbers(self, passage: Passage) -> Iterable[int]:
        vocabulary = self.vocabulary
        for term in tokenize(f"{passage.title} {passage.text}"):
            yield vocabulary.setdefault(term, len(vocabulary))
