"""A tokenizer's chat template: renders messages as text, and reports the template's features.

If the template has no system role (Gemma's rejects it, Mistral's moves it), the system text is put
at the start of the first user message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from agents.plain_text import Encoder

PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n' }}{% endif %}"
)
"""Template for base models, which have none: one message per line. A text begins with the tokens
with which the tokenizer begins each text."""

_SYSTEM, _USER = "TURNWISE-SYSTEM-MESSAGE", "TURNWISE-USER-MESSAGE"
# Text of an assistant message, to find the text that the template writes after it.
_SENTINEL = "TURNWISE-ASSISTANT-MESSAGE"


def _beginning(tokenizer: PreTrainedTokenizerBase, encoder: Encoder) -> str:
    """What a tokenizer writes before each text, in Jinja: Gemma's and Llama's models expect a BOS.

    Without it, Gemma 3 270M gives a token of plain English 3.3 nats less on average.
    """
    first = takewhile(encoder.is_special, tokenizer("x").input_ids)
    text = "".join(tokenizer.convert_ids_to_tokens([*first]))
    return f"{{{{ {json.dumps(text)} }}}}" if text else ""


def tool_message(index: int, name: str, text: str) -> dict[str, str]:
    """A call's result as a tool message, with the nine-character identifier that Mistral needs."""
    return {"role": "tool", "name": name, "content": text, "tool_call_id": f"call{index:05d}"}


class ChatTemplate:
    """A tokenizer's chat template. It renders messages as text for the encoder.

    Args:
        tokenizer: a Hugging Face tokenizer. If it has no template, it gets ``PLAIN_TEMPLATE``.
        encoder: the encoder of the same tokenizer.

    Attributes:
        folds_system: whether the template has no system role. If so, a first system message is put
            at the start of the first user message, followed by an empty line.

    Raises:
        ValueError: the template rejects a user message.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, encoder: Encoder) -> None:
        self._tokenizer, self._encoder = tokenizer, encoder
        self._own: str | None = None
        if tokenizer.chat_template is None:
            self._own = f"{_beginning(tokenizer, encoder)}{PLAIN_TEMPLATE}"
        self.folds_system = False
        self._render([{"role": "user", "content": _USER}])
        self.folds_system = not self._has_system_role()

    @property
    def source(self) -> Any:
        """The template itself, in Jinja."""
        return self._own or self._tokenizer.chat_template

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template shows tools and their results to the model."""
        conversation = [{"role": "user", "content": "x"}]
        parameters = {"type": "object", "properties": {}}
        function = {"name": "probe", "description": "A probe.", "parameters": parameters}
        tools = [{"type": "function", "function": function}]
        try:
            listed = self._render(conversation, tools) != self._render(conversation)
        except ValueError:
            return False
        return listed and self.has_tool_role

    @cached_property
    def has_tool_role(self) -> bool:
        """Whether the template renders tool messages."""
        try:
            return _USER in self.after_assistant([tool_message(0, "probe", _USER)])
        except ValueError:
            return False

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """The text of a conversation up to the assistant's message, for the encoder.

        Raises:
            ValueError: the template rejects the messages.
        """
        return self._render(self._folded(messages) if self.folds_system else messages, tools)

    def before_answer(self) -> str:
        """The template's text before the content of a final answer to a user's ``x``.

        Unlike the prompt, it has no thought that the template opened for the model to fill.

        Raises:
            ValueError: the template rejects the conversation, or drops the answer.
        """
        question = {"role": "user", "content": "x"}
        answer = {"role": "assistant", "content": _SENTINEL}
        text = self._render([question, answer], prompt=False)
        if _SENTINEL not in text:
            raise ValueError("the chat template drops assistant messages: it cannot hold turns")
        return text[: text.index(_SENTINEL)]

    def after_assistant(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The template's text between two assistant messages that are separated by ``messages``.

        Raises:
            ValueError: the template rejects the messages, or drops assistant messages.
        """
        conversation = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": _SENTINEL},
            *messages,
        ]
        text = self._render(conversation)
        if _SENTINEL not in text:
            raise ValueError("the chat template drops assistant messages: it cannot hold turns")
        return text[text.index(_SENTINEL) + len(_SENTINEL) :]

    @cached_property
    def writes_calls(self) -> bool:
        """Whether the template renders tool calls."""
        try:
            text = self.assistant_with_calls("", [("probe", {"key": _USER})])
        except ValueError:
            return False
        return "probe" in text and _USER in text

    def assistant_with_calls(
        self, content: str, calls: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> str:
        """An assistant's text and calls, without the start and the end of the message.

        Args:
            content: the text, which may be empty.
            calls: name and arguments of each call.

        Raises:
            ValueError: the template rejects calls, or writes them outside of the message.
        """
        question: Mapping[str, Any] = {"role": "user", "content": "x"}
        results = [tool_message(n, name, "x") for n, (name, _) in enumerate(calls)]
        made = [
            {
                "id": result["tool_call_id"],
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for result, (name, arguments) in zip(results, calls, strict=True)
        ]
        said = {"role": "assistant", "content": content, "tool_calls": made}
        before, after = self._render([question]), self.after_assistant(results)
        text = self._render([question, said, *results])
        if not (text.startswith(before) and text.endswith(after)):
            raise ValueError("the chat template writes tool calls outside of the assistant message")
        return text[len(before) : len(text) - len(after)]

    def _has_system_role(self) -> bool:
        """Whether a system message stays before the first user message, in later turns as well."""
        rules = {"role": "system", "content": _SYSTEM}
        question = {"role": "user", "content": _USER}
        later = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "x"}]
        try:
            texts = [self._render([rules, question, *rest]) for rest in ([], later)]
        except ValueError:
            return False
        return all(0 <= text.find(_SYSTEM) < text.find(_USER) for text in texts)

    @staticmethod
    def _folded(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The messages, with a first system message moved into the first user message."""
        if not messages or messages[0]["role"] != "system":
            return [*messages]
        rules, *rest = messages
        if rest and rest[0]["role"] == "user":
            text = f"{rules['content']}\n\n{rest[0]['content']}"
            return [{**rest[0], "content": text}, *rest[1:]]
        return [{**rules, "role": "user"}, *rest]

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        prompt: bool = True,
    ) -> str:
        try:
            text: Any = self._tokenizer.apply_chat_template(
                [self._hidden(message) for message in messages],
                chat_template=self._own,
                tokenize=False,
                add_generation_prompt=prompt,
                tools=[self._hidden(tool) for tool in tools] or None,
            )
        except TemplateError as error:
            raise ValueError(f"the chat template refuses the conversation: {error}") from error
        assert isinstance(text, str)
        return self._encoder.rendered(text)

    def _hidden(self, value: Any) -> Any:
        """A copy of a value with :meth:`Encoder.hide` applied to every text in it."""
        if isinstance(value, str):
            return self._encoder.hide(value)
        if isinstance(value, Mapping):
            return {self._hidden(key): self._hidden(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._hidden(inner) for inner in value]
        return value
