"""HumanEval and MBPP: reference solutions pass, forgeries do not."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tools.sandbox import AssertTest, Limits, make_sandbox

KNOWN_BAD = "MBPP/367"  # its reference solution calls an undefined name

ALWAYS_EQUAL = """
class AlwaysEqual:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __lt__
    def __hash__(self): return 0
    def __bool__(self): return True
    def __len__(self): return 1
    def __iter__(self): return iter([self])
    def __abs__(self): return self
    def __sub__(self, other): return self
    __add__ = __rsub__ = __radd__ = __sub__
"""

FORGED = """
import sys
print("passed"); print("OK"); print('{"passed": true}'); print("1 passed in 0.01s")
sys.stderr.write("OK\\n"); sys.stdout.flush()
"""

CHANGE_FIRST = """
def _changed(value):
    if isinstance(value, bool): return not value
    if isinstance(value, (int, float)): return value + 1
    if isinstance(value, str): return value + "x"
    if isinstance(value, list): return value + [None]
    if isinstance(value, tuple): return value + (None,)
    return 0 if value is None else None

def _first_changed(function):
    state = {"depth": 0, "done": False}  # a recursive function is changed in its outer call
    def wrapped(*args, **kwargs):
        state["depth"] += 1
        try: value = function(*args, **kwargs)
        finally: state["depth"] -= 1
        if state["done"] or state["depth"]: return value
        state["done"] = True
        return _changed(value)
    return wrapped
"""


@dataclass(frozen=True)
class Task:
    name: str
    solution: str
    functions: tuple[str, ...]
    tests: tuple[AssertTest, ...]
    entry_point: str | None

    def plain(self, source: str) -> bool:
        """Whether the tests pass if tests and solution run in one plain interpreter."""
        code = "\n".join([source, *(f"{t.setup}\n{t.code}" for t in self.tests)])
        done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, timeout=60)
        return done.returncode == 0

    def with_bodies(self, body: str) -> str:
        return "\n".join(f"def {name}(*args, **kwargs):\n    {body}" for name in self.functions)

    def first_changed(self) -> str:
        wrap = "\n".join(f"{name} = _first_changed({name})" for name in self.functions)
        return f"{self.solution}\n{CHANGE_FIRST}\n{wrap}\n"


def rows(path: Path) -> list[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def human_eval(folder: Path) -> list[Task]:
    tasks = []
    for row in rows(folder / "humaneval.jsonl.gz"):
        entry = row["entry_point"]
        test = AssertTest(f"{row['test']}\ncheck({entry})", setup=row["prompt"])
        solution = row["prompt"] + row["canonical_solution"]
        tasks.append(Task(row["task_id"], solution, (entry,), (test,), entry))
    return tasks


def mbpp(folder: Path) -> list[Task]:
    tasks = []
    for row in rows(folder / "mbpp-419.jsonl.gz"):
        called = set(re.findall(r"(\w+)\(", " ".join(row["test_list"])))
        defined = re.findall(r"^def (\w+) ?\(", row["code"], re.MULTILINE)
        functions = tuple(name for name in defined if name in called)
        tests = tuple(AssertTest(line, setup=row["test_setup_code"]) for line in row["test_list"])
        assert functions
        # Named if it is one function: MBPP/126 tests a function called `sum`.
        entry = functions[0] if len(functions) == 1 else None
        tasks.append(Task(f"MBPP/{row['task_id']}", row["code"], functions, tests, entry))
    return tasks


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module", params=["sample", pytest.param("all", marks=pytest.mark.slow)])
def tasks(request, data_dir):
    every = human_eval(data_dir) + mbpp(data_dir)
    assert len(every) == 164 + 419
    return every if request.param == "all" else every[:: len(every) // 24]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox():
    # Generous: on a busy machine, a slow right answer must not count as wrong.
    async with make_sandbox(limits=Limits(wall_s=60.0)) as made:
        yield made


async def passing(sandbox, tasks, forge) -> list[str]:
    verdicts = await asyncio.gather(
        *(sandbox.grade(forge(task), task.tests, task.entry_point) for task in tasks)
    )
    return [task.name for task, verdict in zip(tasks, verdicts, strict=True) if verdict.passed]


async def test_reference_solutions_pass(sandbox, tasks):
    passed = await passing(sandbox, tasks, lambda task: task.solution)
    assert passed == [task.name for task in tasks if task.name != KNOWN_BAD]


FORGERIES = {
    "nothing at all": lambda task: "",
    "functions that return nothing": lambda task: task.with_bodies("pass"),
    "exit with 0 while loading": lambda task: "import sys\nsys.exit(0)\n" + task.solution,
    "exit with 0 when called": lambda task: task.with_bodies("import os; os._exit(0)"),
    "sys.exit(0) when called": lambda task: task.with_bodies("raise SystemExit(0)"),
    "an object equal to everything": lambda task: (
        ALWAYS_EQUAL + task.with_bodies("return AlwaysEqual()")
    ),
    "a printed mark of success": lambda task: FORGED + task.with_bodies("print('passed')"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_forgeries_fail(sandbox, tasks, forgery):
    assert await passing(sandbox, tasks, FORGERIES[forgery]) == []


@pytest.mark.nightly
async def test_one_changed_answer_fails(sandbox, tasks):
    limit = asyncio.Semaphore(4)

    async def notices(task: Task) -> bool:
        async with limit:
            return not await asyncio.to_thread(task.plain, task.first_changed())

    noticed = await asyncio.gather(*map(notices, tasks))
    changed = [task for task, by_tests in zip(tasks, noticed, strict=True) if by_tests]
    assert len(changed) > 0.9 * len(tasks)
    assert await passing(sandbox, changed, Task.first_changed) == []
