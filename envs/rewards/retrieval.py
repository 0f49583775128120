"""Rewards of R1-Searcher and Search-R1 for a whole text: formats and their values.

ReSearch's format is in ``envs.rewards.format``. A text is the agent's text with the inserted
results, without the prompt. R1-Searcher's prompt ends with ``<think>``, so its texts do not contain
that tag.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from envs.rewards.answers import cover_match, exact_match, f1, normalize_answer, searcher_normalize

BEGIN_QUERY, END_QUERY = "<|begin_of_query|>", "<|end_of_query|>"
BEGIN_DOCUMENTS, END_DOCUMENTS = "<|begin_of_documents|>", "<|end_of_documents|>"
LONGEST_ANSWER = 10
"""Maximum number of words in an answer."""
_SEARCH_TAGS = (
    *(BEGIN_QUERY, END_QUERY, BEGIN_DOCUMENTS, f"{BEGIN_DOCUMENTS}\n", f"{BEGIN_DOCUMENTS}\n(1)"),
    *(END_DOCUMENTS, f"{END_DOCUMENTS}\n\n"),
)
_DOCUMENTS = re.compile(rf"{re.escape(BEGIN_DOCUMENTS)}.*?{re.escape(END_DOCUMENTS)}", re.DOTALL)
_CHINESE = re.compile("[\u4e00-\u9fff]")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_SEARCH_R1_TAG = re.compile(r"(</?(?:think|search|information|answer)>)")
_SEARCH_R1_NEXT = {
    ("start", "<think>"): "in think",
    ("in think", "</think>"): "thought",
    ("thought", "<search>"): "in search",
    ("in search", "</search>"): "searched",
    ("searched", "<information>"): "in information",
    ("in information", "</information>"): "informed",
    ("informed", "<think>"): "in think",
    ("thought", "<answer>"): "in answer",
    ("in answer", "</answer>"): "end",
}
_INFORMATION = re.compile(r"<information>(.*?)</information>", re.DOTALL)


def tagged_answer(text: str) -> str | None:
    """The stripped content of the last complete pair of answer tags, or None if there is no pair.

    Search-R1's code requires two pairs, because its texts include the prompt, which has one pair.
    """
    pairs = _ANSWER.findall(text)
    return pairs[-1].strip() if pairs else None


def searcher_calls(text: str) -> int | None:
    """Number of searches with documents in a text, or None if a tag is wrong.

    As in R1-Searcher's code, seven counts of tags must be equal. They ensure that queries and
    documents open and close equally often. A line break and ``(1)`` must follow each opening tag of
    documents. Two line breaks must follow each closing tag of documents.
    """
    counts = {text.count(tag) for tag in _SEARCH_TAGS}
    return counts.pop() if len(counts) == 1 else None


def searcher_format(text: str) -> str | None:
    """The first violation of R1-Searcher's format, or None if there is none.

    The format is that of the paper (arXiv:2503.05592, section 3.2) and of the authors' server
    ``qwen_zero`` (train/reward_server_qwen_zero.py). A text without searches is allowed.
    """
    answer = _searcher_answer(text) or ""
    if searcher_calls(text) is None:
        return "queries and documents do not begin and end equally often, each in its form"
    if "assistant" in text or "Assistant" in text:
        return "the word assistant stands in the text"
    if "<think>" in text or text.count("</think>") != 1:
        return "there is a <think>, or not exactly one </think>"
    if text.count("<answer>") != 1 or text.count("</answer>") != 1:
        return "there is not exactly one <answer> ... </answer>"
    if "begin_of_query" in answer or "begin_of_documents" in answer:
        return "a search stands inside the answer"
    if len(answer.split()) > LONGEST_ANSWER:
        return f"the answer has more than {LONGEST_ANSWER} words"
    if _CHINESE.search(_DOCUMENTS.sub("", text)):
        return "there is Chinese outside the documents"
    return None


def searcher_zero_reward(text: str, golds: Sequence[str]) -> dict[str, float]:
    """R1-Searcher's rewards for Qwen, trained in one stage: F1, and -2 for a wrong format."""
    fault = searcher_format(text)
    return {"answer": _searcher_f1(text, golds), "format": 0.0 if fault is None else -2.0}


def searcher_stage1_reward(text: str, golds: Sequence[str]) -> dict[str, float]:
    """R1-Searcher's rewards for Llama in stage 1: for searching, for the format, for the answer.

    The paper gives 0.5 for at least one search and 0.5 for the tags of thought and answer. The code
    (train/reward_server_llama_stage1.py) adds 1 for an answer that covers a gold, and -1 for any
    other answer or none.
    """
    answer = _searcher_answer(text)
    right = answer is not None and cover_match(answer, golds) == 1.0
    return {
        "answer": 1.0 if right else -1.0,
        "search": 0.5 if searcher_calls(text) else 0.0,
        "format": 0.5 if _searcher_pairs(text) else 0.0,
    }


def searcher_stage2_reward(
    text: str, golds: Sequence[str], penalty: float = -1.0
) -> dict[str, float]:
    """R1-Searcher's rewards for Llama in stage 2: F1, and a penalty for a wrong format.

    The penalty is -1 in the authors' code (train/reward_server_llama_stage2.py) and -2 in the
    paper.
    """
    english = not _CHINESE.search(_DOCUMENTS.sub("", text))
    right = searcher_calls(text) is not None and _searcher_pairs(text) and english
    return {"answer": _searcher_f1(text, golds), "format": 0.0 if right else penalty}


def search_r1_format(text: str) -> str | None:
    """The first violation of Search-R1's format, or None if there is none.

    The format: thought, search and information, thought, ..., thought, answer, with only white
    space between, before and after them (v0.3, qa_em_format.py).
    """
    state = "start"
    for part in _SEARCH_R1_TAG.split(text):
        if _SEARCH_R1_TAG.fullmatch(part):
            if (state, part) not in _SEARCH_R1_NEXT:
                return f"{part} does not belong after: {state}"
            state = _SEARCH_R1_NEXT[state, part]
        elif part.strip() and not state.startswith("in "):
            return f"there is text between the tags, after: {state}"
    return None if state == "end" else f"the text ends after: {state}"


def search_r1_reward(
    text: str,
    golds: Sequence[str],
    structure: float = 0.2,
    final: float = 0.1,
    retrieval: float = 0.0,
) -> dict[str, float]:
    """Search-R1's reward (v0.3): exact match, with partial rewards for format and passages.

    If all three partial rewards are 0, this is Search-R1's plain reward: exact match.

    Args:
        text: the agent's text with the inserted results.
        golds: right answers.
        structure: reward for the right format with a wrong answer or none. A right answer in a
            wrong format loses the same amount.
        final: reward for a wrong answer in a wrong format.
        retrieval: additional reward if a passage contains a gold, the format is right and the
            answer is wrong.
    """
    answer, valid = tagged_answer(text), search_r1_format(text) is None
    right = answer is not None and exact_match(answer, golds) == 1.0
    found = valid and not right and _found(text, golds)
    tried = final if answer is not None else 0.0
    form = structure * (valid - right) if valid or right else tried
    return {"answer": float(right), "format": form, "retrieval": retrieval * found}


def _found(text: str, golds: Sequence[str]) -> bool:
    """Whether an inserted passage contains a right answer."""
    read = [normalize_answer(passage) for passage in _INFORMATION.findall(text)]
    sought = [gold for gold in map(normalize_answer, golds) if gold]
    return any(gold in passage for gold in sought for passage in read)


def _searcher_answer(text: str) -> str | None:
    """The text between the last ``<answer>`` and ``</answer>``, or None if a tag is missing."""
    if "<answer>" not in text or "</answer>" not in text:
        return None
    return text.split("<answer>")[-1].split("</answer>")[0].strip()


def _searcher_f1(text: str, golds: Sequence[str]) -> float:
    answer = _searcher_answer(text)
    return 0.0 if answer is None else f1(answer, golds, searcher_normalize)


def _searcher_pairs(text: str) -> bool:
    ones = ("</think>", "<answer>", "</answer>")
    return "<think>" not in text and all(text.count(tag) == 1 for tag in ones)
