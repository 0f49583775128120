"""Reports contain no keys, and no name of the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.reports.redaction import Redactor
from rl.settings.parsing.files import as_values
from rl.settings.parsing.plain import is_secret_name, to_plain, without_secrets
from rl.settings.train import TrainConfig

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
        ("https://x/?X-Amz-Signature=abc12345&y=1", "https://x/?X-Amz-Signature=***&y=1"),
        ("DB_PASSWORD=correct!horse", "DB_PASSWORD=***"),
        ("authorization: Basic dXNlcjpwdw==", "authorization: Basic ***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----.", "***."),
        ("monkey: banana12345", "monkey: banana12345"),
        ("the special token: <|im_end|>", "the special token: <|im_end|>"),
    ],
)
def test_text(text, shown):
    assert ALICE.text(text) == shown


NOUNS = (
    *("api key", "access key", "secret key", "private key", "ssh key", "signing key", "token"),
    *("access token", "auth token", "refresh token", "bearer token", "password", "passwd"),
    *("passphrase", "secret", "client secret", "credentials", "auth", "cookie", "jwt"),
)
OWNERS = ("", "hf", "openai", "azure storage", "judge", "my db", "db 2")
STYLES = (
    lambda words: "_".join(words),
    lambda words: "_".join(words).upper(),
    lambda words: "-".join(words),
    lambda words: "".join(words),
    lambda words: "".join(words).upper(),
    lambda words: "".join(word.capitalize() for word in words),
    lambda words: words[0] + "".join(word.capitalize() for word in words[1:]),
    lambda words: words[0].upper() + "".join(word.capitalize() for word in words[1:]),
    lambda words: "_".join([*words, "2"]),
)


@pytest.mark.parametrize("noun", NOUNS)
def test_every_spelling_of_a_secrets_name_is_found(noun):
    names = {style([*owner.split(), *noun.split()]) for owner in OWNERS for style in STYLES}
    assert {name for name in names if not is_secret_name(name)} == set()
    settings = {f"env.{name}": "hunter2" for name in names}
    assert set(without_secrets(settings).values()) == {"***"}
    assert set(ALICE.plain(settings).values()) == {"***"}
    text = "\n".join(f"{name}=hunter2hunter2" for name in sorted(names))
    assert "hunter2" not in ALICE.text(text)


def test_no_setting_of_a_command_has_a_secrets_name():
    config = TrainConfig(**{"env": "math", "policy": "vllm-server", "lora.rank": 8})
    keys = as_values(to_plain(config))
    assert [key for key in keys if is_secret_name(key.rpartition(".")[2])] == []
    assert len(keys) > 100


def test_logins_in_urls_are_hidden():
    settings = {"policy.url": "http://u:p@a:1/v1,http://b:2", "seed": 3}
    shown = {"policy.url": "http://***@a:1/v1,http://b:2", "seed": 3}
    assert without_secrets(settings) == shown
    assert without_secrets(shown) == shown


def test_long_words_take_no_time():
    assert ALICE.text("a" * 300_000) == "a" * 300_000


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
