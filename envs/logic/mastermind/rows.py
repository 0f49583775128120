"""Secret codes from rows, in a column ``code`` or ``secret``."""

from __future__ import annotations

from envs.datasets import Row, kept_while_unchanged
from envs.datasets.splits import Dataset
from envs.logic.mastermind.codes import Game
from envs.logic.rows import load_puzzles, need


@kept_while_unchanged
def load_codes(source: str, columns: str, rules: Game) -> Dataset[str]:
    """The codes of a source of ``envs.datasets``.

    A source is read again when its files have changed.

    Raises:
        ValueError: a row has no valid code of the game.
        DatasetUnavailable: the hub is unreachable or has no such data set.
    """

    def read(row: Row) -> str:
        given = need(row, "code", "secret")
        code = "".join(map(str, given)) if isinstance(given, list) else str(given).strip()
        if not rules.is_guess(code) or (not rules.repeats and len(set(code)) < len(code)):
            twice = "" if rules.repeats else ", none of them twice"
            raise ValueError(
                f"{row.where}: code ({code!r}) must have {rules.pegs} digits from 1 to "
                f"{rules.colours}{twice}: see the options pegs, colours and repeats"
            )
        return code

    return load_puzzles(source, columns, read, lambda code: code)
