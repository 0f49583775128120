"""Data sets whose rows become tasks."""

from envs.datasets.files import SUFFIXES, DatasetUnavailable
from envs.datasets.rows import NoAnswer, Row, is_empty, load_rows, name_of, parse_columns
from envs.datasets.splits import ALL, SPLITS, Dataset, EmptySplit, arrange, split_of
from tools.references import kept_while_unchanged

__all__ = [
    "ALL",
    "SPLITS",
    "SUFFIXES",
    "Dataset",
    "DatasetUnavailable",
    "EmptySplit",
    "NoAnswer",
    "Row",
    "arrange",
    "is_empty",
    "kept_while_unchanged",
    "load_rows",
    "name_of",
    "parse_columns",
    "split_of",
]
