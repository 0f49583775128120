"""Problems from rows of data sets; :mod:`envs.math.layouts` reads a row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from envs.datasets import NoAnswer, Row, kept_while_unchanged, load_rows, name_of
from envs.datasets.splits import Dataset, arrange
from envs.datasets.verl import is_verl, report_own_prompts
from envs.math.answer_format import asks_for_answer
from envs.math.gold_answers import unverifiable
from envs.math.layouts import task_of, unwrapped
from envs.math.task import MathTask

OWN_INSTRUCTIONS = "question=prompt ground_truth=reward_model.ground_truth"
"""Value of the option ``columns`` with which math-v0 reads verl's rows and adds its own answer
format to every prompt."""


@kept_while_unchanged
def load_problems(source: str, columns: str = "") -> Dataset[MathTask]:
    """The problems of a source of ``envs.datasets``.

    A source is read again when its files have changed.

    Raises:
        ValueError: a row's layout is unknown, or the row is malformed.
        DatasetUnavailable: the hub is unreachable or has no such data set.
    """
    return problems_from(load_rows(source, columns=columns), name_of(source))


def problems_from(rows: Iterable[Row], source: str = "rows") -> Dataset[MathTask]:
    """The problems of rows that are already loaded; see :func:`load_problems`.

    Rows without a gold answer, or with one that cannot be verified, are left out.
    ``Dataset.split`` reports their number.

    Raises:
        ValueError: as :func:`load_problems`, or no row has a gold answer.
    """
    found, without, num_rows = list[tuple[Row, str, MathTask]](), list[tuple[Row, str, str]](), 0
    for given in rows:
        row = unwrapped(given)
        num_rows += 1
        try:
            task = task_of(row)
        except NoAnswer as error:
            without.append((row, row.where, str(error)))
            continue
        own_prompt = is_verl(given) and asks_for_answer(task.question)
        found.append((row, task.question, replace(task, own_prompt=own_prompt)))
    bad = unverifiable(task.answer for _, _, task in found)
    without += [
        (row, key, f"{task.where}: math-verify cannot read the gold answer {task.answer!r:.60}")
        for row, key, task in found
        if task.answer in bad
    ]
    found = [one for one in found if one[2].answer not in bad]
    num_own = sum(task.own_prompt for _, _, task in found)
    report_own_prompts(num_own, num_rows, source, "math-v0", OWN_INSTRUCTIONS)
    return arrange(found, source, num_rows, without)
