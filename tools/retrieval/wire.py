"""The three wire formats of published retrievers: reading and writing requests and responses.

- ``search-r1``: POST /retrieve {"queries", "topk", "return_scores"} gives {"result": [[...]]}. Each
  passage is {"document": {"id", "contents"}, "score"}, or only the document if the request asks for
  no scores.
- ``re-search``: POST /batch_search {"query": [...], "top_n", "return_score"} gives [[{"id",
  "contents"}]], or a pair of this list and the scores if the request asks for scores.
- ``r1-searcher``: POST /queries {"queries", "k"} gives {"queries", "answers": [[text, ...]]}.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tools.retrieval.corpus import contents_of, passage_of
from tools.retrieval.passage import Passage

Found = list[list[Passage]]
"""For each query, the list of found passages."""
Json = Any

_LINE_NUMBER = re.compile(r"^\d+\t")
"""Number at the start of a text. R1-Searcher's server returns whole lines of its corpus, and
R1-Searcher's trainer removes this number."""
MOST_PASSAGES = 1000
"""Maximum number of passages per query that a request can ask for."""


@dataclass(frozen=True, slots=True)
class Wire:
    """One wire format. Reading data of another format raises ValueError, KeyError or TypeError."""

    name: str
    path: str
    default_k: int
    """Number of passages per query that the original server returns if the request does not state a
    number."""
    ask: Callable[[Sequence[str], int], Json]
    """Makes a request's body from the queries and k."""
    read: Callable[[Json], Found]
    """Reads the passages from a response's body."""
    asked: Callable[[Mapping[str, Json]], tuple[Json, Json]]
    """Reads the queries and k (None if not stated) from a request's body."""
    answer: Callable[[Mapping[str, Json], Found], Json]
    """Makes a response's body from the request's body and the found passages."""


def _document(passage: Passage) -> dict[str, str]:
    return {"id": passage.id, "contents": contents_of(passage)}


def _passage(document: Json, score: float = 0.0) -> Passage:
    if isinstance(document, str):
        # Nothing names it: the same text gets the same name.
        name = hashlib.blake2b(document.encode(), digest_size=8).hexdigest()
        return replace(passage_of({"contents": document, "id": name}, 0, ""), score=score)
    return replace(passage_of(document, 0, "a document of the response"), score=score)


def _read_search_r1(body: Json) -> Found:
    return [
        [
            _passage(item["document"], float(item["score"]))
            if "document" in item
            else _passage(item)
            for item in items
        ]
        for items in body["result"]
    ]


def _answer_search_r1(body: Mapping[str, Json], found: Found) -> Json:
    if not body.get("return_scores", False):
        return {"result": [[_document(p) for p in passages] for passages in found]}
    return {
        "result": [
            [{"document": _document(p), "score": p.score} for p in passages] for passages in found
        ]
    }


def _answer_re_search(body: Mapping[str, Json], found: Found) -> Json:
    documents = [[_document(p) for p in passages] for passages in found]
    if not body.get("return_score", False):
        return documents
    return [documents, [[p.score for p in passages] for passages in found]]


def _texts(passages: Sequence[Passage]) -> list[str]:
    return [contents_of(passage) for passage in passages]


SEARCH_R1 = Wire(
    name="search-r1",
    path="/retrieve",
    default_k=3,
    ask=lambda queries, k: {"queries": list(queries), "topk": k, "return_scores": True},
    read=_read_search_r1,
    asked=lambda body: (body["queries"], body.get("topk")),
    answer=_answer_search_r1,
)
RE_SEARCH = Wire(
    name="re-search",
    path="/batch_search",
    default_k=10,
    ask=lambda queries, k: {"query": list(queries), "top_n": k, "return_score": False},
    read=lambda body: [[_passage(document) for document in documents] for documents in body],
    asked=lambda body: (body["query"], body.get("top_n")),
    answer=_answer_re_search,
)
R1_SEARCHER = Wire(
    name="r1-searcher",
    path="/queries",
    default_k=3,
    ask=lambda queries, k: {"queries": list(queries), "k": k},
    read=lambda body: [
        [_passage(_LINE_NUMBER.sub("", str(text))) for text in texts] for texts in body["answers"]
    ],
    asked=lambda body: (body["queries"], body.get("k")),
    answer=lambda body, found: {
        "queries": body["queries"],
        "answers": [_texts(passages) for passages in found],
    },
)
WIRES: Mapping[str, Wire] = {wire.name: wire for wire in (SEARCH_R1, RE_SEARCH, R1_SEARCHER)}
"""Wire formats by name."""


def check_request(wire: Wire, body: Json, default_k: int | None) -> tuple[list[str], int]:
    """Return the queries and k of a request, after checking them.

    Raises:
        ValueError: the body has another format. The message states the expected one.
    """
    try:
        queries, k = wire.asked(body)
    except (KeyError, TypeError, AttributeError) as error:
        example = wire.ask(["..."], 3)
        raise ValueError(f"expected a body such as {example}; missing or wrong: {error}") from error
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise ValueError("the queries must be a list of texts")
    k = (default_k or wire.default_k) if k is None else k
    if not isinstance(k, int) or not 1 <= k <= MOST_PASSAGES:
        raise ValueError(f"the number of passages ({k}) must be from 1 to {MOST_PASSAGES}")
    return queries, k
