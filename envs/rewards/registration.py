"""Rewards by name, built in or from plug-ins. There are two kinds.

A ``rubric`` reads the text of one episode. A ``shaping`` reads token counts and whole groups of
episodes; ``rl.credit.shaping`` defines it. Plug-ins advertise both kinds in the entry-point group
``turnwise.rewards``, with the kind before the name: ``rubric.polite``, ``shaping.brief``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, cast

from envs.rewards.rubric import Gate, Rubric, Sequential, WeightedSum
from envs.rewards.spec import Term, parse_terms
from tools.registry import Registry, build

Kind = Literal["rubric", "shaping"]
_NAME = re.compile(r"(rubric|shaping)\.[a-z][a-z0-9_]*")
_registry = Registry("reward", "turnwise.rewards", _NAME)


def register(kind: Kind, name: str, target: Any) -> None:
    """Register a reward, a factory of rewards, or ``"module:attribute"`` of either.

    Raises:
        ValueError: the name is taken, or has other characters than lower-case letters, digits and
            underscores.
    """
    full = f"{kind}.{name}"
    if not _NAME.fullmatch(full):
        raise ValueError(f"{kind} {name!r} must be a word of a-z, 0-9 and _, a letter first")
    _registry.register(full, target)


def names(kind: Kind) -> list[str]:
    """All registered names of a kind, sorted."""
    return [full.partition(".")[2] for full in _registry.names() if full.startswith(f"{kind}.")]


def find(kind: Kind, name: str) -> Any:
    """The object registered under a name: a reward of this kind, or a factory of such rewards.

    Raises:
        UnknownNameError: the name is not registered; the message lists known names.
        PluginImportError: the plug-in that registers the name fails to import.
        ValueError: the reward is of the other kind.
    """
    known = names(kind)
    if name not in known:
        other: Kind = "shaping" if kind == "rubric" else "rubric"
        if name in names(other):
            raise ValueError(f"{name!r} is a {other}: it belongs in {other}=..., not in {kind}=...")
        raise _registry.unknown(name, known)
    return _registry.get(f"{kind}.{name}")


def make_rubric(text: str, key: str = "rubric") -> Rubric:
    """Make the rubric that a text such as ``f1 + 0.1*research_format`` describes.

    Besides registered names, the text may hold ``gate(rubric, at_least=1.0)`` and
    ``sequential(condition, ..., rubric)``.

    Args:
        text: a sum of names with weights and options (``envs.rewards.spec``).
        key: name of the setting that holds the text, for messages.

    Raises:
        ValueError: the text is malformed, or an option or a combination is wrong.
        UnknownNameError: a name is not registered.
        PluginImportError: the plug-in that registers a name fails to import.
    """
    terms = parse_terms(key, text)
    try:
        return _sum(terms)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key} ({text}): {error}") from error


def _sum(terms: Sequence[Term]) -> Rubric:
    parts = [(term.weight, _rubric(term)) for term in terms]
    alone = len(parts) == 1 and parts[0][0] == 1
    return parts[0][1] if alone else WeightedSum(parts)


def _rubric(term: Term) -> Rubric:
    inner = [_sum(terms) for terms in term.inner]
    if term.name == "sequential":
        if term.options:
            raise TypeError("sequential takes rubrics, and no options")
        return Sequential(*inner)
    if term.name == "gate":
        if len(inner) != 1:
            raise TypeError(f"gate takes one rubric, not {len(inner)}")
        return cast(Rubric, build("rubric", "gate", Gate, {"rubric": inner[0], **term.options}))
    if inner:
        raise TypeError(f"{term.name} takes options, as name=value")
    made = find("rubric", term.name)
    if isinstance(made, Rubric) and term.options:
        raise TypeError(f"{term.name} has no options, yet {min(term.options)!r} was given")
    if not isinstance(made, Rubric):
        made = build("rubric", term.name, made, term.options)
    if not isinstance(made, Rubric):
        raise TypeError(f"rubric {term.name!r}: its factory made {made!r}, which is no Rubric")
    return made
