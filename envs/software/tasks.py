"""Generated tasks: a repository with a planted fault, its own tests, and hidden ones."""

from __future__ import annotations

import builtins
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from envs.datasets.generated import DrawnTasks, split_of
from envs.software.faults import Fault, faults
from envs.software.programs import FAMILIES, MAIN, NAMES, Program
from tools.sandbox import CallTest

NUM_VISIBLE, NUM_HIDDEN = 3, 8
_NUM_INPUTS = 40
_MOST_DRAWS = 10_000
_MIN_FAILED = 3
"""Minimum number of inputs on which a fault must show."""
_MIN_DISTINCT = 4
"""Minimum number of different expected values, so that no constant passes."""
_WORDS = ("a", "be", "sun", "tree", "stone", "bridge", "journey", "mountain", "adventure")


@dataclass(frozen=True)
class SoftwareTask:
    """A repository with a fault."""

    program: Program
    fault: Fault
    num_files: int
    visible: tuple[CallTest, ...]
    """Tests in the repository. At least one fails."""
    hidden: tuple[CallTest, ...]
    """Tests that decide the reward. At least two fail."""

    @cached_property
    def modules(self) -> dict[str, str]:
        """The modules with the fault, by path. These files are graded."""
        return self.fault.plant(self.program.files(self.num_files))

    @cached_property
    def files(self) -> dict[str, str]:
        """All files with which the episode starts."""
        return {
            **self.modules,
            "README.md": f"# {self.program.name}\n\n{self.program.sentence}\n\n"
            "Run the tests by `python -m unittest`.\n",
            "tests/__init__.py": "",
            "tests/test_main.py": _test_module(self.program.name, self.visible),
        }


def _test_module(name: str, tests: Sequence[CallTest]) -> str:
    lines = [
        f"    def test_{number}(self):\n"
        f"        self.assertEqual({name}({', '.join(map(repr, test.args))}), {test.expected!r})\n"
        for number, test in enumerate(tests, 1)
    ]
    head = f"import unittest\n\nfrom main import {name}\n\n\nclass Test(unittest.TestCase):\n"
    return head + "\n".join(lines)


def software_tasks(
    split: str, seed: int, num_files: int, kinds: Sequence[str]
) -> DrawnTasks[SoftwareTask]:
    """The tasks of a split. A composition of parts is in one split only, for every seed.

    Args:
        split: "train", "validation" or "test".
        seed: seed of the tasks.
        num_files: number of modules, from 1 to 4.
        kinds: kinds of fault; see ``envs.software.faults``.
    """
    return DrawnTasks(
        f"swe-mini {num_files} {' '.join(kinds)}",
        split,
        seed,
        lambda rng: draw(rng, split, num_files, kinds),
        lambda task: task.program.composition,
    )


def draw(rng: random.Random, split: str, num_files: int, kinds: Sequence[str]) -> SoftwareTask:
    """A random task of a split, whose fault shows in its tests.

    Raises:
        ValueError: programs of this size have no fault of these kinds.
    """
    for _ in range(_MOST_DRAWS):
        program = _draw_program(rng)
        if split_of(program.composition) != split:
            continue
        files = program.files(num_files)
        known = [fault for fault in faults(files) if fault.kind in kinds]
        if not known:
            continue
        kind = rng.choice(sorted({fault.kind for fault in known}))
        fault = rng.choice([one for one in known if one.kind == kind])
        inputs = [_draw_input(rng, program) for _ in range(_NUM_INPUTS)]
        tests = _tests(program, files, fault.plant(files), inputs)
        if tests is not None:
            return SoftwareTask(program, fault, num_files, *tests)
    raise ValueError(f"repositories of {num_files} modules have no fault of {', '.join(kinds)}")


def _draw_program(rng: random.Random) -> Program:
    family = rng.choice(list(FAMILIES))
    parts = FAMILIES[family]
    step = rng.choice(list(parts.steps))
    return Program(
        family,
        rng.choice(list(parts.conditions)),
        step,
        rng.choice(list(parts.reductions)),
        rng.choice(NAMES),
        rng.randint(2, 6),
        rng.randint(2, 5) if "{c}" in parts.steps[step].code else 0,
    )


def _draw_input(rng: random.Random, program: Program) -> tuple[Any, ...]:
    size = rng.randint(2, 5)
    items: list[Any]
    if program.family == "numbers":
        items = [rng.randint(-2, 9) for _ in range(size)]
    else:
        items = [rng.choice(_WORDS) for _ in range(size)]
    return (items,) if rng.random() < 0.5 else (items, rng.randint(2, 7))


def _tests(
    program: Program,
    files: Mapping[str, str],
    faulty: Mapping[str, str],
    inputs: Sequence[tuple[Any, ...]],
) -> tuple[tuple[CallTest, ...], tuple[CallTest, ...]] | None:
    """The visible and the hidden tests, or None if the fault shows too seldom."""
    right, wrong = loaded(files, program.name), loaded(faulty, program.name)
    failed, passed = list[CallTest](), list[CallTest]()
    seen = set[str]()
    for arguments in inputs:
        if repr(arguments) in seen:
            continue
        seen.add(repr(arguments))
        expected = right(*arguments)
        shows = repr(_answer(wrong, arguments)) != repr(expected)
        (failed if shows else passed).append(CallTest(arguments, expected))
    num_passed = min(len(passed), (NUM_VISIBLE + NUM_HIDDEN) // 2)
    if len(failed) < max(_MIN_FAILED, NUM_VISIBLE + NUM_HIDDEN - num_passed):
        return None
    visible = (failed[0], *(passed[:1] or failed[1:2]), failed[2])
    rest = [test for test in (*failed[1:], *passed[:num_passed]) if test not in visible]
    hidden = tuple(rest[: NUM_HIDDEN // 2] + rest[NUM_HIDDEN // 2 - NUM_HIDDEN :])
    if len(hidden) < NUM_HIDDEN or len({repr(t.expected) for t in hidden}) < _MIN_DISTINCT:
        return None
    return visible, hidden


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # a generated fault may raise anything
        return type(error)


def loaded(files: Mapping[str, str], name: str) -> Callable[..., Any]:
    """The function ``name`` of generated modules, which import one another but no other module.

    A module that does not load makes the function raise the reason.
    """
    modules: dict[str, dict[str, Any]] = {}

    def load(module: str, *_: object) -> Any:
        path = f"{module}.py"
        if path not in files:
            raise ImportError(module)
        if module not in modules:
            space = {"__builtins__": {**vars(builtins), "__import__": load}}
            exec(compile(files[path], path, "exec"), space)
            modules[module] = space
        return type("module", (), modules[module])

    def call(*arguments: Any) -> Any:
        load(MAIN.removesuffix(".py"))
        return modules["main"][name](*arguments)

    return call
