"""Tasks that are rows of a data set: what environments that take rows have in common."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from envs.options import EnvOptions
from envs.splits import ALL, Dataset


@runtime_checkable
class TakesRows(Protocol):
    """An environment's class whose tasks may be rows of a data set."""

    @classmethod
    def dataset(cls, options: EnvOptions) -> Dataset[Any] | None:
        """The data set that the options name; None where tasks are generated.

        Raises:
            ValueError: a row cannot be a task.
        """
        ...


def dataset_of(kind: type[Any], options: EnvOptions) -> Dataset[Any] | None:
    """The data set whose rows are an environment's tasks; None where they are no rows."""
    return kind.dataset(options) if isinstance(kind, TakesRows) else None


def check_all(kind: type[Any], options: EnvOptions) -> None:
    """Refuse split=all where tasks are no rows.

    Raises:
        ValueError: so it is.
    """
    if options.split == ALL and dataset_of(kind, options) is None:
        raise ValueError(
            "split ('all') is for rows of a data set; these tasks are generated: choose train, "
            "validation or test"
        )
