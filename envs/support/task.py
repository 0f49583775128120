"""Generated tasks: a database, and a customer who wants something."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from envs.support import rules
from envs.support.shop import (
    CARD,
    COLOURS,
    DELIVERED,
    NAMES,
    PENDING,
    STATUSES,
    VOUCHER,
    Order,
    Shop,
    draw_address,
    draw_shop,
)

NUM_ORDERS = 6
REFUSED = 0.4
"""Share of requests that break a rule."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One request of a customer."""

    kind: str
    order: str
    detail: str = ""
    """Where the refund of a return goes, the colour of an exchange, or the new address."""


@dataclass(frozen=True, slots=True)
class SupportTask:
    """A task: the database at the start, and what the customer wants."""

    shop: Shop
    """The database. Episodes work on a copy."""
    customer: str
    """The customer's name."""
    wishes: tuple[Wish, ...]

    @property
    def key(self) -> str:
        """The task's content, whose hash selects the split."""
        parts = [self.customer]
        for wish in self.wishes:
            parts += [wish.kind, wish.detail, self.shop.orders[wish.order].shown()]
        return "|".join(parts)


def draw_task(rng: random.Random, kinds: Sequence[str], level: int) -> SupportTask:
    """A random task.

    Args:
        rng: source of all random choices.
        kinds: kinds of requests.
        level: the level; customers of the highest level have two requests.
    """
    shop = draw_shop(rng, NUM_ORDERS)
    customer = rng.choice(NAMES)
    numbers = rng.sample(sorted(shop.orders), 2 if level >= rules.CONFIRMS else 1)
    wishes = tuple(_draw_wish(rng, shop, customer, n, kinds, level) for n in numbers)
    return SupportTask(shop, customer, wishes)


def _draw_wish(
    rng: random.Random, shop: Shop, customer: str, number: str, kinds: Sequence[str], level: int
) -> Wish:
    """A request that breaks at most one rule. Its order is written into ``shop``."""
    kind = rng.choice(list(kinds))
    breakable = rules.rules_of(kind, level)
    broken = rng.choice(breakable) if breakable and rng.random() < REFUSED else 0
    order = _allowed(rng, replace(shop.orders[number], name=customer), kind)
    detail = _draw_detail(rng, shop, order, kind)
    if broken == rules.OWN_ORDER:
        order = replace(order, name=rng.choice([n for n in NAMES if n != customer]))
    elif broken in (rules.ONLY_PENDING, rules.ADDRESS_OF_PENDING):
        order = _with_status(rng, order, [s for s in STATUSES if s != PENDING])
    elif broken == rules.ONLY_DELIVERED:
        order = _with_status(rng, order, [s for s in STATUSES if s != DELIVERED])
    elif broken == rules.IN_TIME:
        order = replace(order, days=rng.randint(rules.RETURN_DAYS + 1, 60))
    elif broken == rules.AS_PAID:
        order, detail = replace(order, paid_by=VOUCHER), CARD
    elif broken == rules.IN_STOCK:
        detail = rng.choice([c for c in COLOURS if c not in shop.stock[order.item]])
    shop.orders[number] = order
    return Wish(kind, number, detail)


def _allowed(rng: random.Random, order: Order, kind: str) -> Order:
    """The order with a status that allows a request of this kind."""
    if kind in (rules.CANCEL, rules.ADDRESS):
        return replace(order, status=PENDING, days=0)
    if kind in (rules.RETURN, rules.EXCHANGE):
        return replace(order, status=DELIVERED, days=rng.randint(1, rules.RETURN_DAYS))
    return order


def _draw_detail(rng: random.Random, shop: Shop, order: Order, kind: str) -> str:
    """A detail that breaks no rule."""
    if kind == rules.RETURN:
        return VOUCHER if order.paid_by == VOUCHER else rng.choice((CARD, VOUCHER))
    if kind == rules.EXCHANGE:
        return rng.choice([c for c in sorted(shop.stock[order.item]) if c != order.colour])
    if kind == rules.ADDRESS:
        return draw_address(rng)
    return ""


def _with_status(rng: random.Random, order: Order, statuses: Sequence[str]) -> Order:
    status = rng.choice(list(statuses))
    days = rng.randint(1, rules.RETURN_DAYS) if status == DELIVERED else 0
    return replace(order, status=status, days=days)
