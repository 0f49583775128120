r"""``search-qa-v0``: answer a question by searching, in the manner of ReSearch.

One assistant message holds the whole episode (arXiv:2503.19470)::

    <think> ... </think> <search> sport of Bako </search> <result>
    The sport of Bako is chess.
    </result> <think> ... </think> <answer> \boxed{chess} </answer>

Generation halts at ``</search>``; the environment puts the result in its place, and the message
goes on. An action without a search ends the episode, whether it answers or not: as in ReSearch,
nothing tells an agent that it wrote neither, its reward of 0 does.
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
from envs.rewards.answers import exact_match, f1
from envs.rewards.format import boxed_answer, research_format
from envs.search.authors import CarelessAuthor, Carelessness, GoldAuthor
from envs.search.world import SearchTask, SearchTasks, make_world
from tools.retrieval import RankBM25
from tools.search import search_tool
from tools.syntax import RE_SEARCH
from tools.tool import ToolContext, ToolFailure

FORMAT_REWARD = 0.1
"""What a wrong answer in the right format earns."""
OVER_LENGTH = ("length", "context_full")
"""Finish reasons of an action that stops in the middle."""

# Few and common words: a tokenizer that is trained on episodes has few tokens to spend on them.
INSTRUCTIONS = (
    "Think between <think> and </think>. To search, write <search> words </search>; the <result> "
    "stands after it, up to </result>. You may search more than once. To answer, write "
    r"<answer> \boxed{words} </answer>."
)


@dataclass(frozen=True, kw_only=True)
class SearchQAOptions(EnvOptions):
    """Which questions, how many passages a search shows, and what is rewarded."""

    max_turns: int = 4
    """Actions per episode: searches, and the one that answers."""
    hops: str = "mixed"
    """"1", "2" or "mixed": how many passages an answer needs."""
    top_n: int = 1
    """Passages shown per search."""
    reward: str = "code"
    """"code": F1, 0 for a wrong format or an unfinished text, 0.1 for a wrong answer in the right
    format (what ReSearch's code does); "paper": the same, but a right answer in a wrong format
    counts (what its paper says)."""
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
        if self.reward not in ("code", "paper"):
            raise ValueError(f"reward ({self.reward!r}) must be one of code, paper")
        if self.rubric:
            make_rubric(self.rubric)


@dataclass(slots=True)
class SearchState:
    """An episode's state."""

    task: SearchTask
    text: str = ""
    """The assistant's message so far, results included."""
    written: str = ""
    """The same without the results."""
    num_searches: int = 0


@lru_cache(maxsize=4)
def _library(seed: int) -> RankBM25:
    return RankBM25(make_world(seed).passages())


class SearchQAEnv(TextEnv[SearchTask, SearchState]):
    """Questions about invented people; see the module's docstring for the protocol."""

    Options = SearchQAOptions
    stop = RE_SEARCH.stop
    continues = RE_SEARCH.continues
    success_score = "em"
    reward_range = (0.0, 1.0)
    reward_floor = FORMAT_REWARD

    def __init__(self, options: SearchQAOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, SearchTasks(options.split, options.seed, options.hops), services)
        self.system_prompt = INSTRUCTIONS if options.instructions else None
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
        call = RE_SEARCH.parse(action)
        if call is None:
            self._say(action)
            rewards, scores = self._grade(action.finish_reason in OVER_LENGTH)
            return finish(rewards, scores=scores)
        self._say(action[: call.end])
        if self.turns_left == 1:
            # Nobody could read the result any more.
            rewards, scores = self._grade(over_length=True)
            return cut(StopReason.TURN_LIMIT, rewards, scores=scores)
        search = await self.service("search")
        context = ToolContext(timeout_s=self.options.step_timeout_s)
        try:
            result = await search(call.arguments, context)
        except ToolFailure as error:
            raise EnvFailure(f"{self.env_id}: {error}", retryable=error.retryable) from error
        observation = RE_SEARCH.wrap(result.text)
        self.state.text += observation
        self.state.num_searches += 1
        record = EnvToolCall(call.tool, call.arguments, result.text, result.error)
        return go_on(observation, tool_calls=[record])

    def gold_policy(self) -> Callable[[str], str]:
        """Searches for each hop of the question and answers with what was found."""
        return GoldAuthor()

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """The gold author with short cuts: guesses, sloppy queries, a hop left out."""
        return CarelessAuthor(make_world(self.options.seed), rng, Carelessness())

    def _say(self, words: str) -> None:
        self.state.text += words
        self.state.written += words

    def _grade(self, over_length: bool) -> tuple[dict[str, float], dict[str, float]]:
        """Rewards and scores of the whole message."""
        state, golds = self.state, self.state.task.answers
        answer = boxed_answer(state.text)
        scores = {
            "em": exact_match(answer, golds) if answer is not None else 0.0,
            "f1": f1(answer, golds) if answer is not None else 0.0,
            "format": float(research_format(state.text) is None and not over_length),
            "num_searches": float(state.num_searches),
        }
        if self.rubric is None:
            options = cast(SearchQAOptions, self.options)
            return research_reward(scores["f1"], scores["format"] == 1.0, options.reward), scores
        transcript = Transcript(
            question=state.task.question,
            text=state.text,
            written=state.written,
            answer=answer,
            golds=tuple(golds),
            correct=scores["em"],
            complete=not over_length,
        )
        return self.rubric(transcript), scores


def research_reward(f1_score: float, right_format: bool, kind: str) -> dict[str, float]:
    """ReSearch's reward, as "answer" and "format".

    Args:
        f1_score: best F1 over the golds; 0 where there is no answer.
        right_format: the format holds and the text came to its own end.
        kind: "code" or "paper"; see ``SearchQAOptions.reward``.
    """
    if kind == "code" and not right_format:
        return {"answer": 0.0, "format": 0.0}
    return {
        "answer": f1_score,
        "format": FORMAT_REWARD if f1_score == 0 and right_format else 0.0,
    }
