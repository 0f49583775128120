"""Tasks from rows in the layout of MBPP or of HumanEval, recognised by their columns.

MBPP (``text`` or ``prompt``, ``test_list``; arXiv:2108.07732): the first assertion is shown in the
prompt and is the public test; all of them grade. HumanEval (``prompt``, ``test``, ``entry_point``;
arXiv:2107.03374): the prompt is the start of a program, which the answer completes or writes anew;
the only thing public is whether the program loads.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from envs.code.task import CodeTask
from envs.datasets import load_rows, split_of
from tools.sandbox import AssertTest

_HUMAN_EVAL = ("prompt", "test", "entry_point")
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_DEFINED = re.compile(r"^def\s+(\w+)", re.MULTILINE)


@cache
def row_tasks(source: str | Path, split: str) -> list[CodeTask]:
    """The tasks of one split of a file, folder or hub id; see ``envs.datasets`` for both.

    A source is read once per process: every episode makes an environment.

    Raises:
        ValueError: the rows are of neither layout, one is broken, or none is in the split.
        DatasetUnavailable: the hub does not give it.
    """
    return tasks_from_rows(load_rows(source), split, str(source))


def tasks_from_rows(
    rows: Iterable[Mapping[str, Any]], split: str, source: str = "rows"
) -> list[CodeTask]:
    """The tasks of those rows that belong to ``split``.

    Raises:
        ValueError: as :func:`row_tasks`.
    """
    tasks, counts = [], dict[str, int]()
    for number, row in enumerate(rows, 1):
        where = f"{source}, row {number}"
        task = _task(row, where)
        belongs = split_of(row, str(row["task_id"]), where)
        counts[belongs] = counts.get(belongs, 0) + 1
        if belongs == split:
            tasks.append(task)
    if not tasks:
        raise ValueError(f"{source}: no rows in split {split!r}; it has {counts}")
    return tasks


def _task(row: Mapping[str, Any], where: str) -> CodeTask:
    has = set(row)
    if not {"task_id"} <= has:
        raise ValueError(f"{where}: no column 'task_id'; it has {', '.join(row)}")
    if has >= set(_HUMAN_EVAL):
        return _human_eval(row)
    if "test_list" in has and has & {"text", "prompt"}:
        return _mbpp(row, where)
    raise ValueError(
        f"{where}: columns {', '.join(row)} are neither MBPP's (task_id, text or prompt, "
        f"test_list) nor HumanEval's (task_id, {', '.join(_HUMAN_EVAL)})"
    )


def _mbpp(row: Mapping[str, Any], where: str) -> CodeTask:
    tests = [str(test) for test in row["test_list"]]
    if not tests:
        raise ValueError(f"{where}, column test_list: expected at least one assertion")
    setup = row.get("test_setup_code") or "\n".join(row.get("test_imports") or ())
    graded = tuple(AssertTest(test, setup) for test in tests)
    text = row["text"] if "text" in row else row["prompt"]
    return CodeTask(
        prompt=f"{text}\nYour program must pass this test:\n{tests[0]}",
        entry_point=_entry_point(tests, row.get("code") or "", where),
        public=graded[:1],
        hidden=graded,
        reference=row.get("code"),
    )


def _entry_point(tests: Sequence[str], code: str, where: str) -> str:
    """The function that every assertion calls: the reference's own where there is one.

    A reference may take the name of a builtin function; without one, such names are passed over.
    """
    always = set.intersection(*(set(_CALLED.findall(test)) for test in tests))
    names = [name for name in _DEFINED.findall(code) if name in always]
    names += [
        name for name in _CALLED.findall(tests[0]) if name in always and name not in vars(builtins)
    ]
    if not names:
        raise ValueError(f"{where}, column test_list: no function is called by every assertion")
    return str(names[0])


def _human_eval(row: Mapping[str, Any]) -> CodeTask:
    prompt, entry_point = str(row["prompt"]), str(row["entry_point"])
    solution = row.get("canonical_solution")
    return CodeTask(
        prompt=f"Complete this Python program:\n```python\n{prompt.rstrip()}\n```",
        entry_point=entry_point,
        # It passes if the program loads, and says why if it does not.
        public=(AssertTest("pass"),),
        # Some tests call helpers that the prompt defines.
        hidden=(AssertTest(f"{row['test']}\ncheck({entry_point})", setup=prompt),),
        # The prompt ends in a docstring, so it is a program already: what follows may go on with
        # the function's body, or define the function again.
        prelude=prompt,
        reference=solution,
    )
