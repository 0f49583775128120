r"""Problems from rows in the layout of GSM8K, MATH or verl, recognised by their columns.

GSM8K (``question``, ``answer``; arXiv:2110.14168): the gold answer follows the last ``####``. MATH
(``problem``, ``solution``; arXiv:2103.03874): it is in the solution's last ``\boxed``, or in a
column ``answer`` where there is one (MATH-500). verl: ``envs.adapters.verl_rows``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from envs.adapters.verl_rows import is_verl, plain_row
from envs.datasets import Row, load_rows
from envs.math.task import MathTask
from envs.rewards.format import last_boxed
from envs.splits import Dataset, arrange

_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")


@cache
def load_problems(source: str) -> Dataset[MathTask]:
    """The problems of a file, folder or hub id; see ``envs.datasets``.

    A source is read once per process: every episode makes an environment.

    Raises:
        ValueError: the rows are of neither layout, or one is broken.
        DatasetUnavailable: the hub does not give it.
    """
    return problems_from(load_rows(source), source)


def problems_from(rows: Iterable[Row], source: str = "rows") -> Dataset[MathTask]:
    """As :func:`load_problems`, of rows.

    Raises:
        ValueError: as :func:`load_problems`.
    """
    found = []
    for given in rows:
        row = plain_row(given) if is_verl(given) else given
        task = _task(row)
        found.append((row, task.question, task))
    return arrange(found, source)


def _task(row: Row) -> MathTask:
    has = set(row.columns)
    if has >= {"question", "ground_truth"}:
        return MathTask(_text(row, "question"), _text(row, "ground_truth").strip(), row.where)
    if has >= {"problem", "answer"}:
        return MathTask(_text(row, "problem"), _text(row, "answer").strip(), row.where)
    if has >= {"problem", "solution"}:
        boxed = last_boxed(_text(row, "solution"))
        if not boxed:
            raise ValueError(
                rf"{row.where}, column solution: no \boxed{{...}} with an answer in it"
            )
        return MathTask(_text(row, "problem"), boxed, row.where)
    if has >= {"question", "answer"}:
        return MathTask(_text(row, "question"), _after_hashes(row), row.where)
    raise ValueError(
        f"{row.where}: columns {', '.join(row.columns) or 'none'} are neither GSM8K's (question, "
        f"answer) nor MATH's (problem, and solution or answer) nor verl's (prompt, reward_model)"
    )


def _after_hashes(row: Row) -> str:
    _, found, gold = _text(row, "answer").rpartition("####")
    gold = gold.strip()
    if not found or not gold:
        raise ValueError(f"{row.where}, column answer: expected the answer behind '####'")
    return gold.replace(",", "") if _THOUSANDS.fullmatch(gold) else gold


def _text(row: Row, column: str) -> str:
    value = row.columns[column]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{row.where}, column {column}: expected a text, got {value!r:.40}")
    return value
