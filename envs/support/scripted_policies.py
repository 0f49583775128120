"""Scripted policies: one serves every customer rightly; the other errs, for warm starts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.support import rules
from envs.support.customer import YES
from envs.support.shop import DELIVERED, PENDING, VOUCHER

_KINDS = {
    rules.CANCEL: re.compile(r"\bcancel", re.IGNORECASE),
    rules.RETURN: re.compile(r"\breturn", re.IGNORECASE),
    rules.EXCHANGE: re.compile(r"\bexchange", re.IGNORECASE),
    rules.ADDRESS: re.compile(r"\baddress\b|\bSend order\b"),
    rules.PRICE: re.compile(r"\bpay\b|\bpaid for\b"),
}
_QUESTIONS = {
    rules.RETURN: " Do you want the refund on your card or as a voucher?",
    rules.EXCHANGE: " Which colour do you want?",
    rules.ADDRESS: " What is the new address?",
}
_DETAILS = {
    rules.RETURN: re.compile(r"Refund it to my (\w+)"),
    rules.EXCHANGE: re.compile(r"I want (\w+)\.$"),
    rules.ADDRESS: re.compile(r"Send (?:it|order \d+) to (.+)\.$"),
}
_NUMBER = re.compile(r"\border (\d+)")
_NAME = re.compile(r"My name is (\w+)")
_SHOWN = re.compile(
    r"Order \d+ is (\w+)(?: (\d+) days ago)?\. A (\w+) (\w+) for \$(\d+), paid by (\w+)\. "
    r"Customer: (\w+),"
)
_PRICED = re.compile(r"(\w+) \$(\d+)")


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """Probabilities of a careless policy's errors, none of which breaks the format.

    With the defaults, about four of five episodes of the first level are right.
    """

    blind: float = 0.2
    """Probability of a change without looking the order up."""
    wrong: float = 0.3
    """Probability of judging an order wrongly: of a refusal of an allowed request, or of a change
    that a rule forbids."""


@dataclass(slots=True)
class _Case:
    """What the policy knows about the current request."""

    kind: str
    number: str = ""
    name: str = ""
    detail: str = ""
    asked: bool = False
    order: re.Match[str] | None = None
    """The order as a tool showed it."""
    stock: dict[str, int] | None = None
    proposed: bool = False
    confirmed: bool = False
    decided: bool = False


class GoldPolicy:
    """Asks for what it needs, looks the order up, and obeys the rules.

    Args:
        written: returns the text of a call.
        level: the environment's level.
    """

    def __init__(self, written: Callable[[str, dict[str, Any]], str], level: int) -> None:
        self._written = written
        self._level = level
        self._case: _Case | None = None

    def __call__(self, observation: str) -> str:
        """The next action.

        Raises:
            ValueError: the first message of a request names no kind of request.
        """
        case = self._read(observation)
        if self._level >= rules.ASKS and not case.asked:
            case.asked = True
            name = "" if case.name else " What is your name?"
            return f"What is the order's number?{name}{_QUESTIONS.get(case.kind, '')}"
        if case.decided:
            return self._close(case)
        return self._decide(case)

    def _decide(self, case: _Case) -> str:
        if case.order is None:
            return self._written("get_order", {"order": case.number})
        if case.kind == rules.EXCHANGE and case.stock is None:
            return self._written("check_stock", {"item": case.order[4]})
        rule = self._broken(case)
        if rule:
            case.decided = True
            return self._written("refuse", {"order": case.number, "rule": str(rule)})
        if case.kind == rules.PRICE:
            return self._close(case)
        if self._level >= rules.CONFIRMS and not case.confirmed:
            case.proposed = True
            to = f" ({case.detail})" if case.detail else ""
            return f"Do you confirm that I {case.kind} order {case.number}{to}?"
        case.decided = True
        return self._change(case)

    def _change(self, case: _Case) -> str:
        order = {"order": case.number}
        name, more = {
            rules.CANCEL: ("cancel_order", {}),
            rules.RETURN: ("return_order", {"refund_to": case.detail}),
            rules.EXCHANGE: ("exchange_order", {"colour": case.detail}),
            rules.ADDRESS: ("change_address", {"address": case.detail}),
        }[case.kind]
        return self._written(name, {**order, **more})

    def _close(self, case: _Case) -> str:
        """The last message about a request, with the amount that the customer must hear."""
        name, self._case = case.name, None
        if name:
            self._case = _Case("", name=name)
        if case.order is None:
            return "Done."
        if case.kind == rules.EXCHANGE and case.stock is not None and case.detail in case.stock:
            difference = abs(case.stock[case.detail] - int(case.order[5]))
            return f"Done. The difference is ${difference}."
        if case.kind == rules.PRICE:
            return f"You paid ${case.order[5]}."
        if case.kind in (rules.CANCEL, rules.RETURN) and self._level >= rules.CONFIRMS:
            return f"Done. The amount is ${case.order[5]}."
        return "Done."

    def _read(self, observation: str) -> _Case:
        """Update the case with an observation."""
        case = self._case
        if case is None or not case.kind:
            kind = next((k for k, found in _KINDS.items() if found.search(observation)), None)
            if kind is None:
                raise ValueError(f"{observation!r} names no kind of request")
            case = self._case = _Case(kind, name=case.name if case else "")
        if (shown := _SHOWN.search(observation)) is not None:
            case.order = shown
        elif "In stock:" in observation:
            case.stock = {colour: int(price) for colour, price in _PRICED.findall(observation)}
        elif case.proposed and observation.startswith(YES[:-1]):
            case.confirmed = True
        else:
            self._read_details(case, observation)
        return case

    @staticmethod
    def _read_details(case: _Case, message: str) -> None:
        if (number := _NUMBER.search(message)) is not None:
            case.number = number[1]
        if (name := _NAME.search(message)) is not None:
            case.name = name[1]
        wanted = _DETAILS.get(case.kind)
        if wanted is not None and (detail := wanted.search(message)) is not None:
            case.detail = detail[1]

    def _broken(self, case: _Case) -> int:
        """The rule that the request breaks, judged by what the tools showed; 0 if none."""
        assert case.order is not None
        status, days, _, _, _, paid_by, name = case.order.groups()
        if self._level >= rules.ASKS and name != case.name:
            return rules.OWN_ORDER
        if case.kind == rules.CANCEL:
            return 0 if status == PENDING else rules.ONLY_PENDING
        if case.kind == rules.ADDRESS:
            return 0 if status == PENDING else rules.ADDRESS_OF_PENDING
        if case.kind == rules.PRICE:
            return 0
        if status != DELIVERED:
            return rules.ONLY_DELIVERED
        if int(days) > rules.RETURN_DAYS:
            return rules.IN_TIME
        if case.kind == rules.RETURN:
            return rules.AS_PAID if paid_by == VOUCHER and case.detail != VOUCHER else 0
        assert case.stock is not None
        return 0 if case.detail in case.stock else rules.IN_STOCK


class CarelessPolicy(GoldPolicy):
    """A policy that makes errors, but otherwise serves as the gold policy does.

    Args:
        written: returns the text of a call.
        level: the environment's level.
        rng: draws the errors.
        how: probabilities of the errors.
    """

    def __init__(
        self,
        written: Callable[[str, dict[str, Any]], str],
        level: int,
        rng: np.random.Generator,
        how: ErrorRates | None = None,
    ) -> None:
        super().__init__(written, level)
        self._rng, self._how = rng, how or ErrorRates()

    def _decide(self, case: _Case) -> str:
        if case.order is None and case.kind != rules.PRICE and self._errs(self._how.blind):
            case.decided = True
            return self._change(case)
        return super()._decide(case)

    def _broken(self, case: _Case) -> int:
        right = super()._broken(case)
        possible = rules.rules_of(case.kind, self._level)
        if case.confirmed or not possible or not self._errs(self._how.wrong):
            return right
        return 0 if right else possible[int(self._rng.integers(len(possible)))]

    def _errs(self, probability: float) -> bool:
        return bool(self._rng.random() < probability)
