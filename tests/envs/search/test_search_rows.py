"""search-qa-v0 over rows of published layouts, and over retrievers elsewhere."""

from __future__ import annotations

import gzip
import json
import re

import pytest

import envs
from envs import EnvFailure
from envs.datasets import load_rows
from envs.play import play
from envs.search.protocol import PROTOCOLS
from envs.search.rows import load_questions, questions_from
from tools.builtin.search import search_tool
from tools.retrieval import HttpRetriever, RankBM25, build_index
from tools.retrieval.serve import serving

PAIRS = [["Ann", ["Ann is a friend ", "of Bob."]], ["Bob", ["Bob was born in Rome."]]]
COLUMNS = {"title": ["Ann", "Bob"], "sentences": [["Ann is a friend ", "of Bob."], PAIRS[1][1]]}
FACTS = {"title": ["Ann", "Bob", "Bob"], "sent_id": [0, 0, 1]}
BASE = {"id": "q1", "question": "Where was Ann's friend born?", "answer": "Rome"}
HOTPOT = {**BASE, "context": COLUMNS, "supporting_facts": FACTS}
MUSIQUE = {
    **BASE,
    "paragraphs": [
        {
            "idx": 0,
            "title": "Ann",
            "paragraph_text": "Ann is a friend of Bob.",
            "is_supporting": True,
        },
        {
            "idx": 1,
            "title": "Bob",
            "paragraph_text": "Bob was born in Rome.",
            "is_supporting": True,
        },
        {"idx": 2, "title": "Cid", "paragraph_text": "Cid is nobody.", "is_supporting": False},
    ],
    "answer_aliases": ["Roma"],
    "answerable": True,
}
LISTS = [["Ann", 0], ["Bob", 0], ["Bob", 1]]
TEXTS = [("Ann", "Ann is a friend of Bob."), ("Bob", "Bob was born in Rome.")]


def read(*rows):
    return questions_from(load_rows([{"split": "test", **row} for row in rows]))


@pytest.mark.parametrize(
    "row",
    [
        HOTPOT,
        {**BASE, "context": PAIRS, "supporting_facts": LISTS},
        {**BASE, "context": json.dumps(PAIRS), "supporting_facts": json.dumps(LISTS)},
        {
            **BASE,
            "context": [{"title": t, "sentences": s} for t, s in PAIRS],
            "supporting_facts": [{"title": t, "sent_id": s} for t, s in LISTS],
        },
        {
            **BASE,
            "context": {"title": ["Ann", "Bob"], "content": COLUMNS["sentences"]},
            "supporting_facts": FACTS,
        },
        {
            "id": "q1",
            "question": BASE["question"],
            "golden_answers": ["Rome"],
            "metadata": {"context": COLUMNS, "supporting_facts": FACTS, "level": "hard"},
        },
        {**MUSIQUE, "answer_aliases": []},
    ],
)
def test_layouts_with_paragraphs(row):
    found = read(row)
    [task] = found.data.split("test")
    assert (task.question, task.answers, task.titles, task.hops) == (
        BASE["question"],
        ("Rome",),
        ("Ann", "Bob"),
        2,
    )
    assert [(p.title, p.text) for p in found.passages][:2] == TEXTS


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"question": "q", "answer": ["14 December 1972 UTC", "December 1972"]}, 2),
        (
            {
                "question": "q",
                "question_id": "tc_1",
                "answer": {"value": "December 1972", "aliases": ["Dec 1972", "December 1972"]},
            },
            2,
        ),
        ({"Question": "q", "Answer": "December 1972"}, 1),
        ({"id": "test_0", "question": "q", "golden_answers": ["December 1972", "12/72"]}, 2),
        ({"question": "q", "answer": "December 1972", "answer_aliases": ["12/72"]}, 2),
        ({"question": "q", "golden_answers": ["December 1972", 1972, 1972.0, "1972", 7.5]}, 3),
    ],
)
def test_layouts_without_paragraphs(row, answers):
    found = read(row)
    [task] = found.data.split("test")
    assert task.question == "q" and len(task.answers) == answers
    assert "December 1972" in task.answers
    assert (task.titles, tuple(found.passages)) == ((), ())


def test_paragraphs_of_many_rows_are_there_once_and_unanswerable_rows_are_not():
    found = read(HOTPOT, {**MUSIQUE, "id": "q2"}, {**MUSIQUE, "id": "q3", "answerable": False})
    assert len(found.data.splits["test"]) == 2
    assert [p.title for p in found.passages] == ["Ann", "Bob", "Cid"]
    assert len({p.id for p in found.passages}) == 3


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {"question": None, "answer": "a"},
            "row 1: expected a text in column 'question'; got None",
        ),
        ({"answer": "a"}, "row 1: expected a text in column 'question'; it has split, answer"),
        ({"question": "q"}, "row 1: expected answers in column 'answer'"),
        ({"question": "q", "answer": []}, "expected answers"),
        ({**BASE, "context": {"title": ["Ann"]}}, "column context: expected titles with sentences"),
        ({**BASE, "context": "no JSON"}, "row 1, column context"),
        ({**BASE, "context": [["Ann", 3]]}, "expected sentences, got 3"),
        (
            {**BASE, "supporting_facts": [3]},
            "column supporting_facts: expected titles with sent_id",
        ),
    ],
)
def test_a_broken_row_is_named(row, says):
    with pytest.raises(ValueError, match=says):
        read(row)


@pytest.fixture(scope="module")
def hotpot(tmp_path_factory):
    """HotpotQA's layout: 24 rows, each with its two pages and eight others' pages."""
    names = [f"{first}{second}" for first in ("Ka", "Lo", "Mi", "Nu") for second in "bdfgkl"]
    pages = {}
    for place, name in enumerate(names):
        town = f"Town{place}"
        pages[name] = [f"{name} is a painter. ", f"{name} was born in {town}."]
        pages[town] = [f"{town} is a town by the river {name}ra."]
    titles = list(pages)
    path = tmp_path_factory.mktemp("rows") / "hotpotqa.jsonl.gz"
    with gzip.open(path, "wt") as file:
        for place, name in enumerate(names):
            chosen = [titles[(2 * place + i) % len(titles)] for i in range(10)]
            row = {
                "id": f"id{place}",
                "question": f"By which river is the town where {name} was born?",
                "answer": f"{name}ra" if place else "yes",
                "type": "bridge",
                "level": "hard",
                "supporting_facts": {"title": [name, f"Town{place}"], "sent_id": [1, 0]},
                "context": {"title": chosen, "sentences": [pages[title] for title in chosen]},
                "split": ("train", "validation", "test")[place % 3],
            }
            file.write(json.dumps(row) + "\n")
    return str(path)


@pytest.mark.parametrize("syntax", list(PROTOCOLS))
def test_the_reference_scores_f1_of_1_in_each_syntax(hotpot, syntax):
    env = envs.make("search-qa", tasks=hotpot, split="test", syntax=syntax, top_n=3)
    for task in range(len(env.tasks)):
        played = play(env, env.gold_policy(), task=task)
        scores = played.steps[-1].info["scores"]
        assert (scores["f1"], scores["em"], scores["num_searches"]) == (1.0, 1.0, 2.0)
        assert played.reward == env.reward_range[1]
        assert len(played.steps[0].observation.splitlines()) >= 3
    env.close()


@pytest.mark.parametrize("syntax", list(PROTOCOLS))
def test_the_title_of_a_page_is_seen(hotpot, syntax):
    env = envs.make("search-qa", tasks=hotpot, split="test", syntax=syntax)
    title = env.tasks[0].titles[0]
    forms = {"r1-searcher": f"(1)Title: {title} Text:  ", "search-r1": f"Doc 1(Title: {title}) "}
    observation = play(env, env.gold_policy(), task=0).steps[0].observation
    assert forms.get(syntax, f'"{title}"\n') in observation
    env.close()


def test_rows_keep_the_contract(hotpot):
    env = envs.make("search-qa", tasks=hotpot)
    assert len(envs.check_env(env).tasks) == 3
    with pytest.raises(NotImplementedError, match="no imperfect author"):
        env.demonstrator(None)
    env.close()


def test_a_split_without_rows_is_named(hotpot, tmp_path):
    path = tmp_path / "nq-open-dev.jsonl"
    path.write_text(json.dumps({"question": "q", "answer": ["a"]}))
    assert len(load_questions(str(path)).data.split("validation")) == 1
    with pytest.raises(ValueError, match=r"no rows in split 'test'; it has .'validation': 1"):
        envs.make("search-qa", tasks=str(path), split="test")


async def test_passages_from_an_index_and_from_a_server(hotpot, tmp_path):
    passages = load_questions(hotpot).passages
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(
        "".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n" for p in passages)
    )
    build_index(corpus, tmp_path / "index")
    seen = []
    async with serving(RankBM25(passages)) as address:
        index = str(tmp_path / "index")
        # The last one asks the world's questions of that index.
        for tasks, retriever in (
            (hotpot, ""),
            (hotpot, index),
            (hotpot, address),
            ("world", index),
        ):
            env = envs.make("search-qa", tasks=tasks, retriever=retriever, split="test")
            await env.areset(seed=0, options={"task": 1})
            seen.append((await env.astep("<search> painter Kab </search>")).observation)
            await env.aclose()
    assert (
        seen[0]
        == seen[1]
        == seen[2]
        == seen[3]
        == ' <result>\n"Kab"\nKab is a painter. Kab was born in Town0.\n</result>'
    )


def test_the_worlds_own_passages_have_titles_in_search_r1s_form_alone():
    for syntax, form in (("search-r1", r"Doc 1\(Title: [^)]+\) "), ("re-search", r'"[^"]+"\n')):
        env = envs.make("search-qa", split="test", syntax=syntax)
        observation = play(env, env.gold_policy(), task=0).steps[0].observation
        assert bool(re.search(form, observation)) == (syntax == "search-r1")
        env.close()


async def test_an_unreachable_retriever_is_no_reward():
    async with HttpRetriever("http://127.0.0.1:9", timeout_s=0.3) as unreachable:
        env = envs.make("search-qa", services={"search": search_tool(unreachable)})
        await env.areset(seed=0)
        with pytest.raises(EnvFailure, match=r"retriever at http://127\.0\.0\.1:9/") as failure:
            await env.astep("<search> sport of Bako </search>")
        assert failure.value.retryable
        await env.areset(seed=0)
        mistaken = await env.astep("<search> </search>")
        assert mistaken.info["tool_calls"][0].error == "the query is empty"
        await env.aclose()


async def test_rows_without_paragraphs_need_a_retriever(tmp_path):
    path = tmp_path / "nq.jsonl"
    path.write_text(json.dumps({"question": "q", "answer": ["a"], "split": "test"}))
    env = envs.make("search-qa", tasks=str(path), split="test")
    await env.areset(seed=0)
    with pytest.raises(ValueError, match="bring no passages along: say where they are"):
        await env.astep("<search> x </search>")
    await env.aclose()
