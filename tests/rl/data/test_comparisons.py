"""Files of preferences: what a line may be, which tokens are judged, what is held out."""

from __future__ import annotations

import json

import pytest

from rl.data.comparisons import Pair, from_turn, read_comparisons
from rl.data.split import split_by_prompt


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


@pytest.fixture
def read(tmp_path):
    def read(*rows):
        path = tmp_path / "preferences.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_comparisons(str(path))

    return read


@pytest.fixture(scope="module")
def renderer(toy_model):
    from transformers import AutoTokenizer

    from agents.renderer import Renderer

    return Renderer(AutoTokenizer.from_pretrained(toy_model))


def test_a_pair_in_each_of_its_forms_is_the_same_pair(read):
    explicit = {"prompt": [user("q")], "chosen": [said("a")], "rejected": [said("b")]}
    texts = {"prompt": "q", "chosen": "a", "rejected": "b"}
    implicit = {"chosen": [user("q"), said("a")], "rejected": [user("q"), said("b")]}
    forms = read(explicit, texts, implicit)
    assert forms[0] == forms[1] == forms[2]
    assert [a.exchanges[0].action for a in forms[0].answers] == ["a", "b"]
    assert forms[0].pairs == (Pair(0, 1, 0.0, 1.0),)
    (weighed,) = read(texts | {"margin": 0.5, "label": 0.8})
    assert weighed.pairs == (Pair(0, 1, 0.5, 0.8),)


def test_ranked_completions_are_all_their_pairs_and_ties_are_none(read):
    row = {"prompt": "q", "completions": ["a", "b", [said("c")]], "scores": [2, 1.5, 2]}
    tied = {"prompt": "q", "completions": ["a", "b"], "scores": [1, 1]}
    (comparison,) = read(row, tied)
    assert comparison.pairs == (Pair(0, 1), Pair(2, 1))
    assert len(comparison.answers) == 3


def test_only_the_answers_words_are_judged(read, renderer):
    before = [{"role": "system", "content": "s"}, user("0"), said("1"), user("2")]
    (comparison,) = read({"prompt": before, "chosen": "00", "rejected": "1"})
    assert comparison.first_turn == 1
    tokens = comparison.tokenized(renderer)
    first, second = tokens.segments
    for segment, answer in ((first, "00"), (second, "1")):
        segment.check()
        learned = [t for t, m in zip(segment.token_ids, segment.loss_mask, strict=True) if m]
        assert learned == [*renderer.splice(answer), renderer.end_token_ids[0]]
    assert first.token_ids[:-3] == second.token_ids[:-2], "the prompt"
    assert len(first) == len(second) + 1
    whole = comparison.answers[0].to_segment(renderer)
    assert from_turn(whole, 0) == whole
    assert sum(whole.loss_mask) == 2 + sum(first.loss_mask)


def test_what_answers_begin_with_is_their_prompt(read):
    begun = [user("0"), said("1"), user("2")]
    rows = [
        {"chosen": [*begun, said("a")], "rejected": [*begun, said("b")]},
        # The user's second message depends on what was answered: two turns are the answer's.
        {
            "chosen": [user("0"), said("1"), user("x"), said("a")],
            "rejected": [user("0"), said("1"), user("y"), said("b")],
        },
        {"chosen": [user("0"), said("1")], "rejected": [user("0"), said("1")]},
    ]
    assert [c.first_turn for c in read(*rows)] == [1, 0, 0]


def test_the_weight_of_a_pair_counts_ties(read, renderer):
    row = {"prompt": "q", "completions": list("abcd"), "scores": [1, 1, 1, 0]}
    (comparison,) = read(row)
    tokens = comparison.tokenized(renderer)
    assert (len(tokens.pairs), tokens.weight) == (3, 1 / 6)


def test_a_prompt_is_wholly_held_out_or_not_at_all(read):
    rows = [{"prompt": f"q{i % 10}", "chosen": "a", "rejected": "b" * (1 + i)} for i in range(40)]
    comparisons = read(*rows)
    learned, held_out = split_by_prompt(comparisons, 0.3, seed=1)
    prompts = [
        {c.answers[0].exchanges[0].observation for c in part} for part in (learned, held_out)
    ]
    assert (len(learned), len(held_out)) == (28, 12)
    assert not prompts[0] & prompts[1]
    assert split_by_prompt(comparisons, 0.3, seed=1) == (learned, held_out)
    assert split_by_prompt(comparisons, 0.3, seed=2)[1] != held_out
    # However small the share, something is measured, and however large, something is learned.
    assert len(split_by_prompt(comparisons, 1e-9, seed=0)[1]) == 4
    assert len(split_by_prompt(comparisons, 0.999, seed=0)[0]) == 4
    with pytest.raises(ValueError, match="data has one prompt only"):
        split_by_prompt(read(rows[0]), 0.5, seed=0)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "q", "chosen": "a"}, "'rejected'"),
        ({"chosen": "a", "rejected": "b"}, "no prompt, and no message that all answers begin with"),
        ({"prompt": [said("q")], "chosen": "a", "rejected": "b"}, "the roles are"),
        ({"prompt": "q", "chosen": 3, "rejected": "b"}, "not iterable"),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "label": 1.5}, "label (1.5) must be from"),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "margin": 1e999}, "margin (inf) must be"),
        ({"prompt": "q", "completions": ["a"], "scores": [1]}, "fewer than two completions"),
        ({"prompt": "q", "completions": ["a", "b"], "scores": [1]}, "a number for each of 2"),
        ([], "list indices"),
    ],
)
def test_a_line_that_is_no_comparison_is_named(read, row, why):
    fine = {"prompt": "q", "chosen": "a", "rejected": "b"}
    with pytest.raises(ValueError) as error:
        read(fine, row)
    assert "preferences.jsonl, line 2: expected {" in str(error.value)
    assert why in str(error.value)


def test_a_file_without_preferences_is_refused(read, tmp_path):
    with pytest.raises(ValueError, match="prefers no answer to another: every line is a tie"):
        read({"prompt": "q", "completions": ["a", "b"], "scores": [1, 1]})
    with pytest.raises(ValueError, match="must be a file of JSON lines"):
        read_comparisons(str(tmp_path / "none"))
