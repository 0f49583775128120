"""Retrieval of passages: the protocol ``Retriever`` and the backends that implement it."""

from tools.retrieval.bm25 import BM25
from tools.retrieval.build import build_index, index_passages
from tools.retrieval.dense import Dense, DenseModel, build_dense
from tools.retrieval.http import HttpRetriever
from tools.retrieval.opening import open_retriever
from tools.retrieval.passage import Passage, Retriever
from tools.retrieval.rank_bm25 import RankBM25

__all__ = [
    "BM25",
    "Dense",
    "DenseModel",
    "HttpRetriever",
    "Passage",
    "RankBM25",
    "Retriever",
    "build_dense",
    "build_index",
    "index_passages",
    "open_retriever",
]
