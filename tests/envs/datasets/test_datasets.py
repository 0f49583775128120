"""Rows from files, folders, lists and the hub, and what is said of broken ones."""

import gzip
import json
import sys
import types

import pyarrow
import pyarrow.parquet
import pytest

from envs.datasets import DatasetUnavailable
from envs.datasets import load_rows as placed_rows

ROWS = [{"id": 1, "text": "één"}, {"id": 2, "text": "two"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
PACKED = gzip.compress(LINES.encode(), mtime=0)  # of no date: it names tests


def load_rows(*args):
    return [row.columns for row in placed_rows(*args)]


def write(path, text=LINES):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8") as file:
        file.write(text)
    return path


def test_each_kind_of_file_gives_the_same_rows(tmp_path):
    plain = write(tmp_path / "a.jsonl")
    packed = write(tmp_path / "a.jsonl.gz")
    table = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), table)
    assert load_rows(plain) == load_rows(str(packed)) == load_rows(table) == ROWS
    assert load_rows(iter(ROWS), ["id"]) == ROWS


def test_empty_lines_do_not_count(tmp_path):
    assert load_rows(write(tmp_path / "a.jsonl", f"\n{LINES}\n\n")) == ROWS


def test_a_folder_is_its_files_in_order(tmp_path):
    write(tmp_path / "b-test.jsonl", '{"id": 3}\n')
    write(tmp_path / "a.jsonl", '{"id": 1}\n')
    (tmp_path / "notes.txt").write_text("no rows")
    assert load_rows(tmp_path) == [{"id": 1}, {"id": 3, "split": "test"}]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00001", "train"),
        ("gsm8k_test", "test"),
        ("valid", "validation"),
        ("my.validation.rows", "validation"),
        ("latest", None),
        ("training", None),
    ],
)
def test_a_files_name_determines_the_split(tmp_path, name, split):
    (row,) = load_rows(write(tmp_path / f"{name}.jsonl", '{"id": 1}\n'))
    assert row.get("split") == split


def test_a_rows_own_split_wins_over_the_files_name(tmp_path):
    (row,) = load_rows(write(tmp_path / "test.jsonl", '{"split": "train"}\n'))
    assert row["split"] == "train"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LINES + '{"id": 3}\n', "a.jsonl, line 3: no column 'text'; it has id"),
        (LINES + "{oops\n", "a.jsonl, line 3: not JSON"),
        ("[1, 2]\n", r"a.jsonl, line 1: expected an object, got '\[1, 2\]"),
        ("\n", "a.jsonl: has no rows"),
    ],
)
def test_a_broken_row_is_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load_rows(write(tmp_path / "a.jsonl", text), ["id", "text"])


def test_a_row_knows_its_file_and_line(tmp_path):
    write(tmp_path / "b.jsonl", f"\n{LINES}")
    write(tmp_path / "a.jsonl", LINES)
    places = [row.where.removeprefix(f"{tmp_path}/") for row in placed_rows(tmp_path)]
    assert places == ["a.jsonl, line 1", "a.jsonl, line 2", "b.jsonl, line 2", "b.jsonl, line 3"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"id": 1}\n{"id": "\xff"}\n', "a.jsonl, line 2: not UTF-8"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl, line 1: not JSON"),
        ("a.jsonl.gz", b"no", r"a.jsonl.gz: cannot be read \(Not a gzipped file"),
        ("a.jsonl.gz", PACKED[:-9], "a.jsonl.gz: cannot be read"),
        ("a.jsonl.gz", PACKED[:12] + b"\xff" * 20, "a.jsonl.gz: cannot be"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_rows(tmp_path / name)


def test_a_missing_column_of_other_sources_is_named(tmp_path):
    with pytest.raises(ValueError, match="row 2: no column 'text'; it has none"):
        load_rows([ROWS[0], {}], ["text"])
    table = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), table)
    with pytest.raises(ValueError, match=r"a.parquet, row 1: no column 'gold'; it has id, text"):
        load_rows(table, ["gold"])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing.jsonl", "missing.jsonl: no such file or folder in /.*, and no hub id"),
        ("/no/where.jsonl", "/no/where.jsonl: no such file or folder, and no hub id"),
        ("a/b/c", "a/b/c: no such file or folder"),
        ("data/missing.parquet", "no such file or folder"),
    ],
)
def test_a_source_that_is_nowhere(source, message):
    with pytest.raises(ValueError, match=message):
        load_rows(source)


@pytest.mark.parametrize(
    ("source", "near"),
    [
        ("gsm8k/trian.jsonl", "gsm8k/train.jsonl"),
        ("gsm9k/train.jsonl", "gsm8k/train.jsonl"),
        ("gsm8k.jsonl", "gsm8k"),
    ],
)
def test_a_source_that_is_nowhere_names_the_one_most_like_it(tmp_path, monkeypatch, source, near):
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "train.jsonl").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=rf"\(owner/name\). Did you mean '{near}'\?$"):
        load_rows(source)
    with pytest.raises(ValueError, match=r"\(owner/name\).$"):
        load_rows("gsm9k/nowhere.jsonl")


def test_other_files_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("id\n1\n")
    (tmp_path / "a.parquet").write_text("no table")
    with pytest.raises(ValueError, match=r"a.csv: expected a file that ends in .jsonl"):
        load_rows(tmp_path / "a.csv")
    with pytest.raises(ValueError, match=r"a.parquet: not a Parquet file"):
        load_rows(tmp_path / "a.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no file in this folder ends in"):
        load_rows(tmp_path / "empty")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    table = tmp_path / "a.parquet"
    table.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"needs pyarrow: pip install 'turnwise\[data\]'"):
        load_rows(table)


class FakeHub(types.ModuleType):
    """Holds files under their names in a repository; counts what is downloaded."""

    def __init__(self, folder, names, error=None):
        super().__init__("huggingface_hub")
        self.folder, self.names, self.error, self.fetched = folder, names, error, []

    def HfApi(self):
        return self

    def list_repo_files(self, repository, repo_type):
        assert (repository, repo_type) == ("owner/name", "dataset")
        if self.error:
            raise self.error
        return [*self.names, "README.md"]

    def hf_hub_download(self, repository, name, repo_type):
        self.fetched.append(name)
        path = self.folder / name.replace("/", "_")
        path.write_text(json.dumps({"from": name}) + "\n")
        return str(path)


def hub(monkeypatch, *args):
    fake = FakeHub(*args)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return fake


def test_a_hub_id_loads_every_split(tmp_path, monkeypatch):
    hub(monkeypatch, tmp_path, ["data/train-0.jsonl", "data/test-0.jsonl"])
    assert load_rows("owner/name") == [
        {"from": "data/test-0.jsonl", "split": "test"},
        {"from": "data/train-0.jsonl", "split": "train"},
    ]


def test_a_hub_id_with_several_configurations_must_name_one(tmp_path, monkeypatch):
    fake = hub(monkeypatch, tmp_path, ["full/test.jsonl", "small/test.jsonl"])
    with pytest.raises(ValueError, match="has full, small: choose one, owner/name:full"):
        load_rows("owner/name")
    assert [row["from"] for row in load_rows("owner/name:small")] == ["small/test.jsonl"]
    assert fake.fetched == ["small/test.jsonl"]
    with pytest.raises(ValueError, match="has no huge files"):
        load_rows("owner/name:huge")


def test_a_hub_that_cannot_be_reached_is_no_mistake_of_the_user(tmp_path, monkeypatch):
    class ClientError(Exception):
        """An error of an unknown HTTP client."""

    for error in (ClientError("no route"), OSError("offline")):
        hub(monkeypatch, tmp_path, [], error)
        message = (
            r"owner/name: no such file or folder, and the hub does not give it "
            r"\((ClientError: no route|OSError: offl)"
        )
        with pytest.raises(DatasetUnavailable, match=message):
            load_rows("owner/name")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DatasetUnavailable, match="needs huggingface-hub: pip install"):
        load_rows("owner/name")


def test_a_json_list_is_its_rows(tmp_path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps(ROWS, indent=2))
    assert load_rows(file) == load_rows(json.dumps(ROWS)) == ROWS
    assert placed_rows(file)[1].where == f"{file}, row 2"
    assert load_rows(write(tmp_path / "lines.json")) == ROWS, "JSON lines under that name"
    talk = [{"from": "human", "value": "q"}]
    file.write_text(json.dumps([talk]))
    assert load_rows(file) == [{"conversations": talk}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", r"a.json, row 1: expected an object, got 1"),
        ("[{]", "a.json: not JSON"),
        ("[]", "a.json: has no rows"),
    ],
)
def test_a_broken_json_list_is_named(tmp_path, text, message):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_rows(tmp_path / "a.json")


def test_descriptions_in_a_folder_are_no_rows(tmp_path):
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "train.json").write_text('[{"id": 1}]')
    assert load_rows(tmp_path) == [{"id": 1, "split": "train"}]
    write(tmp_path / "test.jsonl", '{"id": 2}\n')
    assert load_rows(tmp_path) == [{"id": 2, "split": "test"}], "lines win over lists"


def test_columns_get_the_names_that_are_expected():
    rows = [{"a b": 1, "x.y": 2, "x": {"z": 3}, "split": "test", "other": 4}]
    assert load_rows(rows, (), 'one="a b" two=x.y three=x.z') == [
        {"split": "test", "one": 1, "two": 2, "three": 3}
    ]
