"""Words that no file uses: vague pronouns, home-made terms, and old names of things.

The rule covers identifiers, comments, docstrings, strings and pages.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WORDS = {
    "told": "the message, or what reports it",
    "tells?": "report, print, show",
    "whoever": "the caller, the reader, or who it is",
    "nobody": "no caller, no user, or who it is",
    "somebody": "who it is",
    "so many": "the number of ...",
    "by so much": "the factor, the difference",
    "what is given": "the argument's name",
    "learnt": "learned",
    "warden": "supervisor",
    "suspect": "mark_unhealthy",
    "surroundings": "namespaces",
    "carelessness": "error_rates",
}
"""Regular expressions of words, also within identifiers, and what to write instead."""
NAMES = {
    "Tape": "ToolTap",
    "Handover": "WeightHandle",
    "Meeting": "Rendezvous",
    "Replica": "VLLMClient",
    "Manner": "Style",
    "Carelessness": "ErrorRates",
    "Harvest": "DistillWriter",
    "Surroundings": "Namespaces",
}
"""Old names of classes, and their new names."""
ALLOWED = re.compile(
    r"=nobody\b|\bnobody:nogroup|[\"'`]nobody[\"'`]|\buser nobody|\bNOBODY\b|x: nobody|is nobody\."
    r"|tells? (the truth|lies)|tells a lie|tells the agent \S?\{"
    r"|You are told how many|reaches nobody|\"message\": \"told\""
)
"""The Unix user, prompts and data of tasks, measured results, a key in files of old runs."""
FILES = (".py", ".md", ".toml")


def pattern(banned: str) -> re.Pattern[str]:
    """The banned words with no letter beside them, so that ``is_told`` and ``Told`` count."""
    return re.compile(rf"(?<![a-z])({banned})(?![a-z])", re.IGNORECASE)


PATTERNS = {banned: pattern(banned) for banned in WORDS}
PATTERNS |= {name: re.compile(rf"\b{name}\b") for name in NAMES}
ANY = re.compile("|".join([*WORDS, *NAMES]), re.IGNORECASE)
"""Matches each line that has a banned word or name, and more lines."""


def found(text: str) -> Iterator[tuple[int, str]]:
    """Numbers of lines with a banned word or name, and the word."""
    for number, line in enumerate(text.splitlines(), 1):
        if not ANY.search(line):
            continue
        cleared = ALLOWED.sub("", line)
        for banned, wrong in PATTERNS.items():
            if wrong.search(cleared):
                yield number, banned


def sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("these sources are no checkout")
    ours = [Path(name) for name in listed.stdout.splitlines() if name.endswith(FILES)]
    this = Path(__file__).relative_to(ROOT)
    return [path for path in ours if path != this and (ROOT / path).is_file()]


def test_no_file_uses_a_banned_word():
    wrong = [
        f"{path}:{number}: {banned!r}; write: {(WORDS | NAMES)[banned]}"
        for path in sources()
        for number, banned in found((ROOT / path).read_text(encoding="utf-8"))
    ]
    assert wrong == [], "\n".join(wrong[:50])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("def test_it_is_told():", ["told"]),
        ("class Tape:  # Whoever reads it tells the others.", ["tells?", "whoever", "Tape"]),
        ("so many places", ["so many"]),
        ("USER=nobody chown nobody:nogroup", []),
        ("bold, retell, tapestry", []),
    ],
)
def test_the_rule_detects_violations(line, words):
    assert [banned for _, banned in found(line)] == words
