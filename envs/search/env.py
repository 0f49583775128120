r"""``search-qa-v0``: answer a question by searching, in the manner of ReSearch or of four others.

In ReSearch's syntax one assistant message holds the whole episode (arXiv:2503.19470)::

    <think> ... </think> <search> sport of Bako </search> <result>
    The sport of Bako is chess.
    </result> <think> ... </think> <answer> \boxed{chess} </answer>

Generation halts at ``</search>``; the environment puts the result in its place, and the message
goes on. An action without a search ends the episode, whether it answers or not: as in ReSearch,
nothing tells an agent that it wrote neither, its reward of 0 does. The other syntaxes, and what
each is paid, are rows of ``envs.search.protocol``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np

from envs.env import EnvOptions, TextEnv
from envs.episode import Action, EnvFailure, EnvToolCall, Reply, StopReason, cut, finish, go_on
from envs.rewards import Transcript, make_rubric
from envs.search.authors import MANNERS, CarelessAuthor, Carelessness, GoldAuthor, Manner
from envs.search.protocol import PROTOCOLS, find_pay
from envs.search.world import SearchTask, SearchTasks, make_world
from tools.retrieval import RankBM25
from tools.search import search_tool
from tools.syntax import Call
from tools.tool import ToolContext, ToolFailure

OVER_LENGTH = ("length", "context_full")
"""Finish reasons of an action that stops in the middle."""


@dataclass(frozen=True, kw_only=True)
class SearchQAOptions(EnvOptions):
    """Which questions, how many passages a search shows, and what is rewarded."""

    max_turns: int = 4
    """Actions per episode: searches, and the one that answers."""
    hops: str = "mixed"
    """"1", "2" or "mixed": how many passages an answer needs."""
    top_n: int = 1
    """Passages shown per search."""
    syntax: str = "re-search"
    """How calls and answers are written: "re-search", "r1-searcher", "search-r1", "fenced" or
    "json"."""
    variant: str = ""
    """Of the syntax's reward; "": the first. "r1-searcher": "stage-2", "stage-1" or "zero";
    "search-r1": "plain" or "format"."""
    reward: str = "code"
    """"code": what the syntax's published code pays; "paper": what its paper says. ReSearch's code:
    F1, 0 for a wrong format or an unfinished text, 0.1 for a wrong answer in the right format; its
    paper: the same, but a right answer in a wrong format counts."""
    rubric: str = ""
    """What is rewarded instead, as a sum of names: "f1 + 0.1*research_format"."""
    instructions: bool = True
    """Whether the rules stand in a system message; without it an agent must know them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hops not in ("1", "2", "mixed"):
            raise ValueError(f"hops ({self.hops!r}) must be one of 1, 2, mixed")
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
    """The assistant's message so far, results included."""
    written: str = ""
    """The agent's words alone."""
    num_searches: int = 0


@lru_cache(maxsize=4)
def _library(seed: int) -> RankBM25:
    return RankBM25(make_world(seed).passages())


class SearchQAEnv(TextEnv[SearchTask, SearchState]):
    """Questions about invented people; see the module's docstring for the protocol."""

    Options = SearchQAOptions
    success_score = "em"

    def __init__(self, options: SearchQAOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, SearchTasks(options.split, options.seed, options.hops), services)
        self._protocol = PROTOCOLS[options.syntax]
        self._pay = find_pay(options.syntax, options.variant, options.reward)
        self.stop = self._protocol.stop
        self.continues = self._protocol.syntax.continues
        self.system_prompt = self._protocol.instructions if options.instructions else None
        self.reward_range = (self._pay.least, self._pay.most)
        self.reward_floor = self._pay.floor
        self.rubric = make_rubric(options.rubric) if options.rubric else None
        if self.rubric is not None:
            self.reward_range = self.rubric.reward_range
            self.reward_floor = self.rubric.reward_floor

    @classmethod
    @asynccontextmanager
    async def open_services(cls, options: EnvOptions) -> AsyncIterator[Mapping[str, Any]]:
        """The search tool over the library of the options' seed."""
        library = await asyncio.to_thread(_library, options.seed)
        yield {"search": search_tool(library, cast(SearchQAOptions, options).top_n)}

    def begin(self, task: SearchTask) -> str:
        """The question."""
        self.state = SearchState(task)
        return task.question

    async def turn(self, action: Action) -> Reply:
        """A search's result, or the end."""
        protocol = self._protocol
        call = protocol.syntax.parse(action)
        if call is None:
            self._say(action)
            if protocol.retry is None or protocol.answer(action) is not None:
                rewards, scores = self._grade(action, action.finish_reason in OVER_LENGTH)
                return finish(rewards, scores=scores)
            if self.turns_left > 1:
                self.state.text += protocol.retry
                return go_on(protocol.retry)
        else:
            self._say(action[: call.end])
        if self.turns_left == 1:
            # Nobody could read the result any more.
            rewards, scores = self._grade(action, cut_short=True)
            return cut(StopReason.TURN_LIMIT, rewards, scores=scores)
        assert call is not None
        observation, record = await self._search(call)
        self.state.text += observation
        return go_on(observation, tool_calls=[record])

    def gold_policy(self) -> Callable[[str], str]:
        """Searches for each hop of the question and answers with what was found."""
        return GoldAuthor(self._manner)

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """The gold author with short cuts: guesses, sloppy queries, a hop left out."""
        world = make_world(self.options.seed)
        return CarelessAuthor(world, rng, Carelessness(), self._manner)

    @property
    def _manner(self) -> Manner:
        return MANNERS[self._protocol.syntax.name]

    async def _search(self, call: Call) -> tuple[str, EnvToolCall]:
        """What a call leads to, as it is put back, and the record of it."""
        error = call.error
        if error is None and call.tool != "search":
            error = f"there is no tool {call.tool!r}; there is: search"
        if error is not None:
            record = EnvToolCall(call.tool, call.arguments, f"Error: {error}", error)
            return self._protocol.told(error), record
        search = await self.service("search")
        context = ToolContext(timeout_s=self.options.step_timeout_s)
        try:
            result = await search(call.arguments, context)
        except ToolFailure as failure:
            raise EnvFailure(f"{self.env_id}: {failure}", retryable=failure.retryable) from failure
        self.state.num_searches += 1
        record = EnvToolCall(call.tool, call.arguments, result.text, result.error)
        return self._protocol.shown(result), record

    def _say(self, words: str) -> None:
        self.state.text += words
        self.state.written += words

    def _grade(self, last: str, cut_short: bool) -> tuple[dict[str, float], dict[str, float]]:
        """Rewards and scores of the episode whose last action is ``last``."""
        state = self.state
        answer = self._protocol.answer(state.text if self._protocol.whole else last)
        scores = self._protocol.scores(answer, state.text, state.task.answers)
        if cut_short:
            scores["format"] = 0.0
        scores["num_searches"] = float(state.num_searches)
        transcript = Transcript(
            question=state.task.question,
            text=state.text,
            written=state.written,
            answer=answer,
            golds=tuple(state.task.answers),
            correct=scores["em"],
            complete=not cut_short,
        )
        rewards = self._pay.rewards if self.rubric is None else self.rubric
        return rewards(transcript), scores
