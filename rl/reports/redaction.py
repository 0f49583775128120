"""Removes secrets, the user's name and the home folder from text that users publish."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HIDDEN = "***"
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_SECRET_WORDS = frozenset(
    {"key", "keys", "token", "pat", "auth", "authorization", "bearer", "cookie", "apikey"}
)
_SECRET_PARTS = ("password", "passwd", "passphrase", "secret", "credential")
_SECRET = re.compile(
    r"\b(?:hf_\w{8,}|sk-[\w-]{8,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|AKIA[0-9A-Z]{16}"
    r"|xox[abp]-[\w-]{8,}|(?:glpat|nvapi)-[\w-]{12,}|gsk_\w{16,}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
"""Forms of keys: Hugging Face, OpenAI and others like it, GitHub, AWS, Slack, GitLab, NVIDIA, Groq,
Google, JSON Web Tokens."""
_AFTER = (
    re.compile(r"(?<=://)[^/\s<>]+(?=@)"),
    re.compile(r"(?i)(?<=\bbearer )[\w.~+/=-]{6,}"),
    re.compile(
        r"""(?ix) (?<![a-z0-9])
        (?:api[_-]?key | key | token | secret | password | passwd | sig | signature)
        ["']? \s* [=:] \s* ["']? ((?=[\w.~+/-]*\d) [\w.~+/-]{8,})"""
    ),
)
"""Places of keys: before the host of a URL, after "Bearer", and after a name with "=" or ":"."""
_SHORTEST = 6
"""Minimum length of an environment variable's value that is removed from all text."""


def is_secret_name(name: str) -> bool:
    """Whether the value of a setting or an environment variable of this name may be a key."""
    lower = name.lower()
    return any(part in lower for part in _SECRET_PARTS) or any(
        word.lower() in _SECRET_WORDS for word in _WORD.findall(name)
    )


class Redactor:
    """Removes secrets and names of the user from text.

    Args:
        environment: the environment variables; by default those of this process. The values of
            variables that look like keys are removed wherever they appear.
        home: the home folder, which becomes ``~``; by default the user's.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, home: Path | None = None
    ) -> None:
        environment = os.environ if environment is None else environment
        home = Path.home() if home is None else home
        keys = [v for n, v in environment.items() if is_secret_name(n) and len(v) >= _SHORTEST]
        self._keys = sorted({*keys, *(key.strip() for key in keys)}, key=len, reverse=True)
        users = {home.name, environment.get("USER", ""), environment.get("LOGNAME", "")} - {""}
        names = "|".join(re.escape(user) for user in sorted(users, key=len, reverse=True))
        self._home = re.compile(rf"{re.escape(str(home))}(?![\w.-])") if home.name else None
        self._user = re.compile(rf"(?<=/)(?:{names})(?![\w.-])|(?<![\w.-])(?:{names})(?=@)")

    def text(self, text: str) -> str:
        """The text without secrets and without the user's name in paths and addresses."""
        for key in self._keys:
            text = text.replace(key, HIDDEN)
        text = _SECRET.sub(HIDDEN, text)
        for place in _AFTER:
            text = place.sub(_hide, text)
        if self._home is not None:
            text = self._home.sub("~", text)
        return self._user.sub("~", text)

    def plain(self, value: Any) -> Any:
        """JSON data with redacted texts. The value of a key that looks secret is hidden."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                self.text(str(name)): HIDDEN
                if inner and isinstance(inner, str) and is_secret_name(str(name))
                else self.plain(inner)
                for name, inner in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.plain(inner) for inner in value]
        return value


def _hide(found: re.Match[str]) -> str:
    """The match with its group, or else the whole match, hidden."""
    if not found.re.groups:
        return HIDDEN
    return found[0].replace(found[1], HIDDEN)
