"""The format of conversations in files, and the roles of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tools.registry import closest

FORMAT = (
    '{"messages": [...]} with user and assistant messages in turn, after at most one system '
    "message; results of an assistant's tool calls may stand for the user's message"
)
ROLES = ("system", "user", "assistant", "tool")


def check_roles(messages: Sequence[Mapping[str, Any]]) -> None:
    """Check that every message has a valid role.

    Raises:
        ValueError: a role is invalid. The message names the role and the valid ones.
    """
    for number, message in enumerate(messages, 1):
        if "role" not in message:
            raise ValueError(f"message {number} has no role, only {', '.join(message)}")
        role = message["role"]
        if role not in ROLES:
            near = closest(str(role), ROLES)
            meant = f". Did you mean {near!r}?" if near else ""
            raise ValueError(
                f"message {number} has the role {role!r}; the roles are {', '.join(ROLES)}{meant}"
            )
