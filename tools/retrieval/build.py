"""Builds an index for the ``bm25`` backend. The corpus can be larger than memory.

The index has the format of the package bm25s (method "bm25+"), so bm25s can open the index as well.
The same folder holds the passages and a table of terms. ``BM25`` searches the table on disk, so an
index opens fast.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tools.retrieval.corpus import batched, corpus_files, read_corpus
from tools.retrieval.passage import Passage
from tools.retrieval.shards import ShardWriter

K1, B, DELTA = 1.5, 0.75, 1.0
"""Parameters k1, b and delta of BM25+, with the values of the package rank-bm25."""
SHARD_SIZE = 50_000
"""Number of passages that a build holds in memory at the same time."""
FORMAT = 2
"""Version of the index: its files, and the terms of a text."""
DONE = "turnwise.json"
"""Name of the file that a build writes last. An index without this file is not finished."""
_SOURCE = "source.json"

OnProgress = Callable[[int], None]
"""A callback. Its argument is the number of passages indexed so far."""


def term_hashes(terms: list[str]) -> NDArray[np.uint64]:
    """A 64-bit hash of each term."""
    digests = b"".join(hashlib.blake2b(t.encode(), digest_size=8).digest() for t in terms)
    return np.frombuffer(digests, np.uint64)


def build_index(
    source: str | Path,
    folder: str | Path,
    *,
    on_progress: OnProgress | None = None,
    shard_size: int = SHARD_SIZE,
) -> int:
    """Index a corpus and return its number of passages. Resumes an interrupted call.

    Args:
        source: a corpus; see ``tools.retrieval.corpus``.
        folder: folder of the index. If it holds a finished index of the same corpus, nothing is
            done.
        on_progress: called after each shard.
        shard_size: number of passages in memory at the same time.

    Raises:
        ValueError: the folder holds something other than an index of this corpus, the corpus has
            changed, two passages have the same id, or no passage has a word.
    """
    home = Path(folder).expanduser()
    corpus = [[str(f.resolve()), f.stat().st_size, f.stat().st_mtime] for f in corpus_files(source)]
    _claim(home, corpus)
    if (home / DONE).is_file():
        return int(json.loads((home / DONE).read_text())["num_passages"])
    writer = ShardWriter(home)
    _count(writer, read_corpus(source, skip=writer.num_passages), shard_size, on_progress)
    return _finish(home, writer)


def index_passages(passages: Iterator[Passage], folder: str | Path) -> int:
    """Index the passages of an iterator. An interrupted call cannot be resumed.

    Raises:
        ValueError: see :func:`build_index`.
    """
    home = Path(folder).expanduser()
    _claim(home, [])
    writer = ShardWriter(home)
    if writer.num_passages:
        raise ValueError(f"{folder}: holds an index under way: choose another folder")
    _count(writer, passages, SHARD_SIZE, None)
    return _finish(home, writer)


def _claim(home: Path, corpus: list[list[object]]) -> None:
    """Reserve the folder for this corpus, or raise if the folder is not free for it."""
    home.mkdir(parents=True, exist_ok=True)
    mark, source = home / _SOURCE, {"format": FORMAT, "corpus": corpus}
    if mark.is_file():
        if json.loads(mark.read_text()) != source:
            raise ValueError(
                f"{home}: holds an index of another corpus or format, or the corpus has changed: "
                f"choose another folder or remove it"
            )
    elif any(home.iterdir()):
        raise ValueError(f"{home}: is not empty and holds no index: choose another folder")
    mark.write_text(json.dumps(source))


def _count(
    writer: ShardWriter,
    passages: Iterator[Passage],
    shard_size: int,
    on_progress: OnProgress | None,
) -> None:
    for batch in batched(passages, shard_size):
        writer.add(batch)
        if on_progress is not None:
            on_progress(writer.num_passages)


def _finish(home: Path, writer: ShardWriter) -> int:
    """Write the index from the shards' counts; return the number of passages."""
    num_terms, num_passages = len(writer.vocabulary), writer.num_passages
    if num_terms == 0:
        raise ValueError("no passage of the corpus has a word: nothing can be found")
    frequencies = np.zeros(num_terms, np.int64)
    num_words = 0
    for shard in writer.shards():
        frequencies += np.bincount(shard.terms, minlength=num_terms)
        num_words += int(shard.lengths.sum(dtype=np.int64))
    idf = np.log((num_passages + 1) / frequencies).astype(np.float32)
    starts = np.concatenate([[0], np.cumsum(frequencies)]).astype(np.int64)
    _write_postings(home, writer, idf, starts, num_words / num_passages)
    np.save(home / "indptr.csc.index.npy", starts)
    np.save(home / "nonoccurrence_array.index.npy", idf * np.float32(DELTA))
    _write_passage_table(home, writer)
    _write_terms(home, writer.vocabulary)
    params = {"k1": K1, "b": B, "delta": DELTA, "method": "bm25+", "idf_method": "bm25+"}
    params |= {"dtype": "float32", "int_dtype": "int32", "num_docs": num_passages}
    # With "numpy", bm25s's results do not depend on the machine.
    params |= {"version": "0.3.0", "backend": "numpy"}
    (home / "params.index.json").write_text(json.dumps(params, indent=2))
    about = {"format": FORMAT, "num_passages": num_passages, "num_terms": num_terms}
    (home / DONE).write_text(json.dumps(about))
    writer.remove()
    return num_passages


def _write_postings(
    home: Path,
    writer: ShardWriter,
    idf: NDArray[np.float32],
    starts: NDArray[np.int64],
    mean_length: float,
) -> None:
    """Write each posting's score, ordered by term, to bm25s's arrays on disk."""
    shape = (int(starts[-1]),)
    scores = np.lib.format.open_memmap(home / "data.csc.index.npy", "w+", np.float32, shape)
    numbers = np.lib.format.open_memmap(home / "indices.csc.index.npy", "w+", np.int32, shape)
    filled = starts[:-1].copy()
    first = 0
    for shard in writer.shards():
        tf = shard.counts.astype(np.float32)
        length = shard.lengths[shard.passages - first] / mean_length
        share = (K1 + 1) * tf / (K1 * (1 - B + B * length) + tf)
        counts = np.bincount(shard.terms, minlength=len(idf))
        # A posting's index: the term's filled postings, plus its rank among those of the shard.
        begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
        places = filled[shard.terms] + np.arange(len(shard.terms)) - begins[shard.terms]
        # bm25s adds idf * delta for each query term at search time, shared or not.
        scores[places] = idf[shard.terms] * share
        numbers[places] = shard.passages
        filled += counts
        first += len(shard.lengths)
    scores.flush()
    numbers.flush()


def _write_passage_table(home: Path, writer: ShardWriter) -> None:
    """Write each passage's offset in the file of passages, and each passage's rank by id."""
    sizes, ids = list[NDArray[np.int64]](), list[NDArray[np.bytes_]]()
    for shard in writer.shards():
        sizes.append(shard.sizes)
        ids.append(shard.ids)
    np.save(home / "passage_starts.npy", np.concatenate([[0], np.cumsum(np.concatenate(sizes))]))
    names = np.concatenate(ids)
    order = np.argsort(names, kind="stable")
    ordered = names[order]
    repeated = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(repeated):
        name = ordered[repeated[0]].decode()
        raise ValueError(f"passage id {name!r} is used more than once: make ids unique")
    places = np.empty(len(order), np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    np.save(home / "id_order.npy", places)


def _write_terms(home: Path, vocabulary: dict[str, int]) -> None:
    """Write each term's number, by the term's hash for ``BM25`` and by the term for bm25s."""
    hashes = term_hashes(list(vocabulary))
    order = np.argsort(hashes)
    if np.any(hashes[order][1:] == hashes[order][:-1]):
        raise ValueError(f"{home}: two terms have the same hash: leave one passage out")
    np.save(home / "term_hashes.npy", hashes[order])
    np.save(home / "term_numbers.npy", order.astype(np.int32))
    (home / "vocab.index.json").write_text(json.dumps(vocabulary, ensure_ascii=False), "utf-8")
