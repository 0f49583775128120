"""The ``dense`` backend: exact nearest-neighbour search over sentence embeddings.

Needs the extra ``pip install 'turnwise[dense]'``. The index is a folder with memory-mapped vectors
and the passages. A build reads the corpus as a stream; an interrupted build can be resumed.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.references import version_of
from tools.retrieval.corpus import batched, corpus_files, read_corpus
from tools.retrieval.passage import Passage
from tools.retrieval.shards import PASSAGES

DONE = "dense.json"
"""File that is written last. An index without it is not finished."""
_UNDER_WAY = "dense.partial.json"
_VECTORS = "vectors.f32"
BATCH = 256
"""Number of passages that a build embeds at the same time."""
ROWS_AT_ONCE = 65_536
"""Number of passages that a search compares with the queries at the same time."""

Vectors = NDArray[np.float32]
Encoder = Callable[[Sequence[str]], Vectors]
"""A function that embeds texts. Returns an array ``[texts, dimensions]`` with rows of length 1."""


@dataclass(frozen=True, slots=True)
class DenseModel:
    """An embedding model and the prefixes of its queries and passages."""

    name: str
    """Folder or Hugging Face id of a model that sentence-transformers can load."""
    query_prefix: str = ""
    """Text before each query, such as E5's "query: "."""
    passage_prefix: str = ""
    """Text before each passage, such as E5's "passage: "."""


def sentence_encoder(name: str) -> Encoder:
    """The encoder of a sentence-transformers model, loaded again if a file of its folder changed.

    Raises:
        ValueError: sentence-transformers is not installed, or there is no such model.
    """
    files = sorted(Path(name).rglob("*")) if Path(name).is_dir() else []
    return _encoder(name, str([version_of(file) for file in files]))


@lru_cache(maxsize=2)
def _encoder(name: str, _: str) -> Encoder:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ValueError(
            "dense retrieval needs sentence-transformers: pip install 'turnwise[dense]'"
        ) from error
    try:
        model: Any = SentenceTransformer(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"model ({name!r}) cannot be loaded: {error}") from error

    def encode(texts: Sequence[str]) -> Vectors:
        vectors = model.encode(
            list(texts), normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
        )
        return np.asarray(vectors, np.float32)

    return encode


def build_dense(
    source: str | Path,
    folder: str | Path,
    model: DenseModel,
    *,
    on_progress: Callable[[int], None] | None = None,
    encode: Encoder | None = None,
) -> int:
    """Embed a corpus and return its number of passages. Resumes an interrupted call.

    Args:
        source: a corpus; see ``tools.retrieval.corpus``.
        folder: folder of the index.
        model: the embedding model.
        on_progress: called with the number of embedded passages after each batch.
        encode: embeds the passages. If None, ``model`` does.

    Raises:
        ValueError: the folder holds something other than an index of this corpus and model, or the
            corpus has no passages.
    """
    home = Path(folder).expanduser()
    files = [[str(f.resolve()), f.stat().st_size, f.stat().st_mtime] for f in corpus_files(source)]
    about = {"source": files, "model": [model.name, model.query_prefix, model.passage_prefix]}
    sizes = _resume(home, about)
    if sizes is None:
        return int(json.loads((home / DONE).read_text())["num_passages"])
    encode = encode or sentence_encoder(model.name)
    for batch in batched(read_corpus(source, skip=len(sizes)), BATCH):
        lines = [json.dumps([p.id, p.title, p.text]).encode() + b"\n" for p in batch]
        vectors = encode([f"{model.passage_prefix}{p.title} {p.text}".strip() for p in batch])
        # The passages last: their number says how many vectors are whole.
        _append(home / _VECTORS, vectors.astype(np.float32).tobytes())
        _append(home / PASSAGES, b"".join(lines))
        sizes += [len(line) for line in lines]
        about["width"] = vectors.shape[1]
        (home / _UNDER_WAY).write_text(json.dumps(about))
        if on_progress is not None:
            on_progress(len(sizes))
    if not sizes:
        raise ValueError(f"{source}: the corpus has no passages")
    np.save(home / "passage_starts.npy", np.concatenate([[0], np.cumsum(sizes)]))
    (home / DONE).write_text(json.dumps({**about, "num_passages": len(sizes)}))
    return len(sizes)


def _resume(home: Path, about: dict[str, Any]) -> list[int] | None:
    """Reserve the folder. Return the sizes of the embedded passages, or None if all are done."""
    home.mkdir(parents=True, exist_ok=True)
    mark = home / (DONE if (home / DONE).is_file() else _UNDER_WAY)
    if not mark.is_file():
        if any(home.iterdir()):
            raise ValueError(f"{home}: is not empty and holds no index: choose another folder")
        mark.write_text(json.dumps(about))
        return []
    known = json.loads(mark.read_text())
    if any(known[key] != value for key, value in about.items()):
        raise ValueError(
            f"{home}: holds an index of another corpus, model or prefix, or the corpus has changed "
            f"since: choose another folder or remove it"
        )
    if mark.name == DONE:
        return None
    if "width" not in known:
        (home / _VECTORS).unlink(missing_ok=True)
        (home / PASSAGES).unlink(missing_ok=True)
        return []
    about["width"] = known["width"]
    with (home / PASSAGES).open("rb") as file:
        sizes = [len(line) for line in file if line.endswith(b"\n")]
    whole = min(len(sizes), (home / _VECTORS).stat().st_size // (4 * known["width"]))
    os.truncate(home / PASSAGES, sum(sizes[:whole]))
    os.truncate(home / _VECTORS, 4 * known["width"] * whole)
    return sizes[:whole]


def _append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


class Dense:
    """Searches an index of ``build_dense`` by cosine similarity.

    Passages with equal similarity are in the corpus's order.

    Args:
        folder: the index's folder.
        encode: embeds the queries. If None, the model that embedded the passages does.

    Raises:
        ValueError: the folder holds no finished index, or the index's model cannot be loaded.
    """

    def __init__(self, folder: str | Path, *, encode: Encoder | None = None) -> None:
        home = Path(folder).expanduser()
        if not (home / DONE).is_file():
            raise ValueError(f"{folder}: holds no finished dense index")
        about = json.loads((home / DONE).read_text())
        self._model = DenseModel(*about["model"])
        self._encode = encode or sentence_encoder(self._model.name)
        shape = (int(about["num_passages"]), int(about["width"]))
        self._vectors = np.memmap(home / _VECTORS, np.float32, "r", shape=shape)
        self._starts = np.load(home / "passage_starts.npy", mmap_mode="r")
        self._passages = home / PASSAGES

    def __len__(self) -> int:
        return len(self._vectors)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The ``k`` most similar passages for each query, best first, however low the similarity.

        Raises:
            ValueError: ``k`` is less than 1.
        """
        if k < 1:
            raise ValueError(f"k ({k}) must be >= 1")
        if not queries:
            return []
        return await asyncio.to_thread(self._find, queries, k)

    def _find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        asked = self._encode([self._model.query_prefix + query for query in queries])
        places = np.empty((len(queries), 0), np.intp)
        scores = np.empty((len(queries), 0), np.float32)
        for first in range(0, len(self), ROWS_AT_ONCE):
            rows = self._vectors[first : first + ROWS_AT_ONCE]
            here = np.broadcast_to(np.arange(first, first + len(rows)), (len(queries), len(rows)))
            places = np.hstack([places, here])
            scores = np.hstack([scores, asked @ rows.T])
            best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            places = np.take_along_axis(places, best, axis=1)
            scores = np.take_along_axis(scores, best, axis=1)
        return [
            [self._passage(int(place), float(score)) for place, score in zip(*found, strict=True)]
            for found in zip(places, scores, strict=True)
        ]

    def _passage(self, number: int, score: float) -> Passage:
        start, end = int(self._starts[number]), int(self._starts[number + 1])
        with self._passages.open("rb") as file:
            file.seek(start)
            name, title, text = json.loads(file.read(end - start))
        return Passage(name, text, title, score)
