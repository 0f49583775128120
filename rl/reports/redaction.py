"""Removes secrets, the user's name and the home folder from text that users publish."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl.settings.parsing.plain import HIDDEN, SECRET_PARTS, URL_LOGIN, is_secret_name

_SECRET = re.compile(
    r"\b(?:hf_\w{8,}|sk-[\w-]{8,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|A[KS]IA[0-9A-Z]{16}"
    r"|xox[abeoprs]-[\w-]{8,}|(?:glpat|nvapi)-[\w-]{12,}|gsk_\w{16,}|AIza[\w-]{30,}"
    r"|(?:npm|r8|dckr_pat|lsv2_[ps]t)_[\w-]{16,}|(?:pypi|tvly|xai|xapp)-[\w-]{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)",
    re.DOTALL,
)
"""Forms of keys: Hugging Face, OpenAI and others like it, GitHub, AWS, Slack, GitLab, NVIDIA, Groq,
Google, npm, Replicate, Docker, LangSmith, PyPI, Tavily, xAI, JSON Web Tokens, private keys."""
_AFTER = (
    URL_LOGIN,
    re.compile(r"(?i)(?:(?<=\bbearer )|(?<=\bauthorization: basic ))[\w.~+/=-]{6,}"),
)
"""Places of keys: before the host of a URL, after "Bearer" and after "Basic" in a header."""
_NAMED = re.compile(r"""(?<![\w-])([A-Za-z][\w-]*+)["']?\s*+[=:]\s*+["']?""")
_VALUE = re.compile(r"""[^\s"'&,;<>(){}\[\]]{4,}""")
"""A name with "=" or ":", and its value, as in a URL's query, a header, a file of settings."""
_LIKE_A_KEY = re.compile(r"(?=[\w.~+/-]*\d)[\w.~+/=-]{8,}")
"""A value that a name such as "token" hides. Behind a name such as "password", every value is."""
_SHORTEST = 6
"""Minimum length of an environment variable's value that is removed from all text."""


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
        # First: a name such as hf_access_token has the form of a key.
        text = _SECRET.sub(HIDDEN, _hide_values(text))
        for place in _AFTER:
            text = place.sub(HIDDEN, text)
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


def _hide_values(text: str) -> str:
    """The text without the values after names of secrets."""
    parts, done = list[str](), 0
    for name in _NAMED.finditer(text):
        value = _VALUE.match(text, name.end())
        if value is not None and name.start() >= done and _is_secret(name[1], value[0]):
            parts += [text[done : value.start()], HIDDEN]
            done = value.end()
    return "".join([*parts, text[done:]])


def _is_secret(name: str, value: str) -> bool:
    """Whether ``value`` after ``name`` in a text is a secret, and no word of a sentence."""
    if any(part in name.lower() for part in SECRET_PARTS):
        return True
    return _LIKE_A_KEY.fullmatch(value) is not None and is_secret_name(name)
