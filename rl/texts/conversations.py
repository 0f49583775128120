"""Conversations: as text, as chat messages, as tokens; files of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.completion import Completion, FinishReason
from agents.renderer import Renderer
from agents.segment import Segment
from rl.texts.lines import read_lines

FORMAT = (
    '{"messages": [...]} with user and assistant messages in turn, after at most one system message'
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What an author read, and what it said."""

    observation: str
    action: str
    ended: bool = True
    """Whether the author ended its message; one that a stop string halted, or a limit, did not."""
    continues: bool = False
    """Whether the observation stands inside the author's own message; never of the first."""
    token_ids: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """The tokens before the author's words, and those words as they were sampled."""
    prefill: str = ""
    """What the author's message begins with, given to it."""
    role: str = "user"
    """Who speaks the observation: a user, or, behind the author's first words, a tool."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A whole episode as text."""

    exchanges: tuple[Exchange, ...]
    system: str | None = None
    tokenizer: str = ""
    """Whose token ids the exchanges hold (``Renderer.identity``); empty: nobody's."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """What the author could call, for chat templates; a file of messages has none."""

    def texts(self) -> Iterator[str]:
        """Every text of it, for training a tokenizer."""
        if self.system:
            yield self.system
        for exchange in self.exchanges:
            yield exchange.observation
            yield exchange.action

    def to_segment(self, renderer: Renderer) -> Segment:
        """Its tokens: an author's words have loss_mask 1, all that it read has 0.

        They are those that were sampled, where these are known and the renderer's own; else the
        texts are rendered.
        """
        segment, own = Segment(), self.tokenizer == renderer.identity
        for turn, exchange in enumerate(self.exchanges):
            known = exchange.token_ids if own else None
            context, words = known or self._rendered(turn, renderer)
            segment.append_context(context, turn)
            segment.append_completion(unsampled(words), turn)
        return segment

    def _rendered(self, turn: int, renderer: Renderer) -> tuple[Sequence[int], Sequence[int]]:
        exchange = self.exchanges[turn]
        if turn == 0:
            context = renderer.begin(exchange.observation, self.system, self.tools)
        elif exchange.continues:
            context = renderer.splice(exchange.observation)
        else:
            ended = self.exchanges[turn - 1].ended
            context = renderer.observe(exchange.observation, ended=ended, role=exchange.role)
        if exchange.prefill and not exchange.continues:
            opened = renderer.opening.rstrip().endswith(exchange.prefill.rstrip())
            context = [*context, *([] if opened else renderer.splice(exchange.prefill))]
        spoken = renderer.splice if exchange.continues else renderer.answer
        words = spoken(exchange.action)
        return context, [*words, renderer.end_token_ids[0]] if exchange.ended else words


def unsampled(tokens: Sequence[int]) -> Completion:
    """An author's tokens in the form of a completion; nobody sampled them at a probability."""
    count = len(tokens)
    return Completion(tuple(tokens), (0.0,) * count, (0,) * count, FinishReason.STOP_TOKEN)


def read_conversations(path: str, key: str = "data") -> list[Conversation]:
    """Conversations from JSON lines of ``{"messages": [{"role": ..., "content": ...}, ...]}``.

    What a message may hold beside: :func:`to_messages`.

    Args:
        path: the file.
        key: the setting that names it, for messages.

    Raises:
        ValueError: a line is not such a conversation; names the file and the line.
    """
    conversations = read_lines(
        path,
        lambda row: conversation_of(row["messages"], row.get("tokenizer", "")),
        FORMAT,
        key=key,
        instead='"demonstrations"' if key == "data" else "",
    )
    if not conversations:
        raise ValueError(f"{key} ({path}) holds no conversation: give it a line for each")
    return conversations


def to_messages(conversation: Conversation) -> list[dict[str, Any]]:
    """The inverse of :func:`conversation_of`.

    Beside role and content a message holds what chat messages cannot say, where it is so:
    ``"ended": false`` of an assistant's that was halted, ``"continues": true`` of a user's that
    stands inside the assistant's, ``"prefill"`` of an assistant's that was begun for it, and the
    ``"token_ids"`` of either.
    """
    system = conversation.system
    messages: list[dict[str, Any]] = []
    if system is not None:
        messages.append({"role": "system", "content": system})
    for exchange in conversation.exchanges:
        read: dict[str, Any] = {"role": exchange.role, "content": exchange.observation}
        said: dict[str, Any] = {"role": "assistant", "content": exchange.action}
        if exchange.continues:
            read["continues"] = True
        if not exchange.ended:
            said["ended"] = False
        if exchange.prefill:
            said["prefill"] = exchange.prefill
        if exchange.token_ids is not None:
            read["token_ids"], said["token_ids"] = map(list, exchange.token_ids)
        messages += [read, said]
    return messages


def conversation_of(messages: Sequence[Mapping[str, Any]], tokenizer: str = "") -> Conversation:
    """The conversation that chat messages are.

    Args:
        messages: user and assistant in turn, after at most one system message; behind the first
            answer a tool may stand for the user.
        tokenizer: whose token ids they hold.

    Raises:
        ValueError: they are not.
        TypeError: a content is no text, or token ids are no integers.
        LookupError: a message lacks its role or its content.
    """
    system = messages[0]["content"] if messages[0]["role"] == "system" else None
    rest = messages[1:] if system is not None else messages
    roles = [message["role"] for message in rest]
    read = {"user"} if len(rest) < 3 else {"user", "tool"}
    in_turn = (
        roles[:1] == ["user"] and set(roles[1::2]) == {"assistant"} and read >= set(roles[::2])
    )
    if not rest or len(rest) % 2 or not in_turn:
        raise ValueError(f"the roles are {roles}")
    texts = [message["content"] for message in rest]
    if not all(isinstance(text, str) for text in (*texts, system or "")):
        raise TypeError("a content is not a text")
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return Conversation(tuple(_exchange(*pair) for pair in pairs), system, tokenizer)


def _exchange(read: Mapping[str, Any], said: Mapping[str, Any]) -> Exchange:
    known = [message["token_ids"] for message in (read, said) if "token_ids" in message]
    if len(known) == 1:
        raise ValueError("token_ids stand in one message of two")
    if not all(type(token) is int for tokens in known for token in tokens):
        raise TypeError("token_ids are no integers")
    return Exchange(
        read["content"],
        said["content"],
        ended=bool(said.get("ended", True)),
        continues=bool(read.get("continues", False)),
        token_ids=(tuple(known[0]), tuple(known[1])) if known else None,
        prefill=str(said.get("prefill", "")),
        role=read["role"],
    )
