"""The right end of a task, derived from its requests and the rules alone.

Nothing here calls the agent's tools, so an error in a tool cannot hide itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from envs.support import rules
from envs.support.shop import CANCELLED, DELIVERED, EXCHANGED, PENDING, RETURNED, VOUCHER, Shop
from envs.support.task import SupportTask, Wish

_AMOUNT = re.compile(r"\$\s?(\d+)|\b(\d+)(?:\.00)? (?:dollars|USD)\b")
AMOUNTS_PER_WISH = 4
"""Number of different amounts that an agent may say for each request. Naming every amount does not
count as saying the right one."""


def broken_rule(task: SupportTask, wish: Wish, level: int) -> int:
    """The number of the rule that a request breaks, or 0."""
    order, kind = task.shop.orders[wish.order], wish.kind
    late = order.days > rules.RETURN_DAYS
    violated = {
        rules.OWN_ORDER: order.name != task.customer,
        rules.ONLY_PENDING: order.status != PENDING,
        rules.ADDRESS_OF_PENDING: order.status != PENDING,
        rules.ONLY_DELIVERED: order.status != DELIVERED,
        rules.IN_TIME: late,
        rules.AS_PAID: order.paid_by == VOUCHER and wish.detail != VOUCHER,
        rules.IN_STOCK: wish.detail not in task.shop.stock[order.item],
    }
    return next((n for n in rules.rules_of(kind, level) if violated[n]), 0)


def expected_shop(task: SupportTask, level: int) -> Shop:
    """The database after every allowed request was done and every other one refused."""
    orders, refusals = dict(task.shop.orders), dict[str, int]()
    for wish in task.wishes:
        order, rule = orders[wish.order], broken_rule(task, wish, level)
        if rule:
            refusals[wish.order] = rule
        elif wish.kind == rules.CANCEL:
            orders[wish.order] = replace(order, status=CANCELLED, refunded_to=order.paid_by)
        elif wish.kind == rules.RETURN:
            orders[wish.order] = replace(order, status=RETURNED, refunded_to=wish.detail)
        elif wish.kind == rules.EXCHANGE:
            price = task.shop.stock[order.item][wish.detail]
            orders[wish.order] = replace(order, status=EXCHANGED, colour=wish.detail, price=price)
        elif wish.kind == rules.ADDRESS:
            orders[wish.order] = replace(order, address=wish.detail)
    return Shop(orders, task.shop.stock, refusals)


def expected_amounts(task: SupportTask, level: int) -> list[int]:
    """The amounts in dollars that the agent must say to the customer."""
    amounts, refunds = [], (rules.CANCEL, rules.RETURN)
    for wish in task.wishes:
        order, says_refund = task.shop.orders[wish.order], level >= rules.CONFIRMS
        if broken_rule(task, wish, level):
            continue
        if wish.kind == rules.PRICE or (says_refund and wish.kind in refunds):
            amounts.append(order.price)
        elif says_refund and wish.kind == rules.EXCHANGE:
            amounts.append(abs(task.shop.stock[order.item][wish.detail] - order.price))
    return amounts


def said_amounts(task: SupportTask, level: int, messages: Sequence[str]) -> bool:
    """Whether messages to the customer state every expected amount, and not too many amounts."""
    said = {int(a or b) for text in messages for a, b in _AMOUNT.findall(text)}
    few = len(said) <= AMOUNTS_PER_WISH * len(task.wishes)
    return few and said.issuperset(expected_amounts(task, level))
