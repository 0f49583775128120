"""The bm25 backend: bm25s's scores, against the small reference and bm25s itself."""

from __future__ import annotations

import gzip
import json

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Plus

from tools.retrieval import BM25, Passage, RankBM25
from tools.retrieval.build import build_index, index_passages
from tools.retrieval.tokenizer import tokenize

WORDS = [f"w{i}" for i in range(300)]


def random_passages(count: int, seed: int = 0) -> list[Passage]:
    rng = np.random.default_rng(seed)
    numbers = rng.zipf(1.3, size=(count, 40)) % len(WORDS)
    lengths = rng.integers(3, 41, size=count)
    return [
        Passage(str(i), " ".join(WORDS[w] for w in row[:length]), WORDS[int(row[-1])])
        for i, (row, length) in enumerate(zip(numbers, lengths, strict=True))
    ]


def queries(count: int, seed: int = 1) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=int(rng.integers(1, 6)))) for _ in range(count)]


@pytest.fixture(scope="module")
def passages():
    return random_passages(1500)


@pytest.fixture(scope="module")
def folder(passages, tmp_path_factory):
    home = tmp_path_factory.mktemp("index") / "bm25"
    assert index_passages(iter(passages), home) == 1500
    return home


def test_scores_are_rank_bm25s_and_ties_go_by_id(passages, folder):
    ordered = sorted(passages, key=lambda p: p.id)
    reference = BM25Plus([tokenize(f"{p.title} {p.text}") for p in ordered])
    library = BM25(folder)
    for query in queries(60):
        terms = [term for term in tokenize(query) if term in reference.idf]
        scores = reference.get_scores(terms)
        shares = {i for i, counts in enumerate(reference.doc_freqs) if counts.keys() & set(terms)}
        by_score = sorted(shares, key=lambda i: (-round(float(scores[i]), 5), ordered[i].id))
        found = library.find(query, 20)
        assert [p.id for p in found] == [ordered[i].id for i in by_score[:20]]
        assert [p.score for p in found] == pytest.approx(
            [scores[i] for i in by_score[:20]], abs=1e-4
        )


async def test_the_small_backend_answers_the_same(passages, folder):
    library, small = BM25(folder), RankBM25(passages, absent_terms=True)
    asked = [*queries(60, seed=2), "unknown", "", "w1 w1 w2"]
    for ours, theirs in zip(
        await library.search(asked, 7), await small.search(asked, 7), strict=True
    ):
        assert [p.id for p in ours] == [p.id for p in theirs]
        assert [p.score for p in ours] == pytest.approx([p.score for p in theirs], abs=1e-4)
        assert [(p.title, p.text) for p in ours] == [(p.title, p.text) for p in theirs]


def test_bm25s_opens_the_index_and_answers_the_same(passages, folder):
    theirs = bm25s.BM25.load(folder, mmap=True)
    library = BM25(folder)
    for query in queries(40, seed=3):
        terms = [t for t in tokenize(query) if t in theirs.vocab_dict]
        numbers, scores = theirs.retrieve([terms], k=10, show_progress=False)
        found = library.find(query, 10)
        assert [p.score for p in found] == pytest.approx(scores[0].tolist(), abs=1e-4)
        # What ties with the tenth is theirs to choose.
        sure = [int(n) for n, s in zip(numbers[0], scores[0], strict=True) if s > scores[0][-1]]
        assert {p.id for p in found} >= {str(n) for n in sure}


def test_an_index_made_by_bm25s_has_the_same_scores(passages, folder):
    made = bm25s.BM25(method="bm25+", k1=1.5, b=0.75, delta=1.0, backend="numpy")
    made.index([tokenize(f"{p.title} {p.text}") for p in passages], show_progress=False)
    library = BM25(folder)
    for query in queries(40, seed=4):
        terms = [t for t in tokenize(query) if t in made.vocab_dict]
        scores = made.get_scores(terms)
        for found in library.find(query, 10):
            assert found.score == pytest.approx(float(scores[int(found.id)]), abs=1e-4)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("uvwxyz"), min_size=1, max_size=6), min_size=1, max_size=8),
    st.lists(st.sampled_from("uvwxyzq"), max_size=4),
    st.integers(1, 9),
)
def test_it_agrees_with_the_small_backend_on_any_library(tmp_path_factory, texts, words, k):
    # Most are ties: one-letter words, short passages.
    made = [Passage(str(97 * i % 10), " ".join(text)) for i, text in enumerate(texts)]
    home = tmp_path_factory.mktemp("any") / "index"
    index_passages(iter(made), home)
    query = " ".join(words)
    ours, theirs = BM25(home).find(query, k), RankBM25(made, absent_terms=True)._find(query, k)
    assert [p.score for p in ours] == pytest.approx([p.score for p in theirs], abs=1e-4)
    assert {p.id for p in ours if p.score > ours[-1].score + 1e-4} == {
        p.id for p in theirs if p.score > theirs[-1].score + 1e-4
    }


def write(path, rows):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def rows(passages):
    return [{"id": p.id, "title": p.title, "text": p.text} for p in passages]


def test_shards_make_no_difference(passages, folder, tmp_path):
    seen: list[int] = []
    source = write(tmp_path / "corpus.jsonl.gz", rows(passages))
    count = build_index(source, tmp_path / "index", on_progress=seen.append, shard_size=400)
    assert (count, seen) == (1500, [400, 800, 1200, 1500])
    for name in ("data", "indices", "indptr"):
        one, other = (np.load(h / f"{name}.csc.index.npy") for h in (folder, tmp_path / "index"))
        assert np.array_equal(one, other), name
    assert not (tmp_path / "index" / "shards").exists()
    assert (folder / "passages.jsonl").read_bytes() == (
        tmp_path / "index" / "passages.jsonl"
    ).read_bytes()


def test_an_interrupted_build_goes_on_behind_the_last_whole_shard(passages, folder, tmp_path):
    source, home = write(tmp_path / "corpus.jsonl", rows(passages)), tmp_path / "index"

    class Interrupted(Exception):
        pass

    def after_two(done: int) -> None:
        if done == 800:
            raise Interrupted

    with pytest.raises(Interrupted):
        build_index(source, home, on_progress=after_two, shard_size=400)
    with pytest.raises(ValueError, match="no finished index"):
        BM25(home)
    # A shard that was cut off: its passages are there in part, the shard itself is not.
    with (home / "passages.jsonl").open("ab") as file:
        file.write(b'["800", "half')
    (home / "shards" / "000002.partial").write_bytes(b"half")
    seen: list[int] = []
    assert build_index(source, home, on_progress=seen.append, shard_size=400) == 1500
    assert seen == [1200, 1500]
    assert (home / "passages.jsonl").read_bytes() == (folder / "passages.jsonl").read_bytes()
    assert np.array_equal(
        np.load(home / "data.csc.index.npy"), np.load(folder / "data.csc.index.npy")
    )
    seen.clear()
    assert build_index(source, home, on_progress=seen.append) == 1500 and not seen, "it is finished"


def test_a_folder_belongs_to_one_corpus(passages, tmp_path):
    source = write(tmp_path / "corpus.jsonl", rows(passages[:20]))
    build_index(source, tmp_path / "index")
    # An index whose terms an older version made is not resumed.
    mark = tmp_path / "index" / "source.json"
    source_of = json.loads(mark.read_text())
    mark.write_text(json.dumps(source_of | {"format": 1}))
    with pytest.raises(ValueError, match="of another corpus or format"):
        build_index(source, tmp_path / "index")
    mark.write_text(json.dumps(source_of))
    write(source, rows(passages[:30]))
    with pytest.raises(ValueError, match="of another corpus or format, or the corpus has changed"):
        build_index(source, tmp_path / "index")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no index"):
        build_index(source, tmp_path / "other")


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ([Passage("1", "a fox"), Passage("1", "a dog")], "id '1' is used more than once"),
        ([Passage("1", "of the")], "no passage of the corpus has a word"),
        ([], "no passage of the corpus has a word"),
    ],
)
def test_a_corpus_that_cannot_be_an_index(made, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        index_passages(iter(made), tmp_path / "index")


async def test_k_is_at_least_one(folder):
    with pytest.raises(ValueError, match=r"k \(0\) must be >= 1"):
        await BM25(folder).search(["w1"], 0)
    assert len(BM25(folder)) == 1500
    assert len(BM25(folder).find(" ".join(WORDS), 5000)) == 1500


def test_an_index_of_another_format_is_built_again(folder, tmp_path):
    (tmp_path / "turnwise.json").write_text('{"format": 0, "num_passages": 1}')
    with pytest.raises(ValueError, match=r"its format \(0\) is not 2"):
        BM25(tmp_path)
