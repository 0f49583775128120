"""Questions and paragraphs from rows of published data sets, whose columns identify the data set.

- HotpotQA, 2WikiMultihopQA: ``question``, ``answer``, ``context`` and ``supporting_facts``. The
  last two are dicts of lists, lists, or JSON texts of either. MuSiQue: ``paragraphs``,
  ``answer_aliases``.
- NQ-open: ``answer`` is a list. TriviaQA: ``answer`` has a ``value`` and ``aliases``. Bamboogle:
  ``Question`` and ``Answer``; FlashRAG: ``golden_answers``, with the other columns under
  ``metadata``.
- verl and Search-R1: ``prompt`` and ``reward_model``; see ``envs.datasets.verl``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.datasets import NoAnswer, Row, is_empty, kept_while_unchanged, load_rows, name_of
from envs.datasets.splits import Dataset, arrange
from envs.datasets.verl import answers, is_verl, plain_row, report_own_prompts
from envs.search.world import SearchTask
from tools.retrieval import Passage

OWN_INSTRUCTIONS = "question=prompt golden_answers=reward_model.ground_truth"
"""Value of the option ``columns`` with which search-qa-v0 reads verl's rows and adds its own rules
to every prompt."""
_IDS = ("id", "_id", "question_id")


@dataclass(frozen=True, slots=True)
class Questions:
    """A data set's questions and the paragraphs in its rows."""

    data: Dataset[SearchTask]
    passages: Sequence[Passage]
    """The paragraphs of all splits, without duplicates; empty if rows hold none."""


@kept_while_unchanged
def load_questions(source: str, columns: str = "") -> Questions:
    """The questions of a file, folder or hub id; see ``envs.datasets``.

    A source is read again when its files have changed.

    Raises:
        ValueError: a row has an unknown layout or is malformed; the message names the row.
        DatasetUnavailable: the hub is unreachable or has no such data set.
    """
    return questions_from(load_rows(source, columns=columns), name_of(source))


def questions_from(rows: Iterable[Row], source: str = "rows") -> Questions:
    """The questions of rows that are already loaded; see :func:`load_questions`.

    Unanswerable questions (MuSiQue) and rows without an answer are left out.
    """
    asked, num_rows = list[tuple[Row, str, SearchTask]](), 0
    without = list[tuple[Row, str, str]]()
    known: dict[tuple[str, str], Passage] = {}
    for given in rows:
        num_rows += 1
        row = _from_verl(given) if is_verl(given) else given
        if row.columns.get("answerable") is False:
            continue
        found = {**_mapping(row, "metadata"), **row.columns}
        question = _text(row, found, "question", "Question")
        name = next((str(found[key]) for key in _IDS if found.get(key) is not None), question)
        titles = tuple(dict.fromkeys(_titles(row, found)))
        own_prompt = is_verl(given) and _says_how(question)
        try:
            task = SearchTask(question, _answers(row, found), len(titles), titles, own_prompt)
        except NoAnswer as error:
            without.append((row, name, str(error)))
            continue
        asked.append((row, name, task))
        for title, text in _paragraphs(row, found):
            known.setdefault((title, text), Passage(f"{len(known):07d}", text, title))
    num_own = sum(task.own_prompt for _, _, task in asked)
    report_own_prompts(num_own, num_rows, source, "search-qa-v0", OWN_INSTRUCTIONS)
    return Questions(arrange(asked, source, num_rows, without), tuple(known.values()))


def _from_verl(given: Row) -> Row:
    row = plain_row(given)
    row.columns["golden_answers"] = answers(row.columns.pop("ground_truth"))
    return row


def _says_how(prompt: str) -> bool:
    """Whether a prompt explains both the answer format and how to search.

    The tags of all syntaxes are recognised.
    """
    return "<answer>" in prompt and "search" in prompt.lower()


def _mapping(row: Row, column: str) -> Mapping[str, Any]:
    value = row.columns.get(column)
    return value if isinstance(value, dict) else {}


def _text(row: Row, found: Mapping[str, Any], *columns: str) -> str:
    for column in columns:
        value = found.get(column)
        if isinstance(value, list) and value and all(isinstance(said, dict) for said in value):
            value = "\n\n".join(str(said.get("content") or "") for said in value).strip() or None
        if isinstance(value, str):
            return value
    there = [column for column in columns if column in found]
    if not there:
        raise ValueError(
            f"{row.where}: expected a text in column {columns[0]!r}; it has "
            f"{', '.join(row.columns)}; name yours by "
            f'env.columns="question=COLUMN answer=COLUMN"'
        )
    got = f"got {found[there[0]]!r}"
    raise ValueError(f"{row.where}: expected a text in column {columns[0]!r}; {got}")


def _answers(row: Row, found: Mapping[str, Any]) -> tuple[str, ...]:
    keys = [key for key in ("golden_answers", "answer", "Answer") if key in found]
    answer = next((found[key] for key in keys if not is_empty(found[key])), None)
    if isinstance(answer, dict) and "target" in answer:
        answer = answers(answer)
    elif isinstance(answer, dict):
        answer = [answer.get("value"), *(answer.get("aliases") or ())]
    elif isinstance(answer, str):
        answer = [answer, *(found.get("answer_aliases") or ())]
    if isinstance(answer, int | float):
        answer = [answer]
    if isinstance(answer, list):
        answer = [_spelled(one) for one in answer if not is_empty(one)]
    if not (isinstance(answer, list) and answer and all(isinstance(a, str) for a in answer)):
        raise (NoAnswer if keys and not answer else ValueError)(
            f"{row.where}: expected answers in column 'answer', 'Answer' or 'golden_answers': a "
            f"text, texts, or a value with aliases; got {answer!r:.40}"
        )
    return tuple(dict.fromkeys(answer))


def _spelled(answer: Any) -> Any:
    """A number as text (``1998.0`` as ``1998``); other values as they are."""
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        return answer
    return str(int(answer)) if answer % 1 == 0 else str(answer)


def _titles(row: Row, found: Mapping[str, Any]) -> Iterator[str]:
    """Titles of the paragraphs that an answer needs."""
    for paragraph in found.get("paragraphs") or ():
        if paragraph.get("is_supporting"):
            yield str(paragraph["title"])
    for title, _ in _pairs(row, found, "supporting_facts", ("sent_id", "sent_idx")):
        yield title


def _paragraphs(row: Row, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The title and the text of each paragraph."""
    for paragraph in found.get("paragraphs") or ():
        yield str(paragraph["title"]), str(paragraph["paragraph_text"])
    for title, sentences in _pairs(row, found, "context", ("sentences", "content")):
        if not isinstance(sentences, list | str):
            raise ValueError(f"{row.where}, column context: expected sentences, got {sentences!r}")
        text = sentences if isinstance(sentences, str) else "".join(sentences)
        yield title, text.strip()


def _pairs(
    row: Row, found: Mapping[str, Any], column: str, seconds: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    """Pairs of a title and the value for this title, from one column.

    The column holds a dict of lists, a list of dicts, or a list of pairs; or any of these as JSON.
    """
    value = found.get(column)
    try:
        value = json.loads(value) if isinstance(value, str) else value
        if isinstance(value, dict):
            second = next(name for name in seconds if name in value)
            value = list(zip(value["title"], value[second], strict=True))
        for item in value or ():
            if isinstance(item, dict):
                second = next(name for name in seconds if name in item)
                yield str(item["title"]), item[second]
            else:
                title, rest = item
                yield str(title), rest
    except (ValueError, LookupError, TypeError, StopIteration) as error:
        raise ValueError(
            f"{row.where}, column {column}: expected titles with {' or '.join(seconds)}, as "
            f"HotpotQA has them ({type(error).__name__}: {error})"
        ) from error
