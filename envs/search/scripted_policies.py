"""Scripted policies: the gold policy, and a careless one for warm starts.

A policy is a function from observation to action, for one episode. It knows only the question and
the results of its searches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from envs.search.world import YEAR, SearchTask, World

_QUESTION = re.compile(r"The person is (\w+)\. Find the (\w+)((?: of the \w+)*)\.")
_COMPARISON = re.compile(r"The people are (\w+) and (\w+)\. Find the (\w+) of the elder\.")
_FACT = re.compile(r"The \w+ of \w+ is (\w+)\.")


@dataclass(frozen=True, slots=True)
class Style:
    """A policy's text format in one syntax."""

    search: Callable[[str], str]
    """Returns the action that searches for a query."""
    answer: Callable[[str], str]
    """Returns the last action, which answers with a value."""
    lead: str = ""
    """Text between a result and the next action."""


# The space before a value gives it the same tokens as in the passage.
STYLES: dict[str, Style] = {
    "re-search": Style(
        search=lambda query: f"<think> </think> <search> {query} </search>",
        answer=lambda value: f"<think> </think> <answer> \\boxed{{ {value} }} </answer>",
        lead=" ",
    ),
    "r1-searcher": Style(
        search=lambda query: f"<|begin_of_query|> {query} <|end_of_query|>",
        answer=lambda value: f"</think> <answer> {value} </answer>",
    ),
    "search-r1": Style(
        search=lambda query: f"<think> </think> <search> {query} </search>",
        answer=lambda value: f"<think> </think> <answer> {value} </answer>",
    ),
    "fenced": Style(
        search=lambda query: f"```search\n {query}\n```\n",
        answer=lambda value: f"<answer> {value} </answer>",
    ),
    "json": Style(
        search=lambda query: (
            "<tool_call>\n"
            + json.dumps({"name": "search", "arguments": {"query": query}})
            + "\n</tool_call>"
        ),
        answer=lambda value: f"<answer> {value} </answer>",
    ),
}
STYLES["chat"] = STYLES["json"]
"""Styles by the name of the syntax."""


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """Probabilities of a careless policy's errors, none of which breaks the format.

    With the defaults, about four answers in ten are right.
    """

    guess: float = 0.05
    """Probability of an answer without a search: a random value of the right kind."""
    name_only: float = 0.4
    """Probability of a query with only the person's name, which can find any passage about the
    person."""
    one_hop: float = 0.5
    """Probability of omitting the second hop. The policy then answers with the name of the friend
    or teacher."""


class GoldPolicy:
    """Reads the question, searches hop by hop, and answers with the last value.

    Args:
        style: the text format.
    """

    def __init__(self, style: Style = STYLES["re-search"]) -> None:
        self._style = style
        self._relations: list[str] = []
        """Relations to look up, in order."""
        self._lead = ""
        """Text between a result and the next action."""
        self._pair: tuple[str, ...] = ()
        """The two people of a comparison."""
        self._years: list[int] = []
        """The birth years of the two people that were found so far."""

    def __call__(self, observation: str) -> str:
        """The next action.

        Raises:
            ValueError: the observation is neither a question nor a passage of this world.
        """
        question, fact = _QUESTION.search(observation), _FACT.search(observation)
        comparison = _COMPARISON.search(observation)
        if question is not None:
            person, attribute, links = question.groups()
            # "the friend of the teacher": the teacher is looked up first.
            self._relations = [*links.split()[::-3], attribute]
            self._lead, self._pair = "", ()
            return self._open(person)
        if comparison is not None:
            *pair, attribute = comparison.groups()
            self._relations = [attribute]
            self._lead, self._pair, self._years = "", tuple(pair), []
            return self._look_up(YEAR, self._pair[0])
        if fact is None:
            raise ValueError(f"{observation!r} is neither a question of this world nor a passage")
        self._lead = self._style.lead
        if len(self._years) < len(self._pair):
            return self._compare(fact[1])
        return self._search(fact[1]) if self._relations else self._answer(fact[1])

    def _open(self, person: str) -> str:
        """The first action of an episode. ``_relations`` must be set."""
        return self._search(person)

    def _query(self, relation: str, person: str) -> str:
        return f"{relation} of {person}"

    def _compare(self, year: str) -> str:
        # A careless query finds another fact; then this person counts as the older one.
        self._years.append(int(year) if year.isdigit() else 0)
        if len(self._years) < len(self._pair):
            return self._look_up(YEAR, self._pair[1])
        return self._search(self._pair[self._years.index(min(self._years))])

    def _search(self, person: str) -> str:
        return self._look_up(self._relations.pop(0), person)

    def _look_up(self, relation: str, person: str) -> str:
        return self._lead + self._style.search(self._query(relation, person))

    def _answer(self, value: str) -> str:
        return self._lead + self._style.answer(value)


class CarelessPolicy(GoldPolicy):
    """A policy that makes errors, but otherwise plays as the gold policy does.

    Args:
        world: source of guesses.
        rng: draws the errors.
        how: probabilities of the errors.
        style: the text format.
    """

    def __init__(
        self,
        world: World,
        rng: np.random.Generator,
        how: ErrorRates,
        style: Style = STYLES["re-search"],
    ) -> None:
        super().__init__(style)
        self._world, self._rng, self._how = world, rng, how

    def _open(self, person: str) -> str:
        if self._rng.random() < self._how.guess:
            values = self._world.inventory(self._relations[-1])
            return self._answer(values[int(self._rng.integers(len(values)))])
        if len(self._relations) > 1 and self._rng.random() < self._how.one_hop:
            self._relations.pop()
        return self._search(person)

    def _query(self, relation: str, person: str) -> str:
        careless = self._rng.random() < self._how.name_only
        return person if careless else super()._query(relation, person)


class ReferencePolicy:
    """Searches for each page that an answer needs, while turns remain, and gives the gold answer.

    The pages and the answer come from the row, which no agent sees.

    Args:
        task: a row's question.
        style: the text format.
        max_turns: number of actions.
    """

    def __init__(self, task: SearchTask, style: Style, max_turns: int) -> None:
        self._task, self._style = task, style
        self._queries = list(task.titles or (task.question,))[: max_turns - 1]
        self._lead = ""

    def __call__(self, observation: str) -> str:
        """The next action; ignores the observation."""
        lead, self._lead = self._lead, self._style.lead
        if self._queries:
            return lead + self._style.search(self._queries.pop(0))
        return lead + self._style.answer(self._task.answers[0])
