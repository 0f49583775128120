"""Reports contain no keys, and no name of the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.reports.redaction import Redactor, is_secret_name

ALICE = Redactor(
    {"HF_TOKEN": "opensesame\n", "WANDB_API_KEY": "short", "USER": "alice", "PATH": "/usr/bin"},
    Path("/home/alice"),
)


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        *((n, True) for n in ("HF_TOKEN", "WANDB_API_KEY", "openaiApiKey", "APIKEY", "judge_key")),
        *((n, True) for n in ("AWS_SECRET_ACCESS_KEY", "PGPASSWORD_FILE", "GITHUB_PAT", "auth")),
        *((n, False) for n in ("max_tokens", "micro_batch_tokens", "MONKEY", "PATH", "pattern")),
    ],
)
def test_names_of_keys(name, is_secret):
    assert is_secret_name(name) is is_secret


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/alice/runs and /home/alice", "~/runs and ~"),
        ("/data/alice/x, alice@host", "/data/~/x, ~@host"),
        ("malice /home/alice2 /home/alice.old", "malice /home/alice2 /home/alice.old"),
        ("login by opensesame", "login by ***"),
        ("a short one", "a short one"),
        ("401 for hf_AbCdEfGh1234", "401 for ***"),
        ("sk-proj-abc_DEF-123456 and ghp_0123456789abcdefghij", "*** and ***"),
        ("http://bob:pw@host:80/v1", "http://***@host:80/v1"),
        ("https://bob:p@ss@host/x", "https://***@host/x"),
        ("https://onlytoken@host/x", "https://***@host/x"),
        ("HF_TOKEN=abcdefgh1234", "HF_TOKEN=***"),
        ("glpat-abcdefghij1234567890", "***"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ("?api_key=AIza12345678&x=1", "?api_key=***&x=1"),
        ('{"password": "hunter2hunter2"}', '{"password": "***"}'),
        ("sampling.max_tokens=40961234", "sampling.max_tokens=40961234"),
        ("the special token: <|im_end|>", "the special token: <|im_end|>"),
    ],
)
def test_text(text, shown):
    assert ALICE.text(text) == shown


def test_json_data():
    data = {"judge_key": "x", "empty_key": "", "max_tokens": 5, "at": ["/home/alice", None, 0.5]}
    assert ALICE.plain(data) == {
        "judge_key": "***",
        "empty_key": "",
        "max_tokens": 5,
        "at": ["~", None, 0.5],
    }


def test_the_users_own_folder_and_keys_are_the_default(monkeypatch):
    monkeypatch.setenv("HOME", "/srv/carol")
    monkeypatch.setenv("SOME_API_KEY", "abracadabra")
    assert Redactor().text("/srv/carol/x abracadabra") == "~/x ***"
