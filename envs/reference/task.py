"""A task: a question and an expert's answer to it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReferenceTask:
    """One question."""

    question: str
    """The first observation."""
    reference: str
    """The expert's answer; agents never see it."""
