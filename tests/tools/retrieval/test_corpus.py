"""Corpora as streams."""

from __future__ import annotations

import json

import pyarrow
import pyarrow.parquet
import pytest

from tools.retrieval import Passage
from tools.retrieval.corpus import contents_of, corpus_files, passage_of, read_corpus


@pytest.mark.parametrize(
    ("row", "passage"),
    [
        (
            {"id": "7", "contents": '"Paris"\nIs a town.\nOld.'},
            Passage("7", "Is a town.\nOld.", "Paris"),
        ),
        ({"id": 7, "contents": "no title"}, Passage("7", "no title")),
        ({"_id": "x", "title": "T", "text": "a"}, Passage("x", "a", "T")),
        ({"text": "a", "title": None}, Passage("3", "a")),
        ({"docid": "d", "text": "", "title": "T"}, Passage("d", "", "T")),
    ],
)
def test_layouts(row, passage):
    assert passage_of(row, 3, "here") == passage


def test_contents_are_those_of_wiki_18():
    passage = Passage("7", "Is a town.\nOld.", "Paris")
    assert contents_of(passage) == '"Paris"\nIs a town.\nOld.'
    assert passage_of({"id": "7", "contents": contents_of(passage)}, 0, "") == passage
    assert contents_of(Passage("1", "plain")) == "plain"


def test_a_folder_is_read_file_by_file_and_parts_can_be_skipped(tmp_path):
    lines = [json.dumps({"text": f"line {i}"}) for i in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    table = pyarrow.table({"id": ["p", "q"], "text": ["one", "two"]})
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    assert [f.name for f in corpus_files(tmp_path)] == ["a.jsonl", "b.parquet"]
    assert [p.id for p in read_corpus(tmp_path)] == ["0", "1", "2", "p", "q"]
    assert [p.text for p in read_corpus(tmp_path, skip=2)] == ["line 2", "one", "two"]
    assert next(read_corpus(tmp_path / "a.jsonl")).text == "line 0"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"id": "1"}', "line 1: expected a text under 'text' or 'contents'; it has id"),
        ('{"text": "a"}\n[1]', "line 2: expected an object"),
        ('{"text"', "line 1: not JSON"),
    ],
)
def test_a_broken_row_is_named(tmp_path, text, says):
    (tmp_path / "c.jsonl").write_text(text)
    with pytest.raises(ValueError, match=says):
        list(read_corpus(tmp_path / "c.jsonl"))


def test_what_is_no_corpus(tmp_path):
    with pytest.raises(ValueError, match="expected a file, or a folder of them"):
        corpus_files(tmp_path / "none.jsonl")
    (tmp_path / "c.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match="cannot be read"):
        list(read_corpus(tmp_path / "c.jsonl.gz"))
    (tmp_path / "d.parquet").write_bytes(b"no parquet")
    with pytest.raises(ValueError, match="not a Parquet file"):
        list(read_corpus(tmp_path / "d.parquet"))
