"""What a list of environments says about one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a list says beside what the class tells itself; "" is derived from it."""

    agent: str = ""
    """What the agent does ("finds a secret code"); "": the first line of the class's docstring."""
    turns: str = ""
    """How many there are; "": the default of ``max_turns``."""
    reward: str = ""
    """What is paid for what; "": the range of an episode's return."""
    needs: str = ""
    """What must be there beside turnwise; "": nothing."""
