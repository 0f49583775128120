"""The one place that turns messages into tokens, and only ever appends.

A conversation is tokens from its first message on. What the policy sampled stays as sampled; an
observation adds exactly the tokens that the model's chat template puts between one assistant
message and the next. Nothing is decoded and encoded again, and no content can become a special
token: what a program prints cannot end its message or speak for somebody else.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from agents.encoder import Encoder

logger = logging.getLogger(__name__)

PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n' }}{% endif %}"
)
"""For base models, which have no chat template: message texts, a line each."""

# Stands where an assistant's message stood, to find what the template writes after one.
_SENTINEL = "TURNWISE-ASSISTANT-MESSAGE"
# A message whose white space and tags a template that edits contents would touch.
_EDGES = " \n<think> TURNWISE\n</think>\n\nMESSAGE\n "
_PROBE: list[dict[str, str]] = [
    {"role": "user", "content": "What is 6 x 7?"},
    {"role": "assistant", "content": "<think>\nLet me see.\n</think>\n\n42"},
    {"role": "user", "content": "Sure?\n"},
]


class Renderer:
    """Messages to tokens for one tokenizer and its chat template.

    Args:
        tokenizer: a Hugging Face tokenizer. One without a chat template gets a plain one, which
            is said once in the log.

    Attributes:
        end_token_ids: tokens that end an assistant message when the policy samples one.
        difference: None where appending equals rendering the whole conversation anew; otherwise
            what differs for this template (many drop an earlier turn's reasoning).

    Raises:
        ValueError: the tokenizer has no end-of-sequence token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._template: str | None = None
        self._encoder = Encoder(tokenizer)
        self._around: dict[str, tuple[str, str] | None] = {}
        # The Rust tokenizer itself: transformers' wrapper takes ten times as long per call.
        fast = isinstance(tokenizer, PreTrainedTokenizerFast)
        self._rust = tokenizer.backend_tokenizer if fast else None
        if tokenizer.chat_template is None:
            logger.warning("the tokenizer has no chat template: messages are rendered as lines")
            self._template = PLAIN_TEMPLATE
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no eos_token: set the one that ends a message")
        after_message = self._after_assistant([{"role": "user", "content": "x"}])
        self.end_token_ids = self._end_tokens(after_message)
        self.difference = self._compare(_PROBE)

    @cached_property
    def identity(self) -> str:
        """Equal for renderers whose token ids mean the same, and whose templates are the same."""
        ids = sorted(self.tokenizer.get_vocab().items())
        template = self._template or self.tokenizer.chat_template
        return hashlib.sha256(json.dumps([ids, template]).encode()).hexdigest()[:16]

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the chat template shows the model which tools there are."""
        conversation = [{"role": "user", "content": "x"}]
        parameters = {"type": "object", "properties": {}}
        function = {"name": "probe", "description": "A probe.", "parameters": parameters}
        tools = [{"type": "function", "function": function}]
        plain = self._render(conversation, add_generation_prompt=True)
        try:
            return self._render(conversation, add_generation_prompt=True, tools=tools) != plain
        except ValueError:
            return False

    def start(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """The tokens of a conversation's first messages, up to where the assistant speaks.

        Args:
            messages: each with its role and its content, a text; beside these whatever a chat
                template may read (``tool_calls``, with arguments as an object).
            tools: what the model may call, as chat templates list it; a template that knows no
                tools leaves them out (``takes_tools``).

        Raises:
            ValueError: the chat template refuses the messages.
        """
        text = self._render(messages, add_generation_prompt=True, tools=tools)
        return self._encoder.encode(text)

    def follow(self, messages: Sequence[Mapping[str, Any]], *, ended: bool) -> list[int]:
        """The tokens between one assistant message and the next, for any messages between them.

        Args:
            messages: as of :meth:`start`; words of an assistant among them are not sampled ones.
            ended: as of :meth:`extend`, which this equals for one message of one text.

        Raises:
            ValueError: the chat template refuses the messages.
        """
        return self._after_end(self._encoder.encode(self._after_assistant(messages)), ended)

    def extend(self, observation: str, *, ended: bool, role: str = "user") -> list[int]:
        """The tokens between one assistant message and the next, for an observation in a message.

        Args:
            observation: the message's text.
            ended: whether the policy sampled the token that ends its message; otherwise that
                token is part of the extension.
            role: who speaks.
        """
        return self._after_end(self._encoder.encode(self._bridge(role, observation)), ended)

    def splice(self, text: str) -> list[int]:
        """The tokens of a result that continues the assistant's own message."""
        return self._encoder.encode(self._encoder.plain(text))

    def text(self, token_ids: Sequence[int], stop: Sequence[str] = ()) -> str:
        """What an environment sees of sampled tokens: no end token, nothing after a stop string.

        The stop string itself stays; of several, the one that ends first in the text counts.
        """
        ids = list(token_ids)
        if ids and ids[-1] in self.end_token_ids:
            ids = ids[:-1]
        text = self._decode(ids)
        ends = [text.find(s) + len(s) for s in stop if s in text]
        return text[: min(ends)] if ends else text

    def _after_end(self, tokens: list[int], ended: bool) -> list[int]:
        """Without the token that ends an assistant's message, where the policy sampled it."""
        return tokens[1:] if ended and tokens and tokens[0] in self.end_token_ids else tokens

    def _end_tokens(self, after_message: str) -> tuple[int, ...]:
        """The end-of-sequence token, and the special token that the template closes with."""
        eos = int(self._single(self.tokenizer.eos_token_id))
        ids = self._encoder.encode(after_message)
        first = self.tokenizer.added_tokens_decoder.get(ids[0]) if ids else None
        closing = ids[0] if first is not None and first.special else eos
        return (eos,) if closing == eos else (closing, eos)

    @staticmethod
    def _single(token_id: int | list[int]) -> int:
        return token_id[0] if isinstance(token_id, list) else token_id

    def _bridge(self, role: str, observation: str) -> str:
        """What the template writes after an assistant's words for one message of ``role``.

        Templates are slow to run; most write a message's content as it is, between two texts that
        never change. Where a probe shows that, the two texts are kept.
        """
        if role not in self._around:
            probe = self._after_assistant([{"role": role, "content": _EDGES}])
            before, found, after = probe.partition(_EDGES)
            self._around[role] = (before, after) if found else None
        around = self._around[role]
        if around is None:
            return self._after_assistant([{"role": role, "content": observation}])
        return around[0] + self._encoder.plain(observation) + around[1]

    def _after_assistant(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The template's text from the end of an assistant's words to where it speaks again."""
        conversation = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": _SENTINEL},
            *messages,
        ]
        text = self._render(conversation, add_generation_prompt=True)
        if _SENTINEL not in text:
            raise ValueError("the chat template drops assistant messages: it cannot hold turns")
        return text[text.index(_SENTINEL) + len(_SENTINEL) :]

    def _compare(self, conversation: list[dict[str, str]]) -> str | None:
        """How appending differs from rendering ``conversation`` (user, assistant, user) anew."""
        first, answer, second = conversation
        appended = self.start([first]) + self.splice(answer["content"])
        appended += self.extend(second["content"], ended=False)
        anew = self.start(conversation)
        if appended == anew:
            return None
        return (
            "rendered anew, the template gives "
            f"{self._decode(anew)!r}; appended, the conversation is {self._decode(appended)!r}"
        )

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """The template's text, as the encoder takes it."""
        try:
            text: Any = self.tokenizer.apply_chat_template(
                [self._hidden(message) for message in messages],
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                tools=[self._hidden(tool) for tool in tools] or None,
            )
        except TemplateError as error:
            raise ValueError(f"the chat template refuses the conversation: {error}") from error
        assert isinstance(text, str)
        return self._encoder.rendered(text)

    def _hidden(self, value: Any) -> Any:
        """A value with every text in it as :meth:`Encoder.hide` writes it."""
        if isinstance(value, str):
            return self._encoder.hide(value)
        if isinstance(value, Mapping):
            return {self._hidden(key): self._hidden(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._hidden(inner) for inner in value]
        return value

    def _decode(self, ids: Sequence[int]) -> str:
        if self._rust is not None:
            return str(self._rust.decode(list(ids), skip_special_tokens=False))
        text = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text
