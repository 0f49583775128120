r"""Text formats and rewards of ``search-qa-v0``: a table with one row for each of six syntaxes.

A protocol is a row: the syntax of calls, the rules for the agent, the format of passages, the
position of the answer, and the rewards by variant and by source (paper or code).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from envs.rewards import Transcript
from envs.rewards.answers import Normalizer, exact_match, f1, normalize_answer, searcher_normalize
from envs.rewards.format import boxed_answer, research_format
from envs.rewards.retrieval import (
    BEGIN_QUERY,
    END_QUERY,
    search_r1_format,
    search_r1_reward,
    searcher_format,
    searcher_stage1_reward,
    searcher_stage2_reward,
    searcher_zero_reward,
    tagged_answer,
)
from tools.chat_calls import CHAT
from tools.retrieval import Passage
from tools.syntax import FENCED, JSON_CALL, R1_SEARCHER, RE_SEARCH, SEARCH_R1, Syntax
from tools.tool import ToolResult

FORMAT_REWARD = 0.1
"""ReSearch's reward for a wrong answer in the right format."""
SEARCH_R1_RETRY = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> "
    "and </search>. If I want to give the final answer, I should put the answer between <answer> "
    "and </answer>. Let me try again.\n"
)
SEARCH_SCHEMA = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search a library of passages.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look for."}},
            "required": ["query"],
        },
    },
}

Rewards = dict[str, float]


@dataclass(frozen=True, slots=True)
class Pay:
    """A reward, its range (``least`` to ``most``) and its floor.

    The floor is the highest reward of a text that consists of tags without words.
    """

    rewards: Callable[[Transcript], Rewards]
    least: float = 0.0
    most: float = 1.0
    floor: float = 0.0


@dataclass(frozen=True, slots=True)
class Protocol:
    """The text format and the rewards of an episode in one syntax."""

    syntax: Syntax
    instructions: str
    """The rules, for a system message."""
    answer: Callable[[str], str | None]
    """Returns the answer that the whole text of an episode contains, or None without an answer."""
    fault: Callable[[str], str | None]
    """Describes the first violation of the format in the text in which the answer is sought, or
    returns None."""
    pay: Mapping[str, Mapping[str, Pay]]
    """Rewards by variant, then by "code" or "paper"; the first variant is the default."""
    numbered: Callable[[int, Passage], str] | None = None
    """Formats the n-th passage, counted from 1. If None, the search tool's format is used."""
    before_text: str = ""
    """Text to put before a result without passages, if ``numbered`` is set."""
    normalize: Normalizer = normalize_answer
    """Normaliser for the scores ``em`` and ``f1``."""
    prefill: str = ""
    """Opening tag at the end of the prompt, before the agent's text."""
    ends: tuple[str, ...] = ()
    """Additional stop strings, which end the episode."""
    retry: str | None = None
    """Reply to an action with neither a search nor an answer. If None, such an action ends the
    episode."""
    query_tags: tuple[str, str] | None = None
    """Tags around a query, for rewards that check the format of the whole text."""
    whole: bool = True
    """Where the answer is sought. True: in the whole text including passages and reasoning, as in
    published code. False: in the last action without its reasoning."""

    def as_searches(self, text: str, tools: Iterable[str]) -> str:
        """The text with the calls of other tools rewritten as searches.

        Rewards check the format of this text, because the papers' formats know only searches.
        """
        if self.query_tags is not None:
            for name in tools:
                text = text.replace(f"<{name}>", self.query_tags[0])
                text = text.replace(f"</{name}>", self.query_tags[1])
        return text

    def shown(self, result: ToolResult) -> str:
        """The text to insert for the result of a search."""
        if self.numbered is None:
            return self.syntax.wrap(result.text)
        found = result.data if isinstance(result.data, list) else []
        if not found:
            return self.syntax.wrap(self.before_text + result.text)
        rows = enumerate((Passage(**row) for row in found), 1)
        lines = [self.numbered(number, passage) for number, passage in rows]
        return self.syntax.wrap("\n".join(lines))

    def scores(self, answer: str | None, text: str, golds: Sequence[str]) -> dict[str, float]:
        """Scores of a text in which the answer is sought: named metrics that are not rewards."""
        right, share = 0.0, 0.0
        if answer is not None:
            right = exact_match(answer, golds, self.normalize)
            share = f1(answer, golds, self.normalize)
        return {"em": right, "f1": share, "format": float(self.fault(text) is None)}


def research_reward(f1_score: float, right_format: bool, kind: str) -> Rewards:
    """ReSearch's rewards, named "answer" and "format".

    Args:
        f1_score: best F1 over the golds; 0 without an answer.
        right_format: whether the format holds and the text is complete.
        kind: "code" gives F1, but 0 for a wrong format, and 0.1 for a wrong answer in the right
            format. "paper" differs in that a right answer in a wrong format counts.
    """
    if kind == "code" and not right_format:
        return {"answer": 0.0, "format": 0.0}
    return {
        "answer": f1_score,
        "format": FORMAT_REWARD if f1_score == 0 and right_format else 0.0,
    }


def _answer_f1(transcript: Transcript) -> float:
    return 0.0 if transcript.answer is None else f1(transcript.answer, transcript.golds)


def _research(kind: str, transcript: Transcript) -> Rewards:
    right_format = research_format(transcript.text) is None and transcript.complete
    return research_reward(_answer_f1(transcript), right_format, kind)


def _searcher_paper_stage1(transcript: Transcript) -> Rewards:
    """R1-Searcher's rewards of stage 1 in the paper. The code also rewards the answer."""
    rewards = searcher_stage1_reward(transcript.text, transcript.golds)
    return {"search": rewards["search"], "format": rewards["format"]}


def _searcher_passage(passage: Passage) -> str:
    """A passage in the format of R1-Searcher's corpus, with two spaces after "Text:".

    R1-Searcher's experience_maker.py numbers the passages. R1-Searcher's file
    wiki_corpus_index_bulid/samples/train_np_title_abs_sample_100.tsv has this format.
    """
    return f"Title: {passage.title} Text:  {passage.text}" if passage.title else passage.text


def _no_answer(text: str) -> str | None:
    return None if tagged_answer(text) is not None else "there is no <answer> ... </answer>"


def _both(pay: Pay) -> dict[str, Pay]:
    """A dict with the same reward for "code" and for "paper"."""
    return {"code": pay, "paper": pay}


def _search_r1_pay(structure: float, final: float) -> dict[str, Pay]:
    def rewards(transcript: Transcript) -> Rewards:
        text, golds = transcript.text, transcript.golds
        return search_r1_reward(text, golds, structure=structure, final=final)

    return _both(Pay(rewards, floor=structure))


_RESEARCH = Protocol(
    syntax=RE_SEARCH,
    # Few and common words, because a tokenizer trained on episodes has few tokens for them.
    instructions=(
        "Think between <think> and </think>. To search, write <search> words </search>; the "
        "<result> stands after it, up to </result>. You may search more than once. To answer, "
        r"write <answer> \boxed{words} </answer>."
    ),
    answer=boxed_answer,
    fault=research_format,
    query_tags=("<search>", "</search>"),
    pay={
        "": {
            "code": Pay(partial(_research, "code"), floor=FORMAT_REWARD),
            "paper": Pay(partial(_research, "paper"), floor=FORMAT_REWARD),
        }
    },
)

_R1_SEARCHER = Protocol(
    syntax=R1_SEARCHER,
    prefill="<think>",
    instructions=(
        "Think first; you are inside <think> already. To search, write <|begin_of_query|> words "
        "<|end_of_query|>; what is found stands after it, between <|begin_of_documents|> and "
        "<|end_of_documents|>. You may search more than once. When you know the answer, write "
        "</think> <answer> words </answer>, ten words at most."
    ),
    answer=tagged_answer,
    fault=searcher_format,
    numbered=lambda number, passage: f"({number}){_searcher_passage(passage)}",
    # R1-Searcher's format requires a (1) after the opening tag of documents.
    before_text="(1)",
    query_tags=(BEGIN_QUERY, END_QUERY),
    normalize=searcher_normalize,
    pay={
        "stage-2": {
            "code": Pay(lambda t: searcher_stage2_reward(t.text, t.golds), least=-1.0, floor=-1.0),
            "paper": Pay(
                lambda t: searcher_stage2_reward(t.text, t.golds, penalty=-2.0),
                least=-2.0,
                floor=-2.0,
            ),
        },
        "stage-1": {
            "code": Pay(
                lambda t: searcher_stage1_reward(t.text, t.golds), least=-1.0, most=2.0, floor=-0.5
            ),
            "paper": Pay(_searcher_paper_stage1, floor=0.5),
        },
        "zero": {
            "code": Pay(lambda t: searcher_zero_reward(t.text, t.golds), least=-2.0, floor=-2.0)
        },
    },
)

_SEARCH_R1 = Protocol(
    syntax=SEARCH_R1,
    instructions=(
        "Think between <think> and </think> first, and again whenever you get new information. To "
        "search, write <search> words </search>; what is found stands after it, between "
        "<information> and </information>. You may search as often as you want. When you need to "
        "know nothing more, write the answer between <answer> and </answer>."
    ),
    answer=tagged_answer,
    fault=search_r1_format,
    numbered=lambda number, passage: f"Doc {number}(Title: {passage.title}) {passage.text}",
    query_tags=("<search>", "</search>"),
    ends=("</answer>",),
    retry=SEARCH_R1_RETRY,
    pay={"plain": _search_r1_pay(0.0, 0.0), "format": _search_r1_pay(0.2, 0.1)},
)

_FENCED = Protocol(
    syntax=FENCED,
    instructions=(
        "To search, write a block:\n```search\nwords\n```\nWhat is found stands after it, between "
        "<interpreter> and </interpreter>. You may search more than once. To answer, write "
        "<answer> words </answer>."
    ),
    answer=tagged_answer,
    fault=_no_answer,
    whole=False,
    pay={"": _both(Pay(lambda transcript: {"answer": _answer_f1(transcript)}))},
)

_JSON = Protocol(
    syntax=JSON_CALL,
    instructions=(
        f"You may call this function:\n<tools>\n{json.dumps(SEARCH_SCHEMA)}\n</tools>\n"
        'For a call, write\n<tool_call>\n{"name": "search", "arguments": {"query": "words"}}\n'
        "</tool_call>\nWhat is "
        "found comes between <tool_response> and </tool_response>. You may call it more than once. "
        "To answer, write <answer> words </answer>."
    ),
    answer=tagged_answer,
    fault=_no_answer,
    whole=False,
    pay={"": _both(Pay(lambda transcript: {"answer": _answer_f1(transcript)}))},
)

_CHAT = replace(
    _JSON,
    syntax=CHAT,
    instructions="You may search more than once. To answer, write <answer> words </answer>.",
)

PROTOCOLS: Mapping[str, Protocol] = {
    row.syntax.name: row for row in (_RESEARCH, _R1_SEARCHER, _SEARCH_R1, _FENCED, _JSON, _CHAT)
}
"""Protocols by the name of their syntax."""


def find_pay(syntax: str, variant: str, reward: str) -> Pay:
    """The reward of a variant of a syntax.

    Args:
        syntax: a key of ``PROTOCOLS``.
        variant: a key of the protocol's ``pay``, or "" for the first one.
        reward: "code" or "paper".

    Raises:
        ValueError: there is no such syntax, variant or reward; the message lists the known ones.
    """
    if syntax not in PROTOCOLS:
        raise ValueError(f"syntax ({syntax!r}) must be one of {', '.join(PROTOCOLS)}")
    variants = PROTOCOLS[syntax].pay
    chosen = variant or next(iter(variants))
    if chosen not in variants:
        known = ", ".join(filter(None, variants)) or "'' (it has one)"
        raise ValueError(f"variant ({variant!r}) of syntax {syntax} must be one of {known}")
    if reward not in ("code", "paper"):
        raise ValueError(f"reward ({reward!r}) must be one of code, paper")
    if reward not in variants[chosen]:
        raise ValueError(f"variant ({variant!r}) is in the code of {syntax} alone: reward='code'")
    return variants[chosen][reward]
