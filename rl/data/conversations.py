"""Conversations as text, as chat messages and as tokens, and files of conversations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.completion import Completion, FinishReason
from agents.renderer import Renderer
from agents.segment import Segment
from envs.episode import ToolResults
from rl.data.json_lines import read_lines
from rl.data.roles import FORMAT, check_roles


@dataclass(frozen=True, slots=True)
class Exchange:
    """An observation and the assistant's answer to it."""

    observation: str
    action: str
    ended: bool = True
    """Whether the assistant ended its message. False if a stop string or a limit ended it."""
    continues: bool = False
    """Whether the observation stands inside the assistant's message. The first observation never
    does."""
    token_ids: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """The tokens before the answer and the sampled tokens of the answer, or None if not
    recorded."""
    prefill: str = ""
    """Text with which the assistant's message starts and which the assistant did not generate."""
    role: str = "user"
    """Role of the observation: "user" or, after the first answer, "tool"."""
    calls: tuple[tuple[str, str], ...] = ()
    """Tool calls after the answer, for the chat template, each a name and the arguments as JSON.
    Calls inside the text of the answer are not repeated here."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation: a system message, exchanges and tools."""

    exchanges: tuple[Exchange, ...]
    system: str | None = None
    tokenizer: str = ""
    """``Renderer.identity`` of the renderer that produced the exchanges' token ids. Empty if there
    are no token ids."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of the available tools, as chat templates list them."""

    def texts(self) -> Iterator[str]:
        """All texts, for training a tokenizer."""
        if self.system:
            yield self.system
        for exchange in self.exchanges:
            yield exchange.observation
            yield exchange.action
            yield from (text for call in exchange.calls for text in call)

    def to_segment(self, renderer: Renderer) -> Segment:
        """The conversation as tokens. loss_mask is 1 in the assistant's answers and 0 elsewhere.

        Uses the recorded tokens if they belong to ``renderer``; otherwise renders the texts.
        """
        segment, own = Segment(), self.tokenizer == renderer.identity
        last: int | None = None
        for turn, exchange in enumerate(self.exchanges):
            known = exchange.token_ids if own else None
            context, words = known or self._rendered(turn, renderer, last)
            last = words[-1] if words else None
            segment.append_context(context, turn)
            segment.append_completion(unsampled(words), turn)
        return segment

    def _rendered(
        self, turn: int, renderer: Renderer, last: int | None
    ) -> tuple[Sequence[int], Sequence[int]]:
        exchange = self.exchanges[turn]
        context: Sequence[int]
        words: Sequence[int]
        if turn == 0:
            context = renderer.begin(exchange.observation, self.system, self.tools)
        elif exchange.continues:
            context = renderer.splice(exchange.observation)
        else:
            context = renderer.observe(exchange.observation, last=last, role=exchange.role)
        if exchange.prefill and not exchange.continues:
            opened = renderer.opening.rstrip().endswith(exchange.prefill.rstrip())
            context = [*context, *([] if opened else renderer.splice(exchange.prefill))]
        calls = [(name, json.loads(arguments)) for name, arguments in exchange.calls]
        if calls or not (exchange.continues or exchange.prefill):
            return renderer.taught(context, exchange.action, calls, ended=exchange.ended)
        words = (renderer.splice if exchange.continues else renderer.answer)(exchange.action)
        return context, [*words, renderer.end_token_ids[0]] if exchange.ended else words


def unsampled(tokens: Sequence[int]) -> Completion:
    """Tokens that no policy sampled, as a completion with log-probabilities of 0."""
    count = len(tokens)
    return Completion(tuple(tokens), (0.0,) * count, (0,) * count, FinishReason.STOP_TOKEN)


def read_conversations(path: str, key: str = "data") -> list[Conversation]:
    """Read conversations from JSON lines of ``{"messages": [{"role": ..., "content": ...}, ...]}``.

    A line can have ``"tools"``, a list of JSON schemas of functions, which the chat template shows
    to the model. For further keys of a message, see :func:`to_messages`.

    Args:
        path: the file.
        key: name of the setting, for error messages.

    Raises:
        ValueError: a line is not a conversation. The message names the file and the line.
    """
    conversations = read_lines(
        path,
        lambda row: conversation_of(row["messages"], row.get("tokenizer", ""), tools_of(row)),
        FORMAT,
        key=key,
        instead='"demonstrations"' if key in ("data", "texts.data") else "",
    )
    if not conversations:
        raise ValueError(f"{key} ({path}) holds no conversation: give it a line for each")
    return conversations


def to_messages(conversation: Conversation) -> list[dict[str, Any]]:
    """The chat messages of a conversation: the inverse of :func:`conversation_of`.

    Besides role and content, messages can have these keys: ``"ended": false`` if a stop string or a
    limit ended an assistant's message; ``"continues": true`` for a user's message inside the
    assistant's; ``"prefill"`` for the start of an assistant's message that was not generated; and
    ``"token_ids"``. ``"tool_calls"`` have OpenAI's format, and each result is a message with the
    role "tool".
    """
    system = conversation.system
    messages: list[dict[str, Any]] = []
    if system is not None:
        messages.append({"role": "system", "content": system})
    for exchange in conversation.exchanges:
        read = _read_messages(exchange)
        said: dict[str, Any] = {"role": "assistant", "content": exchange.action}
        if exchange.calls:
            said["tool_calls"] = [
                {"type": "function", "function": {"name": name, "arguments": arguments}}
                for name, arguments in exchange.calls
            ]
        if exchange.continues:
            read[-1]["continues"] = True
        if not exchange.ended:
            said["ended"] = False
        if exchange.prefill:
            said["prefill"] = exchange.prefill
        if exchange.token_ids is not None:
            read[-1]["token_ids"], said["token_ids"] = map(list, exchange.token_ids)
        messages += [*read, said]
    return messages


def _read_messages(exchange: Exchange) -> list[dict[str, Any]]:
    observation = exchange.observation
    if exchange.role != "tool" or not isinstance(observation, ToolResults):
        return [{"role": exchange.role, "content": observation}]
    return [{"role": "tool", "name": name, "content": text} for name, text in observation.results]


def tools_of(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The schemas in a row's ``"tools"``, which is a list or the JSON text of a list.

    Raises:
        ValueError: ``"tools"`` is something else.
    """
    tools = row.get("tools") or ()
    found = json.loads(tools) if isinstance(tools, str) else tools
    if not isinstance(found, list | tuple) or not all(isinstance(tool, dict) for tool in found):
        raise ValueError(f"tools must be a list of JSON schemas of functions, not {tools!r:.60}")
    return tuple(found)


def conversation_of(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: str = "",
    tools: tuple[Mapping[str, Any], ...] = (),
) -> Conversation:
    """Convert chat messages to a conversation.

    Args:
        messages: messages of user and assistant in turn, after at most one system message. One or
            more tool messages can replace any user's message except the first.
        tokenizer: ``Renderer.identity`` of the renderer that produced the messages' token ids.
        tools: schemas of the available tools.

    Raises:
        ValueError: a role is invalid, or the roles are in another order.
        TypeError: a message's content is not a text, or token ids are not integers.
        LookupError: a message has no content.
    """
    check_roles(messages)
    system = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
    if not isinstance(system, str | None):
        raise TypeError("a content is not a text")
    rest = messages[1:] if system is not None else messages
    roles = [message["role"] for message in rest]
    shape = "".join(_LETTERS[role] for role in roles)
    if not _IN_TURN.fullmatch(shape):
        raise ValueError(f"the roles are {roles}")
    exchanges = list[Exchange]()
    for turn in _TURN.finditer(shape):
        *read, said = rest[turn.start() : turn.end()]
        before = exchanges[-1].calls if exchanges else ()
        exchanges.append(_exchange(_observed(read, before), read[-1], said))
    return Conversation(tuple(exchanges), system, tokenizer, tools)


_LETTERS = {"system": "s", "user": "u", "assistant": "a", "tool": "t"}
_IN_TURN = re.compile(r"ua((u|t+)a)*")
_TURN = re.compile(r"(u|t+)a")


def _observed(read: Sequence[Mapping[str, Any]], calls: Sequence[tuple[str, str]]) -> str:
    """The user's text, or the results of ``calls`` in the order of the calls."""
    texts = [message["content"] for message in read]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a content is not a text")
    if read[0]["role"] == "user":
        return str(texts[0])
    names = [
        str(message.get("name") or (calls[place][0] if place < len(calls) else "tool"))
        for place, message in enumerate(read)
    ]
    return ToolResults.of(zip(names, texts, strict=True))


def _calls_of(said: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """An assistant's ``tool_calls``, in OpenAI's format or as bare functions.

    Raises:
        ValueError: a call has no name, or its arguments are not a JSON object.
    """
    found = list[tuple[str, str]]()
    for call in said.get("tool_calls") or ():
        function = call.get("function", call)
        name, arguments = function.get("name"), function.get("arguments", {})
        known = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        if not isinstance(name, str) or not name or not isinstance(known, dict):
            raise ValueError(
                f"tool_calls hold {call!r:.80}; a call is "
                '{"function": {"name": ..., "arguments": {...}}}'
            )
        found.append((name, json.dumps(known, ensure_ascii=False)))
    return tuple(found)


def _exchange(observation: str, read: Mapping[str, Any], said: Mapping[str, Any]) -> Exchange:
    calls = _calls_of(said)
    action = (said.get("content") or "") if calls else said["content"]
    if not isinstance(action, str):
        raise TypeError("a content is not a text")
    known = [message["token_ids"] for message in (read, said) if "token_ids" in message]
    if len(known) == 1:
        raise ValueError("token_ids stand in one message of two")
    if not all(type(token) is int for tokens in known for token in tokens):
        raise TypeError("token_ids are no integers")
    return Exchange(
        observation,
        action,
        ended=bool(said.get("ended", True)),
        continues=bool(read.get("continues", False)),
        token_ids=(tuple(known[0]), tuple(known[1])) if known else None,
        prefill=str(said.get("prefill", "")),
        role=read["role"],
        calls=calls,
    )
