r"""``search-qa-v0``: answer a question by searching.

The default format is that of ReSearch, in which one assistant message holds the whole episode
(arXiv:2503.19470)::

    <think> ... </think> <search> sport of Bako </search> <result>
    The sport of Bako is chess.
    </result> <think> ... </think> <answer> \boxed{chess} </answer>

Generation halts at ``</search>``. The environment inserts the result, and the message continues. An
action without a search ends the episode, whether it contains an answer or not. As in ReSearch, a
mistake in the format earns a reward of 0 and causes no message to the agent.
``envs.search.protocol`` has the other formats and their rewards. Questions come from an invented
world or a data set. Passages come from the same world, from the data set's rows, from an index or
from a server.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np

from envs.datasets.options import RowOptions
from envs.datasets.splits import Dataset
from envs.env import EnvOptions, Tasks
from envs.episode import Action, EnvToolCall, Reply, StopReason, cut, finish, go_on
from envs.options import Card
from envs.rewards import Transcript, make_rubric
from envs.search.protocol import PROTOCOLS, SEARCH_SCHEMA, find_pay
from envs.search.rows import load_questions
from envs.search.scripted_policies import (
    STYLES,
    CarelessPolicy,
    ErrorRates,
    GoldPolicy,
    ReferencePolicy,
    Style,
)
from envs.search.world import (
    DISTRACTORS,
    KINDS,
    MIXTURES,
    SearchTask,
    SearchTasks,
    has_years,
    make_world,
)
from envs.tool_env import ToolEnv, ToolOptions
from tools.builtin.search import search_tool
from tools.retrieval import BM25, RankBM25, Retriever, index_passages, open_retriever
from tools.retrieval.wire import WIRES
from tools.syntax import SEARCH_R1, Call, split_reasoning
from tools.tool import ToolResult

WORLD = "world"
SEARCH_TIMEOUT_S = 30.0
"""Maximum seconds that one search on a server may take, including retries."""
OVER_LENGTH = ("length", "context_full")
"""Finish reasons of an action that was cut off."""


@dataclass(frozen=True, kw_only=True)
class SearchQAOptions(ToolOptions, RowOptions):
    """Options of questions, searches and rewards."""

    max_turns: int = 4
    """Maximum number of actions per episode: searches and the answer."""
    tasks: str = WORLD
    """ "world" for questions about an invented world, or rows in a layout of ``envs.search.rows``:
    a path to .jsonl, .jsonl.gz, .parquet or .json, a folder of them, or a Hugging Face hub id."""
    retriever: str = ""
    """Source of passages: the folder of an index, or the address of a server (http://HOST:PORT).
    If empty, the world or the rows provide the passages."""
    wire: str = "search-r1"
    """Wire format of the server: "search-r1", "re-search" or "r1-searcher"."""
    hops: str = "mixed"
    """Kind of questions about the world: the number of passages that an answer needs ("1", "2",
    "3"), "comparison" (of the ages of two people), "mixed" (alternates one and two) or "all"."""
    distractors: int = 0
    """Number of additional passages about each person of the world, up to 12. No question needs
    them."""
    top_n: int = 1
    """Number of passages that each search shows."""
    syntax: str = "re-search"
    """Text format of calls and answers: "re-search", "r1-searcher", "search-r1", "fenced", "json",
    or "chat" for the format of the model's own chat template."""
    variant: str = ""
    """Variant of the syntax's reward; empty for the first one. "r1-searcher" has "stage-2",
    "stage-1" and "zero"; "search-r1" has "plain" and "format"."""
    reward: str = "code"
    """ "code" for the reward of the syntax's published code, or "paper" for that of its paper.
    ReSearch's code gives F1, but 0 for a wrong format or an unfinished text, and 0.1 for a wrong
    answer in the right format. Its paper differs in that a right answer in a wrong format
    counts."""
    rubric: str = ""
    """A sum of named rewards that replaces ``reward``: "f1 + 0.1*research_format"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = (*KINDS, *MIXTURES)
        if self.hops not in known:
            raise ValueError(f"hops ({self.hops!r}) must be one of {', '.join(known)}")
        if not 0 <= self.distractors <= len(DISTRACTORS):
            raise ValueError(
                f"distractors ({self.distractors}) must be from 0 to {len(DISTRACTORS)}"
            )
        if self.tasks != WORLD and (self.hops != "mixed" or self.distractors):
            raise ValueError(f"hops and distractors are the world's: tasks is {self.tasks!r}")
        if self.wire not in WIRES:
            raise ValueError(f"wire ({self.wire!r}) must be one of {', '.join(WIRES)}")
        if self.top_n < 1:
            raise ValueError(f"top_n ({self.top_n}) must be >= 1")
        find_pay(self.syntax, self.variant, self.reward)
        if self.rubric:
            make_rubric(self.rubric)


@dataclass(slots=True)
class SearchState:
    """An episode's state."""

    task: SearchTask
    text: str = ""
    """The assistant's message so far, including inserted results."""
    written: str = ""
    """The text that the agent itself wrote."""
    num_searches: int = 0


@lru_cache(maxsize=4)
def _library(seed: int, years: bool, distractors: int) -> RankBM25:
    return RankBM25(make_world(seed, years=years, distractors=distractors).passages())


def _tasks(options: SearchQAOptions) -> Tasks[SearchTask]:
    data = SearchQAEnv.dataset(options)
    if data is not None:
        return data.split(options.split)
    return SearchTasks(options.split, options.seed, options.hops, options.distractors)


@asynccontextmanager
async def _retriever(options: SearchQAOptions) -> AsyncIterator[Retriever]:
    """Open the retriever that the options select."""
    if options.retriever:
        # Shorter than the step's deadline, so that the failure describes the server.
        timeout_s = min(SEARCH_TIMEOUT_S, 0.8 * options.step_timeout_s)
        opened = open_retriever(options.retriever, wire=options.wire, timeout_s=timeout_s)
        async with opened as retriever:
            yield retriever
    elif options.tasks == WORLD:
        years = has_years(options.hops)
        yield await asyncio.to_thread(_library, options.seed, years, options.distractors)
    else:
        passages = load_questions(options.tasks, options.columns).passages
        if not passages:
            raise ValueError(
                f"tasks ({options.tasks!r}) bring no passages along: say where they are, "
                f"retriever=FOLDER or retriever=http://HOST:PORT"
            )
        with tempfile.TemporaryDirectory(prefix="turnwise-index-") as folder:
            await asyncio.to_thread(index_passages, iter(passages), folder)
            yield await asyncio.to_thread(BM25, folder)


class SearchQAEnv(ToolEnv[SearchTask, SearchState]):
    """Questions about invented people; see the module's docstring for the protocol."""

    Options = SearchQAOptions
    card = Card(
        agent="answers questions about invented people by searching a library, in ReSearch's tags "
        "or five other syntaxes",
        reward="F1; 0.1 for a wrong answer in the right format",
    )
    success_score = "em"
    own_tools = ("search",)
    floor_waiver = "papers and rubrics pay their format, which can be written without reading"

    def __init__(self, options: SearchQAOptions, services: Mapping[str, Any] | None = None) -> None:
        self._protocol = PROTOCOLS[options.syntax]
        super().__init__(options, _tasks(options), services, syntax=self._protocol.syntax)
        self._pay = find_pay(options.syntax, options.variant, options.reward)
        self.stop = self.syntax.stop + self._protocol.ends
        self.continues = self.syntax.continues
        self.prefill = self._protocol.prefill
        of_rows = options.tasks != WORLD
        self.system_prompt = self._instructions(of_rows and self.tasks[0].own_prompt)
        if options.instructions and self.syntax.form == "chat":
            self.tool_schemas = (SEARCH_SCHEMA, *self.tool_schemas)
        self.reward_range = (self._pay.least, self._pay.most)
        self.reward_floor = self._pay.floor
        self.rubric = make_rubric(options.rubric) if options.rubric else None
        if self.rubric is not None:
            self.reward_range = self.rubric.reward_range
            self.reward_floor = self.rubric.reward_floor

    @classmethod
    def dataset(cls, options: EnvOptions) -> Dataset[SearchTask] | None:
        """The data set of ``tasks``, or None for questions about the world."""
        chosen = cast(SearchQAOptions, options)
        if chosen.tasks == WORLD:
            return None
        return load_questions(chosen.tasks, chosen.columns).data

    @classmethod
    @asynccontextmanager
    async def open_services(cls, options: EnvOptions) -> AsyncIterator[Mapping[str, Any]]:
        """Open the search tool over the options' passages, and the named tools."""
        chosen = cast(SearchQAOptions, options)
        async with super().open_services(options) as opened, _retriever(chosen) as retriever:
            # The world's sentences name their person; only Search-R1's format has titles.
            of_world = chosen.tasks == WORLD and not chosen.retriever
            titles = not of_world or chosen.syntax == SEARCH_R1.name
            yield {**opened, "search": search_tool(retriever, chosen.top_n, titles=titles)}

    def begin(self, task: SearchTask) -> str:
        """The question."""
        self.system_prompt = self._instructions(task.own_prompt)
        self.state = SearchState(task)
        return task.question

    async def turn(self, action: Action) -> Reply:
        """Reply with a search's result, or end the episode."""
        protocol = self._protocol
        calls = self.syntax.calls(action)
        last = split_reasoning(action, self.state.text if self.continues else "")[1]
        if not calls:
            self._say(action)
            if protocol.retry is None or protocol.answer(action) is not None:
                rewards, scores = self._grade(last, action.finish_reason in OVER_LENGTH)
                return finish(rewards, scores=scores)
            if self.turns_left > 1:
                self.state.text += protocol.retry
                return go_on(protocol.retry)
        else:
            self._say(action[: calls[-1].end])
        records, results = list[EnvToolCall](), list[tuple[str, str]]()
        for call in calls:
            if self.turns_left == 1 and not self.is_final(call):
                continue
            result, record = await self.call(call)
            records.append(record)
            results.append((call.tool, self._shown(call, result)))
            if self.is_final(call) and result.error is None:
                rewards, scores = self._grade(last, False, answer=str(result.data))
                return finish(rewards, scores=scores, tool_calls=records)
        if self.turns_left == 1:
            # No turn is left to read the result.
            rewards, scores = self._grade(last, cut_short=True)
            return cut(StopReason.TURN_LIMIT, rewards, scores=scores, tool_calls=records)
        chat = self.syntax.form == "chat"
        observation = self.put_back(results) if chat else results[0][1]
        self.state.text += observation
        return go_on(observation, tool_calls=records)

    def difficulty(self, task_index: int) -> float:
        """A difficulty that grows with the number of passages that an answer needs, up to three."""
        return min(max(self.tasks[task_index].hops - 1, 0) / 2, 1.0)

    def gold_policy(self) -> Callable[[str], str]:
        """A policy that searches for each hop of the question and answers with the last result.

        For rows it searches for the pages that the row names, and gives the row's answer, which no
        agent sees.
        """
        if self._chosen.tasks == WORLD:
            return GoldPolicy(self._style)
        author: ReferencePolicy | None = None

        def act(observation: str) -> str:
            nonlocal author
            if author is None:
                questions = cast("Sequence[SearchTask]", self.tasks)
                task = next(task for task in questions if task.question == observation)
                author = ReferencePolicy(task, self._style, self.options.max_turns)
            return author(observation)

        return act

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """A policy that guesses, asks sloppy queries and omits hops. Rows have no such policy."""
        chosen = self._chosen
        if chosen.tasks != WORLD:
            raise NotImplementedError("rows have no imperfect author")
        years = has_years(chosen.hops)
        world = make_world(chosen.seed, years=years, distractors=chosen.distractors)
        return CarelessPolicy(world, rng, ErrorRates(), self._style)

    @property
    def _chosen(self) -> SearchQAOptions:
        return cast(SearchQAOptions, self.options)

    @property
    def _style(self) -> Style:
        return STYLES[self._protocol.syntax.name]

    def _instructions(self, own_prompt: bool) -> str | None:
        """The system prompt: the rules of the tools, and the rules of the syntax.

        The rules of the syntax are omitted if the task's own prompt states them.
        """
        if not self._chosen.instructions:
            return None
        syntax = "" if own_prompt else self._protocol.instructions
        return "\n".join(filter(None, [syntax, self.tool_rules])) or None

    def _shown(self, call: Call, result: ToolResult) -> str:
        """The text to insert for a call's result. Also counts the searches."""
        self.state.num_searches += call.tool == "search"
        # Only the search tool's data is a list of passages.
        shown = ToolResult(result.text) if call.tool in self.named_tools else result
        return self._protocol.shown(shown)

    def _say(self, words: str) -> None:
        self.state.text += words
        self.state.written += words

    def _grade(
        self, last: str, cut_short: bool, answer: str | None = None
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Rewards and scores of the episode whose last action, without reasoning, is ``last``.

        The answer is ``answer`` if the agent submitted an answer by a tool. Otherwise the syntax
        finds the answer in the text.
        """
        state = self.state
        text = self._protocol.as_searches(state.text, self.named_tools)
        sought = text if self._protocol.whole else last
        if answer is None:
            answer = self._protocol.answer(sought)
        scores = self._protocol.scores(answer, sought, state.task.answers)
        if cut_short:
            scores["format"] = 0.0
        scores["num_searches"] = float(state.num_searches)
        transcript = Transcript(
            question=state.task.question,
            text=text,
            written=state.written,
            answer=answer,
            golds=tuple(state.task.answers),
            correct=scores["em"],
            complete=not cut_short,
        )
        rewards = self._pay.rewards if self.rubric is None else self.rubric
        return rewards(transcript), scores
