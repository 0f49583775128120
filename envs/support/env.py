r"""``support-v0``: serve customers of a shop by tools over its database, and obey its rules.

A message with a call reads or changes the database; any other message goes to the customer::

    Cancel order 417.
    <tool_call>{"name": "get_order", "arguments": {"order": "417"}}</tool_call>
    <tool_response>
    Order 417 is shipped. A red mug for $38, paid by card. Customer: Ada, 5 Elm Street.
    </tool_response>
    <tool_call>{"name": "refuse", "arguments": {"order": "417", "rule": "1"}}</tool_call>
    <tool_response>
    The request about order 417 is refused.
    </tool_response>
    I cannot cancel it: Rule 1.

The customer is a script, or another role of the episode. At the end the database
must equal the one that ``envs.support.outcome`` derives from the task, and the customer must have
read certain amounts. As in tau2-bench, every part must be right to earn the reward.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from envs.datasets.generated import DrawnTasks
from envs.env import EnvOptions, Snapshot, TextEnv
from envs.episode import (
    Action,
    EnvToolCall,
    Reply,
    StopReason,
    ToolResults,
    cut,
    finish,
    go_on,
)
from envs.options import Card
from envs.support.customer import (
    END,
    ScriptedCustomer,
    asks_to_confirm,
    customer_prompt,
)
from envs.support.desk import tools_of
from envs.support.outcome import expected_shop, said_amounts
from envs.support.rules import CONFIRMS, KINDS, policy_text
from envs.support.scripted_policies import CarelessPolicy, GoldPolicy
from envs.support.shop import Shop
from envs.support.task import SupportTask, draw_task
from tools.calls import listed
from tools.chat_calls import CHAT
from tools.syntax import JSON_CALL, Call
from tools.tool import ToolResult

AGENT, CUSTOMER = "agent", "customer"
"""The roles of an episode with ``customer="role"``."""
SYNTAXES = {"json": JSON_CALL, "chat": CHAT}
_YES = re.compile(r"\byes\b", re.IGNORECASE)
_END = re.compile(rf"\b{END}\b")


@dataclass(frozen=True, kw_only=True)
class SupportOptions(EnvOptions):
    """Options of the requests, the customer and the format."""

    max_turns: int = 12
    """Maximum number of messages, including those of a customer that a model plays. An episode
    that reaches it earns 0."""
    level: int = 1
    """1: the customer's first message has every detail. 2: the agent must ask for details, and for
    the name, which must be the order's. 3: two requests, changes need the customer's confirmation,
    and the agent must say refunds and price differences. It needs max_turns of about 24."""
    requests: str = "cancel"
    """Kinds of requests: "all", or some of "cancel, return, exchange, address, price". Each kind
    adds its tools and rules."""
    customer: str = "script"
    """ "script", or "role" for a role "customer" of the episode. The policy plays it, or a partner
    (partner.role=customer)."""
    syntax: str = "json"
    """Text format of calls: "json" (Hermes), or "chat" for the format of the model's own chat
    template."""
    instructions: bool = True
    """Whether a system message holds the rules; without it the agent must know the rules."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.level <= CONFIRMS:
            raise ValueError(f"level ({self.level}) must be from 1 to {CONFIRMS}")
        for kind in self.kinds:
            if kind not in KINDS:
                known = ", ".join(KINDS)
                raise ValueError(f"requests ({self.requests!r}) must be all, or some of {known}")
        if self.customer not in ("script", "role"):
            raise ValueError(f"customer ({self.customer!r}) must be one of script, role")
        if self.syntax not in SYNTAXES:
            raise ValueError(f"syntax ({self.syntax!r}) must be one of {', '.join(SYNTAXES)}")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of requests."""
        if self.requests == "all":
            return KINDS
        return tuple(dict.fromkeys(kind.strip() for kind in self.requests.split(",")))


@dataclass(slots=True)
class SupportState:
    """An episode's state."""

    task: SupportTask
    shop: Shop
    customer: ScriptedCustomer
    messages: list[str]
    """The agent's messages to the customer."""
    asked: bool = False
    """Whether the agent's last message asks the customer to confirm."""
    confirmed: bool = False
    """Whether the customer agreed to a change that the agent has not made yet."""
    unconfirmed: int = 0
    """Number of changes without a confirmation."""
    invalid: int = 0
    """Number of consecutive malformed calls."""


class SupportEnv(TextEnv[SupportTask, SupportState]):
    """Customers of a shop; see the module's docstring for the protocol."""

    Options = SupportOptions
    card = Card(
        agent="serves customers of a shop by tools over its database, and obeys the shop's rules",
        reward="1 if the database is right at the end and the customer read what it must",
    )
    success_score = "resolved"

    def __init__(self, options: SupportOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, _tasks(options), services)
        self.syntax = SYNTAXES[options.syntax]
        self.tools = tools_of(options.kinds)
        self.roles = (AGENT, CUSTOMER) if options.customer == "role" else ()
        self._dress()

    def begin(self, task: SupportTask) -> str:
        """The customer's first message."""
        customer = ScriptedCustomer(task, self._chosen.level)
        self.state = SupportState(task, task.shop.copy(), customer, [])
        self.role = AGENT if self._chosen.customer == "role" else ""
        self._dress()
        return customer.opening()

    def turn(self, action: Action) -> Reply:
        """Make the calls of a message, or pass the message on."""
        if self.role == CUSTOMER:
            return self._customer_says(action)
        calls = self.syntax.calls(action)
        if calls:
            return self._called(calls)
        message = action.content.strip()
        state = self.state
        state.invalid = 0
        state.messages.append(message)
        state.asked = asks_to_confirm(message)
        if self.role == AGENT:
            self.role = CUSTOMER
            self._dress()
            return go_on(message)
        answer = state.customer.reply(message)
        return self._finished() if answer is None else self._answered(answer)

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot, with the tools of the role that acts next."""
        super().restore(snapshot)
        self._dress()

    def difficulty(self, task_index: int) -> float:
        """A difficulty that grows with the level."""
        return (self._chosen.level - 1) / (CONFIRMS - 1)

    def gold_policy(self) -> Callable[[str], str]:
        """A policy that serves every customer rightly.

        With ``customer="role"`` there is none: no policy can play the customer from observations
        alone, because the system message of the role holds the requests.
        """
        if self._chosen.customer == "role":
            raise NotImplementedError(f"{self._name} with customer='role' has no gold_policy")
        return GoldPolicy(_call_text, self._chosen.level)

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """A policy that changes orders blindly or misjudges them. It also plays the customer."""
        return self._both(CarelessPolicy(_call_text, self._chosen.level, rng))

    @property
    def _chosen(self) -> SupportOptions:
        return cast(SupportOptions, self.options)

    def _dress(self) -> None:
        """Set the rules, the tools and the stop strings of the role that acts next."""
        if self.role == CUSTOMER:
            opening = ScriptedCustomer(self.state.task, self._chosen.level).opening()
            self.system_prompt = customer_prompt(self.state.task, opening)
            self.stop, self.tool_schemas = (), ()
            return
        self.stop, self.system_prompt = self.syntax.stop, None
        if not self._chosen.instructions:
            return
        self.system_prompt = policy_text(self._chosen.kinds, self._chosen.level)
        schemas = tuple(tool.schema for tool in self.tools.values())
        if self.syntax.form == "chat":
            self.tool_schemas = schemas
        else:
            self.system_prompt += f"\n{listed(schemas)}"

    def _both(self, agent: Callable[[str], str]) -> Callable[[str], str]:
        """A policy that plays the script where the customer is a role."""
        script: ScriptedCustomer | None = None

        def act(observation: str) -> str:
            nonlocal script
            if self.role != CUSTOMER:
                return agent(observation)
            if script is None:
                script = ScriptedCustomer(self.state.task, self._chosen.level)
            answer = script.reply(observation)
            return END if answer is None else answer

        return act

    def _called(self, calls: list[Call]) -> Reply:
        """Make the calls of a message."""
        records, results = list[EnvToolCall](), list[tuple[str, str]]()
        for call in calls:
            result = self._call(call)
            records.append(EnvToolCall.of(call.tool, call.arguments, result))
            results.append((call.tool, result.text))
        valid = any(record.error is None for record in records)
        self.state.invalid = 0 if valid else self.state.invalid + 1
        if self.state.invalid >= self.max_invalid_actions:
            return cut(StopReason.INVALID_ACTIONS, scores=self._scores(), tool_calls=records)
        if self.syntax.form == "chat":
            return go_on(ToolResults.of(results), tool_calls=records)
        wrapped = [self.syntax.wrap(text) for _, text in results]
        return go_on("\n".join(wrapped), tool_calls=records)

    def _call(self, call: Call) -> ToolResult:
        tool, error, state = self.tools.get(call.tool), call.error, self.state
        if error is None and tool is None:
            error = f"there is no tool {call.tool!r}; there is: {', '.join(self.tools)}"
        if error is not None or tool is None:
            return ToolResult(f"Error: {error}", error=error)
        result = tool.call(state.shop, call.arguments)
        if tool.writes and result.error is None:
            state.unconfirmed += not state.confirmed
            state.confirmed = False
        return result

    def _customer_says(self, message: Action) -> Reply:
        """Pass a message of the customer's role to the agent."""
        text = message.content.strip()
        if _END.search(text):
            return self._finished()
        self.role = AGENT
        self._dress()
        return self._answered(text)

    def _answered(self, answer: str) -> Reply:
        state = self.state
        if state.asked and _YES.search(answer):
            state.confirmed = True
        return go_on(answer)

    def _finished(self) -> Reply:
        scores = self._scores()
        name = f"{AGENT}/resolved" if self.role else "resolved"
        return finish({name: scores["resolved"]}, scores=scores)

    def _scores(self) -> dict[str, float]:
        """The parts of the reward, and the reward itself, as if the episode ended now."""
        state, level = self.state, self._chosen.level
        scores = {
            "database": float(state.shop == expected_shop(state.task, level)),
            "said": float(said_amounts(state.task, level, state.messages)),
            "confirmed": float(level < CONFIRMS or not state.unconfirmed),
        }
        return {**scores, "resolved": float(all(scores.values()))}


def _call_text(name: str, arguments: Mapping[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{call}</tool_call>"


def _tasks(options: SupportOptions) -> DrawnTasks[SupportTask]:
    kinds, level = options.kinds, options.level
    return DrawnTasks(
        f"support {' '.join(kinds)} {level}",
        options.split,
        options.seed,
        lambda rng: draw_task(rng, kinds, level),
        lambda task: task.key,
    )
