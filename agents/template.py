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
from tools.syntax import split_reasoning

PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n' }}{% endif %}"
)
"""Template for base models, which have none: one message per line. A text begins with the tokens
with which the tokenizer begins each text."""

THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Fields from which templates read a message's thought."""

_SYSTEM, _USER = "TURNWISE-SYSTEM-MESSAGE", "TURNWISE-USER-MESSAGE"
_QUESTION = {"role": "user", "content": "x"}
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


def _said(calls: Sequence[tuple[str, Mapping[str, Any]]], content: str = "") -> dict[str, Any]:
    """An assistant message with calls, whose results are those of :func:`tool_message`."""
    made = [
        {
            "id": tool_message(n, name, "")["tool_call_id"],
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for n, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": made}


def _with_text_arguments(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message with its calls' arguments as JSON, as DeepSeek-V3's template reads them."""
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": made | {"arguments": json.dumps(made["arguments"])}}
        for call in message["tool_calls"]
        for made in [call["function"]]
    ]
    return {**message, "tool_calls": calls}


_RESULT = tool_message(0, "probe", _USER)


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
            return _USER in self.after_assistant([_RESULT])
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

    def answered(self, text: str, calls: Sequence[tuple[str, Mapping[str, Any]]] = ()) -> str:
        """A user's ``x`` and an assistant's answer, without what ends the answer.

        Args:
            text: the answer's text, which may be empty if there are calls.
            calls: name and arguments of each call.

        Raises:
            ValueError: the template rejects the answer, or does not write its calls.
        """
        if not calls:
            said = {"role": "assistant", "content": text}
            thought, rest = split_reasoning(text)
            # Many templates read a thought from a field, and would write its tags as content.
            for field in THOUGHTS if thought else ():
                apart = {"role": "assistant", "content": rest, field: thought}
                if thought in self._render([_QUESTION, apart], prompt=False):
                    said = apart
                    break
            whole = self._render([_QUESTION, said], prompt=False)
            if not whole.endswith(self.after_answer):
                raise ValueError("the chat template ends answers in different ways")
            return whole.removesuffix(self.after_answer)
        said = _said(calls, text)
        results = [tool_message(n, name, "x") for n, (name, _) in enumerate(calls)]
        whole = self._render([_QUESTION, said, *results])
        after = self.after_assistant(results)
        if not whole.endswith(after) or not all(name in whole for name, _ in calls):
            raise ValueError("the chat template does not write tool calls into the message")
        return whole.removesuffix(after)

    @cached_property
    def after_answer(self) -> str:
        """The template's text behind a final answer, such as the token that ends it."""
        answer = {"role": "assistant", "content": _SENTINEL}
        _, found, after = self._render([_QUESTION, answer], prompt=False).partition(_SENTINEL)
        if not found:
            raise ValueError("the chat template drops assistant messages: it cannot hold turns")
        return after

    def after_assistant(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The template's text between two assistant messages that are separated by ``messages``.

        Raises:
            ValueError: the template rejects the messages, or drops assistant messages.
        """
        if not messages or messages[0]["role"] != "tool" or not self._calls_matter:
            return self._after_text(messages)
        try:
            return self._after_calls(messages)
        except ValueError:
            # Llama 3.1's takes one call a message, and any number of results.
            if not self._shows_results:
                raise
            return self._after_text(messages)

    @cached_property
    def _shows_results(self) -> bool:
        """Whether the template writes results also where no call precedes them (not Gemma 4's)."""
        try:
            return _USER in self._after_text([_RESULT])
        except ValueError:
            return False

    @cached_property
    def _calls_matter(self) -> bool:
        """Whether the text before results depends on the calls that they answer (GLM-4.5's)."""
        try:
            behind = self._after_calls([_RESULT])
        except ValueError:
            return False
        return not self._shows_results or behind != self._after_text([_RESULT])

    def _after_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        text = self._render([_QUESTION, {"role": "assistant", "content": _SENTINEL}, *messages])
        if _SENTINEL not in text:
            raise ValueError("the chat template drops assistant messages: it cannot hold turns")
        return text[text.index(_SENTINEL) + len(_SENTINEL) :]

    def _after_calls(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text behind the calls that the first messages answer, from what ends the calls."""
        results = takewhile(lambda message: message["role"] == "tool", messages)
        said = _said([(result.get("name") or "tool", {"x": _SENTINEL}) for result in results])
        alone = self._render([_QUESTION, said], prompt=False)
        followed = self._render([_QUESTION, said, *messages])
        start = alone.rfind(_SENTINEL) + len(_SENTINEL)
        if not followed.startswith(alone[:start]) or _SENTINEL not in alone:
            raise ValueError("the chat template does not write tool calls")
        shared = followed[start : self._encoder.shared(alone, followed)]
        return followed[start + self._encoder.last_special(shared) :]

    @cached_property
    def writes_calls(self) -> bool:
        """Whether the template renders tool calls."""
        try:
            return _USER in self.answered("", [("probe", {"key": _USER})])
        except ValueError:
            return False

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
            return self._applied(messages, tools, prompt)
        except ValueError:
            texts = [_with_text_arguments(message) for message in messages]
            if texts == [*messages]:
                raise
            return self._applied(texts, tools, prompt)

    def _applied(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        prompt: bool,
    ) -> str:
        try:
            text: Any = self._tokenizer.apply_chat_template(
                [self._hidden(message) for message in messages],
                chat_template=self._own,
                tokenize=False,
                add_generation_prompt=prompt,
                tools=[self._hidden(tool) for tool in tools] or None,
            )
        # A template is a program, which fails as programs do on messages of another shape.
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
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
