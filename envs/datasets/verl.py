"""verl's rows: ``prompt`` (messages), ``reward_model`` (``ground_truth``) and ``extra_info``.

All environments with rows read this layout. The messages of a prompt become one text without roles.
verl selects a reward by ``data_source``; in turnwise an option of the environment selects it.
"""

from __future__ import annotations

import logging
from typing import Any

from envs.datasets.rows import Row

logger = logging.getLogger(__name__)
_SPLITS = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}


def is_verl(row: Row) -> bool:
    """Whether a row is in verl's layout."""
    return {"prompt", "reward_model"} <= set(row.columns)


def plain_row(row: Row) -> Row:
    """The row with columns ``question``, ``ground_truth`` and, if the row names a split, ``split``.

    A ground truth may be empty.

    Raises:
        ValueError: a column does not have verl's format.
    """
    columns, prompt = row.columns, row.columns["prompt"]
    try:
        texts = [prompt] if isinstance(prompt, str) else [str(m["content"]) for m in prompt]
        gold, info = columns["reward_model"]["ground_truth"], columns.get("extra_info") or {}
        named = columns.get("split", _SPLITS.get(str(info.get("split"))))
    except (TypeError, LookupError, AttributeError) as error:
        raise ValueError(
            f"{row.where}: expected verl's prompt (messages), reward_model (with ground_truth) "
            f"and extra_info ({type(error).__name__}: {error})"
        ) from error
    split = {} if named is None else {"split": named}
    question = "\n\n".join(filter(None, texts))
    if not question:
        raise ValueError(f"{row.where}: the prompt is empty")
    return Row(row.where, {"question": question, "ground_truth": gold, **split})


def report_own_prompts(count: int, num_rows: int, source: str, env: str, columns: str) -> None:
    """Log that the rows' own prompts replace the environment's prompt.

    Args:
        count: number of rows whose prompt explains the answer format.
        num_rows: number of all rows.
        source: name of the source.
        env: name of the environment.
        columns: value of ``env.columns`` that restores the environment's prompt.
    """
    if count:
        logger.warning(
            "%s: the prompts of %d of %d rows say how to answer, so %s adds no answer format of "
            'its own to them; to add it: env.columns="%s"',
            source,
            count,
            num_rows,
            env,
            columns,
        )


def answers(gold: Any) -> list[str]:
    """The accepted answers in ``gold``: Search-R1's ``{"target": [...]}``, a list, or one text."""
    found = gold.get("target") if isinstance(gold, dict) else gold
    return [found] if isinstance(found, str) else [str(answer) for answer in found or ()]
