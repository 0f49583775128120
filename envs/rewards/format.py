"""ReSearch's format of a whole text: its violations, and its answer."""

from __future__ import annotations

import re


def research_format(text: str) -> str | None:
    r"""The first violation of ReSearch's format, or None if there is none.

    The format: at least one ``<think>``, each with its ``</think>``; after each ``<search>``, in
    this order, ``</search>``, ``<result>`` and ``</result>``; and exactly one ``<answer>`` with its
    ``</answer>``, a ``\boxed{...}`` between them (arXiv:2503.19470, section 2.3; the order of the
    search tags follows the authors' code).
    """
    if text.count("<think>") != text.count("</think>"):
        return "<think> and </think> are not in pairs"
    if "<think>" not in text:
        return "there is no <think>"
    if text.count("<answer>") != 1 or text.count("</answer>") != 1:
        return "there is not exactly one <answer> ... </answer>"
    at = text.find("<search>")
    while at >= 0:
        closed, result = text.find("</search>", at), text.find("<result>", at)
        if not at < closed < result:
            return "after a <search> there is no </search> and then a <result>"
        at = text.find("</result>", result)
        if at < 0:
            return "after a <result> there is no </result>"
        at = text.find("<search>", at)
    if boxed_answer(text) is None:
        return r"there is no \boxed{...} inside <answer> ... </answer>"
    return None


def boxed_answer(text: str) -> str | None:
    r"""The stripped content of the last ``\boxed{...}`` between ``<answer>`` and ``</answer>``.

    Returns None if there is no such box. Braces are balanced: ``\boxed{\frac{1}{2}}`` holds
    ``\frac{1}{2}``.
    """
    _, found, rest = text.rpartition("<answer>")
    answer, closed, _ = rest.partition("</answer>")
    return last_boxed(answer) if found and closed else None


_BRACED = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_BOX = re.compile(
    r"\\(?:boxed|fbox)(?![A-Za-z])\s*(?:(?P<open>\{)"
    r"|(?P<token>[-+]?(?:\$?\d|\\\$|\\(?!boxed|fbox)[A-Za-z]+|[A-Za-z](?![A-Za-z'])(?! [a-z]))"
    rf"(?:[^\s${{}}]|{_BRACED})*))"
)
"""Matches the start of a box. A box without braces holds a number, a command or one letter, up to
the next blank."""
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""The stripped content of the last ``\boxed{...}`` in a text, or None if there is no box.

    Braces are balanced; ``\{`` is no brace. If the last box is not closed, the result is None.
    ``\boxed {5}``, ``\boxed 5`` and ``\fbox{5}`` are boxes as well.
    """
    last = max(_BOX.finditer(text), key=re.Match.start, default=None)
    if last is None or last["open"] is None:
        return last and last["token"].rstrip(".,;:!?)*")
    depth = 1
    for brace in _BRACE.finditer(text, last.end()):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[last.end() : brace.start()].strip()
    return None
