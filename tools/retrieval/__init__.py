"""Finding passages: one protocol, and backends that answer it."""

from tools.retrieval.bm25 import BM25
from tools.retrieval.build import build_index
from tools.retrieval.passage import Passage, Retriever
from tools.retrieval.rank_bm25 import RankBM25

__all__ = ["BM25", "Passage", "RankBM25", "Retriever", "build_index"]
