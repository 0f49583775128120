"""Finding passages: one protocol, and backends that answer it."""

from tools.retrieval.passage import Passage, Retriever
from tools.retrieval.rank_bm25 import RankBM25

__all__ = ["Passage", "RankBM25", "Retriever"]
