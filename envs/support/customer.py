"""The customer: a script that answers what it is asked, and the rules of a model in its place."""

from __future__ import annotations

import re
from dataclasses import dataclass

from envs.support import rules
from envs.support.task import SupportTask, Wish

END = "END"
"""The word with which a model that plays the customer ends the conversation."""
YES = "Yes."
_THAT_IS_ALL = "anything else"
_QUESTION = re.compile(r"\?|\bplease\b", re.IGNORECASE)
_CONFIRM = re.compile(r"\bconfirm", re.IGNORECASE)
_ORDER = re.compile(r"\border('s)? (number|id)\b|\b(which|what) order\b|\bnumber\b", re.IGNORECASE)
_NAME = re.compile(r"\bname\b", re.IGNORECASE)
_DETAILS = {
    rules.RETURN: re.compile(r"\brefund|\bcard\b|\bvoucher\b", re.IGNORECASE),
    rules.EXCHANGE: re.compile(r"\bcolou?r\b", re.IGNORECASE),
    rules.ADDRESS: re.compile(r"\baddress\b|\bstreet\b", re.IGNORECASE),
}
"""Words that ask for the detail of a request."""


def asks_to_confirm(message: str) -> bool:
    """Whether a message asks the customer to confirm a change."""
    return bool(_QUESTION.search(message) and _CONFIRM.search(message))


@dataclass(slots=True)
class ScriptedCustomer:
    """A customer who follows rules. It is data that can be pickled.

    The customer answers the questions in a message, reveals nothing else, and agrees to every
    change. A message without a question mark and without "please" ends a request: the customer
    makes the next one, or leaves.
    """

    task: SupportTask
    level: int
    position: int = 0
    """Index of the current request."""

    def opening(self) -> str:
        """The first message about the current request."""
        wish = self.task.wishes[self.position]
        if self.level < rules.ASKS:
            return _whole(wish)
        also = "also " if self.position else ""
        return f"I {also}{_VAGUE[wish.kind]}"

    def reply(self, message: str) -> str | None:
        """The answer to the agent's message, or None if the customer leaves."""
        if not _QUESTION.search(message) or _THAT_IS_ALL in message.lower():
            self.position += 1
            return self.opening() if self.position < len(self.task.wishes) else None
        if asks_to_confirm(message):
            return YES
        return " ".join(self._answers(message)) or self.opening()

    def _answers(self, message: str) -> list[str]:
        wish = self.task.wishes[self.position]
        answers = []
        if _NAME.search(message):
            answers.append(f"My name is {self.task.customer}.")
        if _ORDER.search(message):
            answers.append(f"It is order {wish.order}.")
        asked = _DETAILS.get(wish.kind)
        if asked is not None and asked.search(message):
            answers.append(_detail(wish))
        return answers


_VAGUE = {
    rules.CANCEL: "want to cancel an order.",
    rules.RETURN: "want to return an order.",
    rules.EXCHANGE: "want to exchange an order for another colour.",
    rules.ADDRESS: "want to change the address of an order.",
    rules.PRICE: "want to know what I paid for an order.",
}


def _whole(wish: Wish) -> str:
    """A message with every detail of a request."""
    return {
        rules.CANCEL: f"Cancel order {wish.order}.",
        rules.RETURN: f"Return order {wish.order}. Refund it to my {wish.detail}.",
        rules.EXCHANGE: f"Exchange order {wish.order}. I want {wish.detail}.",
        rules.ADDRESS: f"Send order {wish.order} to {wish.detail}.",
        rules.PRICE: f"What did I pay for order {wish.order}?",
    }[wish.kind]


def _detail(wish: Wish) -> str:
    return {
        rules.RETURN: f"Refund it to my {wish.detail}.",
        rules.EXCHANGE: f"I want {wish.detail}.",
        rules.ADDRESS: f"Send it to {wish.detail}.",
    }[wish.kind]


def customer_prompt(task: SupportTask, opening: str) -> str:
    """The system message of a model that plays the customer."""
    wishes = "\n".join(f"{i}. {_whole(wish)}" for i, wish in enumerate(task.wishes, 1))
    return (
        f"You are {task.customer}, a customer who writes to the support of a shop. These are your "
        f"requests:\n{wishes}\nYou wrote first: {opening!r}. Answer in one or two sentences what "
        f"support asks, and reveal nothing that it did not ask for. Make one request after the "
        f"other. If support asks you to confirm a change that you want, say yes. If support "
        f"refuses a request, accept it. Invent nothing. After support has done or refused all of "
        f"your requests, write only {END}."
    )
