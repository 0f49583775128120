"""Tasks from rows of MBPP, HumanEval, APPS, LiveCodeBench and verl, recognised by their columns.

- MBPP (``text`` or ``prompt``, ``test_list``; arXiv:2108.07732): the first assertion is in the
  prompt and is the public test; all assertions grade.
- HumanEval (``prompt``, ``test``, ``entry_point``; arXiv:2107.03374): the prompt is the start of a
  program, which the answer completes or repeats; the public test only loads the program.
- APPS (``envs.code.apps``) and verl (``envs.datasets.verl``): the first test is public.
  LiveCodeBench (``envs.datasets.livecodebench``) names its public tests. An agent sees a public
  test only after the agent's program has failed it.
"""

from __future__ import annotations

import ast
import builtins
import re
import site
import symtable
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.machinery import PathFinder

from envs.code.apps import apps_task, is_apps, task_of
from envs.code.task import CodeTask
from envs.datasets import (
    NoAnswer,
    Row,
    is_empty,
    kept_while_unchanged,
    livecodebench,
    load_rows,
    name_of,
)
from envs.datasets.splits import Dataset, arrange
from envs.datasets.verl import is_verl, plain_row
from envs.datasets.verl_code import code_tests
from tools.sandbox import LIVECODEBENCH, AssertTest, Limits

SITE_PACKAGES = """import os, site, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path += site.getsitepackages()
"""
"""Code after which programs in the sandbox can import what is installed for their interpreter. They
see these files anyway. One thread of numpy needs less memory than one for each core."""
_SITE = site.getsitepackages([sys.base_prefix, sys.base_exec_prefix])
_IMPORT = re.compile(r"^[ \t]*(?:import|from)\b", re.MULTILINE)
_HUMAN_EVAL = ("prompt", "test", "entry_point")
_DEFINED = re.compile(r"^def\s+(\w+)", re.MULTILINE)


class MissingPackages(ValueError):
    """Raised when tests of rows import packages that programs in the sandbox cannot import."""


@kept_while_unchanged
def load_tasks(source: str, columns: str = "") -> Dataset[CodeTask]:
    """The tasks of a file, folder or hub id; see ``envs.datasets``.

    A source is read again when its files have changed.

    Raises:
        ValueError: the layout is unknown, a row is malformed, or its tests cannot run
            (``MissingPackages``).
        DatasetUnavailable: the hub is unreachable or has no such data set.
    """
    return tasks_from(load_rows(source, columns=columns), name_of(source))


def tasks_from(rows: Iterable[Row], source: str = "rows") -> Dataset[CodeTask]:
    """The tasks of rows that are already loaded; see :func:`load_tasks`.

    Rows in verl's layout without tests are left out.

    Raises:
        ValueError: as :func:`load_tasks`.
    """
    # Imported here: it takes long to import.
    from tools.sandbox.grading.grade import Submission, check

    found, left_out, num_rows = [], [], 0
    for given in rows:
        num_rows += 1
        try:
            row, task = _read(given)
        except NoAnswer as error:
            left_out.append((given, given.where, str(error)))
            continue
        if task is None:
            continue
        task = _with_packages(task)
        try:
            check(Submission("", task.entry_point or None, Limits(), False), task.hidden)
        except ValueError as error:
            left_out.append((row, _key(row, task), f"{row.where}: {error}"))
        else:
            found.append((row, _key(row, task), task))
    tasks = [task for _, _, task in found]
    check_packages(tasks, source, lambda name: PathFinder.find_spec(name, _SITE) is not None)
    return arrange(found, source, num_rows, left_out)


def check_packages(tasks: Sequence[CodeTask], source: str, has: Callable[[str], bool]) -> None:
    """Check that the tests can import their packages.

    Raises:
        MissingPackages: ``has`` is False for a package.
    """
    packages = sorted(frozenset().union(*(task.packages for task in tasks)))
    if missing := [name for name in packages if not has(name)]:
        count = sum(not task.packages.isdisjoint(missing) for task in tasks)
        raise MissingPackages(
            f"{source}: the tests of {count} of {len(tasks)} tasks import {', '.join(missing)}, "
            f"which the interpreter of the sandbox lacks; programs there see no virtual "
            f"environment. Install into the interpreter itself, on this machine by "
            f"{sys.base_prefix}/bin/python3 -m pip install {' '.join(missing)}, or leave these "
            "rows out"
        )


def _with_packages(task: CodeTask) -> CodeTask:
    """The task, with tests that can import the packages that they need."""
    if not (packages := _packages(task)):
        return task
    public, hidden = (
        tuple(
            replace(test, setup=f"{SITE_PACKAGES}{test.setup}")
            if isinstance(test, AssertTest)
            else test
            for test in tests
        )
        for tests in (task.public, task.hidden)
    )
    return replace(task, packages=frozenset(packages), public=public, hidden=hidden)


def _packages(task: CodeTask) -> set[str]:
    """The modules outside of the standard library that the tests import.

    Imports inside ``try`` do not count: the tests may run without these.
    """
    found: set[str] = set()
    for program in {f"{t.setup}\n{t.code}" for t in task.hidden if isinstance(t, AssertTest)}:
        nodes: list[ast.AST] = [ast.parse(program)] if _IMPORT.search(program) else []
        for node in nodes:
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
            elif not isinstance(node, ast.Try):
                nodes.extend(ast.iter_child_nodes(node))
    return found - sys.stdlib_module_names


def _read(row: Row) -> tuple[Row, CodeTask | None]:
    """A row with the columns of its layout, and its task, or None if the row has no tests."""
    if livecodebench.is_livecodebench(row):
        row, num_public = livecodebench.plain_row(row)
        return row, apps_task(row, LIVECODEBENCH, num_public)
    row = plain_row(row) if is_verl(row) else row
    if is_empty(row.columns.get("ground_truth", "tests elsewhere")):
        raise NoAnswer(f"{row.where}, ground_truth: has no tests")
    return row, apps_task(row) if is_apps(row) else _task(row)


def _key(row: Row, task: CodeTask) -> str:
    """A row's key within its data set."""
    named = row.columns.get("problem_id" if is_apps(row) else "task_id")
    return task.prompt if named is None else str(named)


def _task(row: Row) -> CodeTask:
    has = set(row.columns)
    if has >= {"question", "ground_truth"}:
        entry_point, tests = code_tests(row)
        asserts = [test.code for test in tests if isinstance(test, AssertTest)]
        if asserts:
            _check_python(row, "ground_truth", *asserts)
            entry_point = entry_point or _entry_point(asserts, "", "", row.where)
            return CodeTask(_text(row, "question"), entry_point, tests[:1], tests)
        return task_of(_text(row, "question"), entry_point, tests)
    if not {"task_id"} <= has:
        raise ValueError(
            f"{row.where}: no column 'task_id'; it has {', '.join(row.columns)}; name yours by "
            f'env.columns="task_id=COLUMN ..."'
        )
    if has >= set(_HUMAN_EVAL):
        return _human_eval(row)
    if "test_list" in has and has & {"text", "prompt"}:
        return _mbpp(row)
    raise ValueError(
        f"{row.where}: columns {', '.join(row.columns)} are neither MBPP's (task_id, text or "
        f"prompt, test_list) nor HumanEval's (task_id, {', '.join(_HUMAN_EVAL)}), nor "
        f"APPS' (question, input_output), nor LiveCodeBench's (question_content, "
        f"public_test_cases, private_test_cases), nor verl's (prompt, reward_model); name yours by "
        f'env.columns="task_id=COLUMN text=COLUMN test_list=COLUMN"'
    )


def _text(row: Row, column: str) -> str:
    value = row.columns[column]
    if not isinstance(value, str):
        raise ValueError(f"{row.where}, column {column}: expected a text, got {value!r:.40}")
    return value


def _text_or_nothing(row: Row, column: str) -> str | None:
    return None if row.columns.get(column) is None else _text(row, column)


def _texts(row: Row, column: str) -> list[str]:
    values = row.columns[column]
    if not (isinstance(values, list) and all(isinstance(value, str) for value in values)):
        raise ValueError(
            f"{row.where}, column {column}: expected a list of texts, got {values!r:.40}"
        )
    return values


def _check_python(row: Row, column: str, *programs: str) -> None:
    """Check that programs compile. A test that does not compile would fail every answer."""
    for program in programs:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(program, column, "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"{row.where}, column {column}: not Python ({error})") from error


def _mbpp(row: Row) -> CodeTask:
    tests = _texts(row, "test_list")
    if not tests:
        raise ValueError(f"{row.where}, column test_list: expected at least one assertion")
    setup = _text_or_nothing(row, "test_setup_code") or ""
    if not setup and row.columns.get("test_imports") is not None:
        setup = "\n".join(_texts(row, "test_imports"))
    _check_python(row, "test_list", *(f"{setup}\n{test}" for test in tests))
    graded = tuple(AssertTest(test, setup) for test in tests)
    text = _text(row, "text" if "text" in row.columns else "prompt")
    reference = _text_or_nothing(row, "code")
    return CodeTask(
        prompt=f"{text}\nYour program must pass this test:\n{tests[0]}",
        entry_point=_entry_point(tests, setup, reference or "", row.where),
        public=graded[:1],
        hidden=graded,
        reference=reference,
    )


def _entry_point(tests: Sequence[str], setup: str, code: str, where: str) -> str:
    """The function of the reference that every assertion calls, or the only undefined name.

    "" if there are several: the sandbox then takes every undefined name from the submission.
    """
    called = set.intersection(*map(_called, tests))
    # Only the reference shows that a function has a builtin's name.
    names = [name for name in _DEFINED.findall(code) if name in called]
    names = names or sorted(set().union(*(_undefined(f"{setup}\n{test}") for test in tests)))
    if not names:
        raise ValueError(f"{where}, column test_list: no function is called by every assertion")
    return names[0] if len(names) == 1 else ""


def _undefined(program: str) -> set[str]:
    """Names that a program reads but neither binds nor has as builtins."""
    tables = [symtable.symtable(program, "tests", "exec")]
    for table in tables:
        tables.extend(table.get_children())
    bound = {one.get_name() for one in tables[0].get_symbols() if one.is_assigned()}
    bound |= {one.get_name() for one in tables[0].get_symbols() if one.is_imported()}
    read = (one for table in tables for one in table.get_symbols() if one.is_referenced())
    return {one.get_name() for one in read if one.is_global()} - bound - set(vars(builtins))


def _called(test: str) -> set[str]:
    calls = (node.func for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Call))
    return {function.id for function in calls if isinstance(function, ast.Name)}


def _human_eval(row: Row) -> CodeTask:
    prompt, test, entry_point = (_text(row, column) for column in _HUMAN_EVAL)
    _check_python(row, "prompt", prompt)
    _check_python(row, "test", test)
    return CodeTask(
        prompt=f"Complete this Python program:\n```python\n{prompt.rstrip()}\n```",
        entry_point=entry_point,
        # Passes if the program loads; otherwise the outcome has the error.
        public=(AssertTest("pass"),),
        # Some tests call helpers that the prompt defines.
        hidden=(AssertTest(f"{test}\ncheck({entry_point})", setup=prompt),),
        # The prompt ends with a docstring, so it is a valid program: an answer may continue the
        # function's body or define the function again.
        prelude=prompt,
        reference=_text_or_nothing(row, "canonical_solution"),
    )
