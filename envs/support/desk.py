"""The tools of the support desk: functions over the shop's database.

The tools check no rule. Whether a change is allowed is the agent's decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from envs.support import rules
from envs.support.shop import CANCELLED, CARD, EXCHANGED, RETURNED, VOUCHER, Order, Shop
from tools.tool import ToolResult


class Mistake(Exception):
    """Raised when a call cannot be made. The agent reads the message."""


@dataclass(frozen=True, slots=True)
class DeskTool:
    """A tool of the desk."""

    name: str
    description: str
    arguments: Mapping[str, str]
    """The description of each argument, by name. Every argument is required."""
    kinds: tuple[str, ...]
    """Kinds of requests that need the tool."""
    run: Callable[..., str]
    """Applies the call to a database, and returns the result's text."""
    writes: bool = True
    """Whether the tool changes an order."""

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in OpenAI's format."""
        properties = {
            name: {"type": "string", "description": text} for name, text in self.arguments.items()
        }
        parameters = {"type": "object", "properties": properties, "required": [*self.arguments]}
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": parameters,
        }
        return {"type": "function", "function": function}

    def call(self, shop: Shop, arguments: Mapping[str, Any]) -> ToolResult:
        """Apply a call to ``shop``. A wrong call changes nothing, and its result says why."""
        try:
            if arguments.keys() != self.arguments.keys():
                raise Mistake(f"{self.name} takes {', '.join(self.arguments)}")
            if not all(isinstance(value, str | int) for value in arguments.values()):
                raise Mistake(f"{self.name} takes texts")
            given = {name: str(value).strip() for name, value in arguments.items()}
            return ToolResult(self.run(shop, **given))
        except Mistake as mistake:
            return ToolResult(f"Error: {mistake}", error=str(mistake))


def _order(shop: Shop, number: str) -> Order:
    found = shop.orders.get(number.lstrip("#"))
    if found is None:
        raise Mistake(f"there is no order {number}")
    return found


def _get(shop: Shop, order: str) -> str:
    return _order(shop, order).shown()


def _cancel(shop: Shop, order: str) -> str:
    found = _order(shop, order)
    shop.orders[found.number] = replace(found, status=CANCELLED, refunded_to=found.paid_by)
    return f"Order {found.number} is cancelled."


def _return(shop: Shop, order: str, refund_to: str) -> str:
    found = _order(shop, order)
    if refund_to not in (CARD, VOUCHER):
        raise Mistake(f"refund_to must be {CARD} or {VOUCHER}")
    shop.orders[found.number] = replace(found, status=RETURNED, refunded_to=refund_to)
    return f"Order {found.number} is returned."


def _stock(shop: Shop, item: str) -> str:
    if item not in shop.stock:
        raise Mistake(f"there is no {item}")
    return f"In stock: {', '.join(f'{c} ${price}' for c, price in shop.stock[item].items())}."


def _exchange(shop: Shop, order: str, colour: str) -> str:
    found = _order(shop, order)
    price = shop.stock[found.item].get(colour)
    if price is None:
        raise Mistake(f"no {colour} {found.item} is in stock")
    shop.orders[found.number] = replace(found, status=EXCHANGED, colour=colour, price=price)
    return f"Order {found.number} is exchanged."


def _change_address(shop: Shop, order: str, address: str) -> str:
    found = _order(shop, order)
    shop.orders[found.number] = replace(found, address=address)
    return f"Order {found.number} goes to {address}."


def _refuse(shop: Shop, order: str, rule: str) -> str:
    found = _order(shop, order)
    if not rule.isdecimal() or int(rule) not in rules.RULES:
        raise Mistake(f"there is no rule {rule}")
    shop.refusals[found.number] = int(rule)
    return f"The request about order {found.number} is refused."


_ORDER = {"order": "the order's number"}
_TOOLS = (
    DeskTool("get_order", "Look an order up.", _ORDER, rules.KINDS, _get, writes=False),
    DeskTool("cancel_order", "Cancel an order.", _ORDER, (rules.CANCEL,), _cancel),
    DeskTool(
        "return_order",
        "Take an order back.",
        {**_ORDER, "refund_to": "card or voucher"},
        (rules.RETURN,),
        _return,
    ),
    DeskTool(
        "check_stock",
        "List an item's colours in stock, with prices.",
        {"item": "the item, as in mug"},
        (rules.EXCHANGE,),
        _stock,
        writes=False,
    ),
    DeskTool(
        "exchange_order",
        "Exchange an order for the same item in another colour.",
        {**_ORDER, "colour": "the new colour"},
        (rules.EXCHANGE,),
        _exchange,
    ),
    DeskTool(
        "change_address",
        "Change where an order goes.",
        {**_ORDER, "address": "the new address, as in 5 Elm Street"},
        (rules.ADDRESS,),
        _change_address,
    ),
    DeskTool(
        "refuse",
        "Refuse a request.",
        {**_ORDER, "rule": "the number of the rule that the request breaks"},
        rules.KINDS,
        _refuse,
        writes=False,
    ),
)


def tools_of(kinds: Iterable[str]) -> dict[str, DeskTool]:
    """The tools that requests of these kinds need, by name."""
    wanted = set(kinds)
    return {tool.name: tool for tool in _TOOLS if wanted & set(tool.kinds)}
