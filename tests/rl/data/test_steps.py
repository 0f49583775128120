"""Solutions with labelled steps: what a line may be, and where steps end."""

from __future__ import annotations

import json

import pytest

from rl.data.split import split_by_prompt
from rl.data.steps import read_steps


@pytest.fixture
def read(tmp_path):
    def read(*rows):
        path = tmp_path / "steps.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_steps(str(path))

    return read


@pytest.fixture(scope="module")
def renderer(toy_model):
    from transformers import AutoTokenizer

    from agents.renderer import Renderer

    return Renderer(AutoTokenizer.from_pretrained(toy_model))


def test_the_steps_of_one_answer_end_with_their_lines(read, renderer):
    [steps] = read({"prompt": "0", "completions": ["1 2", "0"], "labels": [True, 0.25]})
    tokens = steps.tokenized(renderer)
    tokens.segment.check()
    assert tokens.labels == (1.0, 0.25)
    ids = tokens.segment.token_ids
    first, last = tokens.ends
    assert renderer.text(ids[: first + 1]).endswith("1 2\n")
    assert (last, ids[last]) == (len(ids) - 1, renderer.end_token_ids[0])
    start = renderer.start([{"role": "user", "content": "0"}])
    assert ids == [*start, *renderer.splice("1 2\n"), *renderer.splice("0"), ids[-1]]
    assert tokens.segment.loss_mask == [0] * len(start) + [1] * (len(ids) - len(start))


def test_turns_are_steps(read, renderer):
    said = [("user", "0"), ("assistant", "1"), ("user", "2"), ("assistant", "00")]
    messages = [{"role": role, "content": text} for role, text in said]
    [steps] = read({"messages": messages, "labels": [0, 1]})
    tokens = steps.tokenized(renderer)
    ids, (first, last) = tokens.segment.token_ids, tokens.ends
    assert ids[first] == ids[last] == renderer.end_token_ids[0]
    assert tokens.segment.turn_ids[first] == 0
    assert last == len(ids) - 1


def test_solutions_of_a_prompt_are_held_out_together(read):
    rows = [{"prompt": f"{i % 5}", "completions": [f"{i}"], "labels": [1]} for i in range(20)]
    learned, held_out = split_by_prompt(read(*rows), 0.2, seed=0)
    assert (len(learned), len(held_out)) == (16, 4)
    assert not {s.prompt for s in learned} & {s.prompt for s in held_out}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "q", "completions": ["a"], "labels": [1, 0]}, "for each of 1"),
        ({"prompt": "q", "completions": ["a"], "labels": [1.5]}, "labels ([1.5]) must be"),
        ({"prompt": "q", "completions": ["a", ""], "labels": [1, 0]}, "no text, or an empty one"),
        ({"prompt": "q", "completions": [], "labels": []}, "no text, or an empty one"),
        ({"prompt": "q", "labels": []}, "'completions'"),
    ],
)
def test_a_line_that_is_no_solution_is_named(read, row, why):
    with pytest.raises(ValueError) as error:
        read({"prompt": "q", "completions": ["a"], "labels": [1]}, row)
    assert "steps.jsonl, line 2: expected {" in str(error.value)
    assert why in str(error.value)


def test_a_file_without_solutions_is_refused(read, tmp_path):
    with pytest.raises(ValueError, match="holds no solution"):
        read()
    with pytest.raises(ValueError, match="must be a file of JSON lines"):
        read_steps(str(tmp_path / "none"))
