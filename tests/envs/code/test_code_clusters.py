"""Programs clustered by what they answer on random inputs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from envs.code.clusters import answers, clusters
from envs.code.task import CodeTask
from tools.sandbox import CallTest, make_sandbox

TASK = CodeTask("Add.", "f", (CallTest(([1, -2],), 3),), (CallTest(([5],), 5),))


def test_sizes_are_counts_of_equal_outputs():
    assert clusters(["A", "A", "B", "A", "C"]) == [[0, 1, 3], [2], [4]]


def test_among_equal_sizes_the_first_found_leads_and_none_is_in_no_cluster():
    assert clusters(["B", None, "A", "A", "B", None]) == [[0, 4], [2, 3]]
    assert clusters([None, None]) == []


@given(st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=12))
def test_every_output_is_in_one_cluster(outputs):
    found = clusters(outputs)
    assert sorted(place for cluster in found for place in cluster) == [
        i for i, o in enumerate(outputs) if o is not None
    ]
    assert all(len({outputs[i] for i in cluster}) == 1 for cluster in found)
    assert [len(c) for c in found] == sorted((len(c) for c in found), reverse=True)


async def test_programs_that_mean_the_same_answer_the_same():
    programs = [
        "def f(xs): return sum(abs(x) for x in xs)",
        "def f(xs): return sum(x if x > 0 else -x for x in xs)",
        "def f(xs): return sum(xs)",
        "def f(xs): return max(xs)",
        "def f(xs): return nothing",
        "def f(xs) return",
    ]
    async with make_sandbox("auto") as sandbox:
        outputs = [await answers(sandbox, TASK, program, 12) for program in programs]
    assert clusters(outputs) == [[0, 1], [2], [3]]
    assert outputs[4] is None and outputs[5] is None
    # max of an empty list raises: that is an answer like any other.
    assert "error" in outputs[3] and "error" not in outputs[0]
    assert len(outputs[0]) == 12


async def test_integers_of_any_length_are_answers():
    programs = ["def f(xs): return 10**5000", "def f(xs): return 10**5000 + 1"]
    async with make_sandbox("auto") as sandbox:
        outputs = [await answers(sandbox, TASK, program, 2) for program in (*programs, programs[0])]
    assert clusters(outputs) == [[0, 2], [1]]


async def test_equal_sets_and_dicts_are_equal_answers():
    programs = [
        "def f(xs): return {'a': {8, 16, 0}, 'b': [1]}",
        "def f(xs): return {'b': [1], 'a': {0, 16, 8}}",
        "def f(xs): return {'b': (1,), 'a': {0, 16, 8}}",
    ]
    async with make_sandbox("auto") as sandbox:
        outputs = [await answers(sandbox, TASK, program, 2) for program in programs]
    assert clusters(outputs) == [[0, 1], [2]]
