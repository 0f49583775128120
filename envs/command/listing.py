"""``python -m envs list``: all environments, or a table of the built-in ones.

The list imports the classes but makes no environments. If a class fails to import, its row reports
the failure.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any, NamedTuple

import envs
from envs.env import TextEnv
from envs.options import Card
from envs.registration import owner
from tools.registry import PluginImportError

_LARGE = 8
"""Number of members from which a family (``family/NAME``) becomes one row."""


class Row(NamedTuple):
    """A line of the list."""

    env_id: str
    members: int
    """Number of environments in this line: more than 1 if the line is a family."""
    card: Card


def listing(*, fold: bool) -> str:
    """The list as text.

    Args:
        fold: whether each large family is one row.
    """
    rows = list(_rows(envs.ids(), fold=fold))
    width = max(len(row.env_id) for row in rows)
    return "".join(f"{row.env_id:<{width}}  {_line(row)}\n" for row in rows)


def markdown() -> str:
    """The table of built-in environments in docs/environments.md."""
    lines = ["| id | the agent | turns | reward | needs |", "|---|---|---|---|---|"]
    for env_id, members, card in _rows([i for i in envs.ids() if not owner(i)], fold=True):
        agent = card.agent + (f": {members} environments" if members > 1 else "")
        needs = card.needs or "–"
        lines.append(f"| `{env_id}` | {agent} | {card.turns} | {card.reward} | {needs} |")
    return "\n".join(lines) + "\n"


def card_of(kind: type[TextEnv[Any, Any]]) -> Card:
    """The card of a class. The class's docstring and attributes supply empty fields."""
    doc = inspect.cleandoc(kind.__doc__ or "")
    first = " ".join(doc.partition("\n\n")[0].split())
    turns = next(option.default for option in fields(kind.Options) if option.name == "max_turns")
    low, high = kind.reward_range
    return Card(
        agent=kind.card.agent or first,
        turns=kind.card.turns or str(turns),
        reward=kind.card.reward or f"{low:g} to {high:g}",
        needs=kind.card.needs,
    )


def _line(row: Row) -> str:
    count = f" ({row.members} environments)" if row.members > 1 else ""
    needs = f"; needs {row.card.needs}" if row.card.needs else ""
    return f"{row.card.agent}{count}{needs}"


def _rows(ids: Sequence[str], *, fold: bool) -> Iterator[Row]:
    for family, group in groupby(ids, key=lambda env_id: env_id.rpartition("/")[0]):
        listed = list(group)
        if fold and family and len(listed) >= _LARGE:
            yield Row(f"{family}/NAME-v0", len(listed), _card_or_fault(listed[0]))
        else:
            yield from (Row(env_id, 1, _card_or_fault(env_id)) for env_id in listed)


def _card_or_fault(env_id: str) -> Card:
    try:
        return card_of(envs.env_type(env_id))
    except PluginImportError as error:
        return Card(agent=" ".join(str(error).split()))
