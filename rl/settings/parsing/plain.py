"""Configuration objects as plain data, and plain data without secrets."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rl.credit.plugin import PlugIn

HIDDEN = "***"
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NOT_LETTERS = re.compile(r"[^a-z]+")
_SECRET_WORDS = frozenset(
    {"key", "keys", "token", "pat", "auth", "authorization", "bearer", "cookie", "cookies"}
    | {"apikey", "dsn", "jwt", "otp", "pem", "pgpass", "sas", "sig", "signature", "webhook"}
)
_SECRET_ENDINGS = ("key", "keys", "token", "auth", "cookie", "jwt", "signature")
"""Endings of words that are written together, such as "hftoken" or "sshkey"."""
SECRET_PARTS = (
    *("password", "passwd", "passphrase", "passcode", "passwort", "secret", "credential"),
    *("apikey", "accesskey", "privatekey", "connectionstring", "connection_string"),
)
_LAST_WORDS = ("pass", "pwd", "psk")
"""Words that name a secret at the end of a name, as in "smtp_pass". The variable PWD does not."""
_HOLDERS = frozenset({"access", "api", "auth", "bearer", "github", "hf", "hub", "login", "oauth"})
"""Words before "tokens" in names of secrets. Other "tokens" are numbers, as in "max_tokens"."""
_OF_TOKENS = frozenset({"budget", "count", "ids", "kind", "level", "limit", "rewards", "type"})
"""Words after "token" in names that concern tokens of text."""
_ORDINARY = frozenset({"donkey", "hockey", "hotkey", "jockey", "monkey", "turkey", "whiskey"})
URL_LOGIN = re.compile(r"(?<=://)[^/\s<>]+(?=@)")
"""The user and the password before the host of a URL."""


def to_plain(value: Any) -> Any:
    """Nested dataclasses as nested dicts. A plug-in's dict has the plug-in's name under "name"."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"name": value.name, **plain} if isinstance(value, PlugIn) else plain
    return value


def is_secret_name(name: str) -> bool:
    """Whether the value of a setting or an environment variable of this name may be a key."""
    lower = name.lower()
    if any(part in lower for part in SECRET_PARTS):
        return True
    joined = [word for word in _NOT_LETTERS.split(lower) if word]
    written = [word.lower() for word in _WORD.findall(name)]
    return any(_has_secret_word(words) for words in (joined, written))


def _has_secret_word(words: Sequence[str]) -> bool:
    """Whether one of a name's words names a secret."""
    for place, word in enumerate(words):
        before = words[place - 1] if place else ""
        after = words[place + 1] if place + 1 < len(words) else ""
        if word == "token" and after in _OF_TOKENS:
            continue
        if word == "tokens" and before in _HOLDERS:
            return True
        if word in _LAST_WORDS and before and not after:
            return True
        if word in _SECRET_WORDS or (word.endswith(_SECRET_ENDINGS) and word not in _ORDINARY):
            return True
    return False


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with ``***`` for the values of secret names, and for the logins in URLs.

    Args:
        settings: values by dotted keys, such as ``policy.url``.
    """
    return {key: _without_secret(key, value) for key, value in settings.items()}


def _without_secret(key: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value and is_secret_name(key.rpartition(".")[2]):
        return HIDDEN
    return URL_LOGIN.sub(HIDDEN, value)
