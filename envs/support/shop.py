"""The shop's database: orders, the stock, and the requests that support refused."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

ITEMS = ("mug", "lamp", "bag", "clock", "chair", "scarf", "kettle", "tent")
COLOURS = ("red", "blue", "green", "black", "white", "brown")
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jana", "Kim", "Leo")
STREETS = ("Elm Street", "Oak Road", "Hill Lane", "Lake Way", "Mill Row", "Park Place")
STATUSES = ("pending", "shipped", "delivered", "cancelled")
PENDING, DELIVERED, CANCELLED, RETURNED, EXCHANGED = (
    *("pending", "delivered", "cancelled"),
    *("returned", "exchanged"),
)
CARD, VOUCHER = "card", "voucher"


@dataclass(frozen=True, slots=True)
class Order:
    """One order of one item."""

    number: str
    name: str
    """The customer's first name."""
    item: str
    colour: str
    price: int
    """The price in dollars."""
    paid_by: str
    address: str
    status: str
    days: int = 0
    """Days since the delivery; 0 if the order is not delivered."""
    refunded_to: str = ""
    """Where the money went back: ``card`` or ``voucher``; empty if there was no refund."""

    def shown(self) -> str:
        """The order as the agent's tools show it."""
        since = f" {self.days} days ago" if self.status == DELIVERED else ""
        return (
            f"Order {self.number} is {self.status}{since}. A {self.colour} {self.item} for "
            f"${self.price}, paid by {self.paid_by}. Customer: {self.name}, {self.address}."
        )


@dataclass(slots=True)
class Shop:
    """The database. Two equal databases have the same orders and refusals."""

    orders: dict[str, Order]
    """Orders by number."""
    stock: Mapping[str, Mapping[str, int]]
    """For each item, the price in dollars of each colour in stock."""
    refusals: dict[str, int] = field(default_factory=dict)
    """For each order of which a request was refused, the number of the rule."""

    def copy(self) -> Shop:
        """A copy. Changes of one database do not change the other."""
        return Shop(dict(self.orders), self.stock, dict(self.refusals))


def draw_shop(rng: random.Random, num_orders: int) -> Shop:
    """A database with random orders and a random stock."""
    stock = {}
    for item in ITEMS:
        colours = rng.sample(COLOURS, 3)
        stock[item] = {colour: rng.randint(5, 99) for colour in sorted(colours)}
    numbers = [str(number) for number in rng.sample(range(100, 1000), num_orders)]
    return Shop({number: draw_order(rng, number, stock) for number in numbers}, stock)


def draw_order(rng: random.Random, number: str, stock: Mapping[str, Mapping[str, int]]) -> Order:
    """A random order of an item in stock."""
    item = rng.choice(ITEMS)
    colour = rng.choice(sorted(stock[item]))
    status = rng.choice(STATUSES)
    return Order(
        number=number,
        name=rng.choice(NAMES),
        item=item,
        colour=colour,
        price=stock[item][colour],
        paid_by=rng.choice((CARD, VOUCHER)),
        address=draw_address(rng),
        status=status,
        days=rng.randint(1, 60) if status == DELIVERED else 0,
    )


def draw_address(rng: random.Random) -> str:
    """A random address."""
    return f"{rng.randint(1, 99)} {rng.choice(STREETS)}"
