"""The shop's rules, and the text of them that the agent reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

CANCEL, RETURN, EXCHANGE, ADDRESS, PRICE = "cancel", "return", "exchange", "address", "price"
KINDS = (CANCEL, RETURN, EXCHANGE, ADDRESS, PRICE)
"""Kinds of requests."""
RETURN_DAYS = 30
"""Days after the delivery during which an order can be returned or exchanged."""
ASKS, CONFIRMS = 2, 3
"""Lowest levels at which customers reveal details on request, and at which changes need a
confirmation."""

(
    ONLY_PENDING,
    ONLY_DELIVERED,
    IN_TIME,
    AS_PAID,
    IN_STOCK,
    ADDRESS_OF_PENDING,
    OWN_ORDER,
) = range(1, 8)
"""Numbers of the rules."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that some requests break."""

    text: str
    kinds: tuple[str, ...]
    """Kinds of requests that the rule concerns."""
    level: int = 1
    """Lowest level that has the rule."""


RULES = {
    ONLY_PENDING: Rule("Only a pending order can be cancelled.", (CANCEL,)),
    ONLY_DELIVERED: Rule(
        "Only a delivered order can be returned or exchanged.", (RETURN, EXCHANGE)
    ),
    IN_TIME: Rule(
        f"An order can be returned or exchanged up to {RETURN_DAYS} days after its delivery.",
        (RETURN, EXCHANGE),
    ),
    AS_PAID: Rule("An order paid by voucher is refunded to a voucher only.", (RETURN,)),
    IN_STOCK: Rule("An order can be exchanged only for a colour in stock.", (EXCHANGE,)),
    ADDRESS_OF_PENDING: Rule("Only a pending order's address can be changed.", (ADDRESS,)),
    OWN_ORDER: Rule(
        "Serve only the customer of the order: the name that the customer gives must be the "
        "order's.",
        KINDS,
        ASKS,
    ),
}
"""The rules by number."""


def rules_of(kind: str, level: int) -> list[int]:
    """The numbers of the rules that a request of this kind can break."""
    return [n for n, rule in RULES.items() if kind in rule.kinds and level >= rule.level]


def policy_text(kinds: Iterable[str], level: int) -> str:
    """The policy that the agent reads."""
    kinds = tuple(kinds)
    numbers = sorted({number for kind in kinds for number in rules_of(kind, level)})
    lines = [
        "You are the support of a shop. A message without a call goes to the customer. A message "
        "with a question mark asks the customer something. Any other message ends the request, so "
        "send it when the request is done or refused.",
        "Look an order up before you decide. If a request breaks a rule, change nothing: call "
        "refuse with the rule's number, and say so.",
        *(f"Rule {number}: {RULES[number].text}" for number in numbers),
    ]
    if PRICE in kinds:
        lines.append("If the customer asks what an order cost, say its price.")
    if level >= ASKS:
        lines.append("Ask for the customer's name, the order's number and any other detail.")
    if level >= CONFIRMS:
        lines.append(
            "Before each change, describe the change and ask the customer to confirm it. After a "
            "cancellation or a return say the amount of the refund, and after an exchange the "
            "difference between the two prices, as in $12. Customers may have several requests, "
            "one after the other."
        )
    return "\n".join(lines)
