"""Files of JSON lines: what is made of a line, and how a bad one is named."""

from __future__ import annotations

import pytest

from rl.data.json_lines import read_lines


def test_each_line_becomes_a_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    # A line separator inside a text ends no line.
    path.write_text('{"n": 1}\n{"n": 2, "t": "a\u2028b"}\n', encoding="utf-8")
    assert read_lines(str(path), lambda row: (row["n"], row.get("t")), "rows") == [
        (1, None),
        (2, "a\u2028b"),
    ]


@pytest.mark.parametrize("line", ["{}", "[]", "no", '"text"', "\udcff"])
def test_a_line_that_is_no_row_is_named(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"n": 1}\n' + line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(ValueError, match=r'rows\.jsonl, line 2: expected \{"n": \.\.\.\} \('):
        read_lines(str(path), lambda row: row["n"], '{"n": ...}')


def test_a_missing_file_is_named_with_its_setting(tmp_path):
    for key, instead, message in (
        ("data", "", f"data ({tmp_path}) must be a file of JSON lines, rows"),
        ("center", '"own"', f'center ({tmp_path}) must be "own" or a file of JSON lines, rows'),
    ):
        with pytest.raises(ValueError) as refused:
            read_lines(str(tmp_path), str, "rows", key=key, instead=instead)
        assert str(refused.value) == message
