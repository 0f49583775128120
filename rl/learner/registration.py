"""Learners by name: ``learner=NAME`` on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rl.cluster.cluster import THIS_MACHINE, Cluster
from rl.errors import UsageError
from rl.learner.settings import LearnerChoice, LocalLearnerConfig, PluginLearnerConfig
from rl.settings.parsing.choice import Build, Choice
from tools.registry import PluginImportError, Registry

if TYPE_CHECKING:
    from rl.learner.seam import OpenLearner

_registry = Registry("learner", "turnwise.learners")


def register(name: str, target: OpenLearner | str) -> None:
    """Register a learner in this process.

    A ``target`` of the form ``"module:attribute"`` is imported on first use.

    Raises:
        ValueError: another learner has the name.
    """
    _registry.register(name, target)


def check_learner(name: str) -> None:
    """Check that a learner has this name; otherwise raise UnknownNameError."""
    known = _registry.names()
    if name not in known:
        raise _registry.unknown(name, known)


def learner_names() -> list[str]:
    """Names of all learners: first turnwise's own, then all others in alphabetical order."""
    return ["local", *(name for name in _registry.names() if name != "local")]


def open_of(name: str) -> OpenLearner:
    """The function that opens the learner of this name.

    Raises:
        UnknownNameError: no learner has the name.
        UsageError: the learner fails to import.
    """
    try:
        found: OpenLearner = _registry.get(name)
    except PluginImportError as error:
        raise UsageError(str(error)) from error
    return found


def opening_of(choice: LearnerChoice, cluster: Cluster = THIS_MACHINE) -> OpenLearner:
    """The function that opens a chosen learner with its settings, and its ranks on a cluster.

    Raises:
        UnknownNameError, UsageError: as :func:`open_of`.
    """
    settings = choice.settings
    if not isinstance(settings, LocalLearnerConfig) or settings.ranks == 1:
        return open_of(choice.name)
    from rl.learner.ranks.learner import open_ranks  # loads torch

    return partial(
        open_ranks,
        ranks=settings.ranks,
        timeout_s=settings.timeout_s,
        start=cluster.start_ranks,
        here=cluster is THIS_MACHINE,
    )


def _resolve(name: str) -> tuple[type[Any], Mapping[str, Any], Build]:
    check_learner(name)
    kind = LocalLearnerConfig if name == "local" else PluginLearnerConfig
    return kind, {}, lambda values: LearnerChoice(name, kind(**values))


LEARNER = Choice(_resolve, default="local", names=learner_names)
"""The setting ``learner=NAME``."""

register("local", "rl.learner.local:open_local")
