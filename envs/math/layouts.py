r"""Finds a row's problem and gold answer by the names of its columns, in upper or lower case.

The question is in the first column of ``QUESTIONS`` that a row has, the gold answer in the first of
``GOLDS``. A gold answer is a number, a text, or a list of texts (OlympiadBench). In a text, the
answer follows the last ``####`` (GSM8K, arXiv:2110.14168), or is in the last ``\boxed`` (MATH,
arXiv:2103.03874), or is the whole text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any

from envs.datasets import NoAnswer, Row, is_empty
from envs.datasets.verl import is_verl, plain_row
from envs.math.choices import is_choice, options_and_letter
from envs.math.task import MathTask
from envs.rewards.format import last_boxed

QUESTIONS = ("question", "problem", "prompt", "query", "input")
GOLDS = (
    *("ground_truth", "gt_answer", "ground_truth_answer", "final_answer", "expected_answer"),
    *("answer", "solution", "target"),
)

_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_PROSE = re.compile(r"(?:(?<![\\A-Za-z])[A-Za-z]{2,}[,;]?\s+){4}")
"""Matches several words in a row, as in a derivation or a proof, which are not answers."""
_DOLLARS = re.compile(r"\$([^$]+)\$|\$\$([^$]+)\$\$|\\\((.+)\\\)|\\\[(.+)\\\]", re.DOTALL)
_HUMAN, _SAID = ("human", "user"), ("value", "content")


_MARKS = re.compile(
    r"(?:\\text\{)?[\s\[(<]*(?:proof|not[ _]?found|n/a|n\.a\.|(?-i:NA)|null|nan|no[ _]answer"
    r"|not (?:available|applicable))[\s\])>.}]*|none",
    re.IGNORECASE,
)
"""Matches what data sets write where a problem has no answer (NuminaMath: ``proof``,
``notfound``)."""


def unwrapped(row: Row) -> Row:
    """The row with its question and gold answer in separate columns, and its split.

    Raises:
        ValueError: a column of verl's or Open-Reasoner-Zero's layout is malformed.
    """
    if is_verl(row):
        return plain_row(row)
    return _from_conversation(row) if "conversations" in row.columns else row


def task_of(row: Row) -> MathTask:
    """The problem of a row that :func:`unwrapped` returned.

    Raises:
        NoAnswer: there is no gold answer, or a derivation or a proof without an answer in a box.
        ValueError: the row's layout is unknown, or the row is malformed.
    """
    columns = {name.lower(): value for name, value in row.columns.items() if value is not None}
    question = _question(row, columns)
    if is_choice(columns):
        texts, letter = options_and_letter(row, columns, question)
        listed = (f"{label}. {text}" for label, text in zip(ascii_uppercase, texts, strict=False))
        return MathTask("\n".join([question, *listed]), letter, row.where, options=tuple(texts))
    names = [name for name in GOLDS if name in {column.lower() for column in row.columns}]
    if not names:
        raise _unknown(row)
    name = next((name for name in names if not is_empty(columns.get(name))), names[0])
    gold = _gold(row, name, columns.get(name))
    if _MARKS.fullmatch(gold):
        raise NoAnswer(f"{row.where}, column {name}: {gold!r} marks a problem without an answer")
    return MathTask(question, gold, row.where)


def _unknown(row: Row) -> ValueError:
    known = [name for name in row.columns if name != "split"]
    return ValueError(
        f"{row.where}: columns {', '.join(known) or 'none'} are of no known layout: expected a "
        f"question ({', '.join(QUESTIONS)}) and an answer ({', '.join(GOLDS)}); name yours by "
        f'env.columns="question=COLUMN answer=COLUMN"'
    )


def _question(row: Row, columns: Mapping[str, Any]) -> str:
    name = next((name for name in QUESTIONS if name in columns), None)
    if name is None:
        raise _unknown(row)
    value = columns[name]
    if isinstance(value, list) and all(isinstance(said, Mapping) for said in value):
        value = "\n\n".join(str(said.get("content") or "") for said in value).strip()
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{row.where}, column {name}: expected a text, got {value!r:.40}")
    # SVAMP's story, and OlympiadBench's context of some questions.
    story = columns.get("body", columns.get("context") if "final_answer" in columns else None)
    return f"{story.strip()} {value}" if isinstance(story, str) and story.strip() else value


def _from_conversation(row: Row) -> Row:
    """Open-Reasoner-Zero's row: the human's question and the assistant's ``ground_truth``."""
    try:
        turns = row.columns["conversations"]
        asked = next(turn for turn in turns if turn.get("from", turn.get("role")) in _HUMAN)
        question = next(asked[key] for key in _SAID if key in asked)
        gold = next(turn["ground_truth"] for turn in turns if "ground_truth" in turn)
        gold = gold["value"] if isinstance(gold, Mapping) else gold
    except (StopIteration, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{row.where}: expected a conversation in which a human asks and another turn has a "
            f"ground_truth, as Open-Reasoner-Zero's ({type(error).__name__}: {error})"
        ) from error
    kept = {key: row.columns[key] for key in ("split",) if key in row.columns}
    return Row(row.where, {"question": question, "ground_truth": gold, **kept})


def _gold(row: Row, name: str, value: Any) -> str:
    if isinstance(value, str) and value.lstrip().startswith('["'):
        value = _listed(value)
    if is_empty(value):
        raise NoAnswer(f"{row.where}, column {name}: expected an answer, got {value!r:.40}")
    if isinstance(value, list):
        return ", ".join(_gold(row, name, one) for one in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(int(value)) if value % 1 == 0 else str(value)
    if not isinstance(value, str):
        raise ValueError(f"{row.where}, column {name}: expected an answer, got {value!r:.40}")
    if "####" in value:
        return _after_hashes(row, name, value)
    if r"\boxed" in value:
        boxed = last_boxed(value)
        if not boxed:
            raise NoAnswer(rf"{row.where}, column {name}: no answer in its last \boxed{{...}}")
        return boxed
    text = value.strip()
    if _PROSE.search(text) or "\n" in text:
        raise NoAnswer(
            rf"{row.where}, column {name}: expected an answer, or one behind '####' or in "
            rf"\boxed{{...}}; got {text!r:.40}"
        )
    dollars = _DOLLARS.fullmatch(text)
    return next(filter(None, dollars.groups())).strip() if dollars else text


def _listed(text: str) -> Any:
    """The list that a text holds as JSON (Skywork-OR1), or the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _after_hashes(row: Row, name: str, value: str) -> str:
    gold = value.rpartition("####")[2].strip()
    if not gold:
        raise NoAnswer(f"{row.where}, column {name}: expected the answer behind '####'")
    return gold.replace(",", "") if _THOUSANDS.fullmatch(gold) else gold
