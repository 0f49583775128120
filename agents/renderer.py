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
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from agents.encoder import Encoder
from agents.template import ChatTemplate, tool_message
from agents.template_settings import prefill_of
from envs.episode import ToolResults
from tools.calls import listed, written

logger = logging.getLogger(__name__)

# A message whose white space and tags a template that edits contents would touch.
_EDGES = " \n<think> TURNWISE\n</think>\n\nMESSAGE\n "
_PROBE: list[dict[str, str]] = [
    {"role": "user", "content": "What is 6 x 7?"},
    {"role": "assistant", "content": "<think>\nLet me see.\n</think>\n\n42"},
    {"role": "user", "content": "Sure?\n"},
]
FOLDED = (
    "it has no system role: the environment's rules stand at the start of the first user message"
)
FORGETS = (
    "it drops the reasoning of earlier turns, which turnwise keeps as sampled: from the second "
    "turn on prompts are longer than the model is used to, and fill the context sooner; play "
    "single turns (env.max_turns=1), give a larger context_length, or turn reasoning off where the "
    'template can (chat.template_kwargs="enable_thinking=False")'
)
REWRITES = (
    "it rewrites earlier turns, which turnwise keeps as sampled: from the second turn on the model "
    "reads what its template would not write; play single turns (env.max_turns=1), or give a "
    "template that appends (chat.template=FILE)"
)
_OPENED = re.compile(r"<think>\s*\Z")
# Reasoning, and white space: templates that drop the one are free with the other.
_THOUGHT = re.compile(r"<think>.*?</think>|\s+", re.DOTALL)


class Renderer:
    """Messages to tokens for one tokenizer and its chat template.

    Args:
        tokenizer: a Hugging Face tokenizer. One without a chat template gets a plain one, which
            is said once in the log.
        end_token_ids: further tokens that end an assistant message, as a model's generation config
            names them: Llama 3.1 ends a call of a tool with ``<|eom_id|>``.

    Attributes:
        end_token_ids: tokens that end an assistant message when the policy samples one; the first
            is the one that the template writes.
        difference: None where appending equals rendering the whole conversation anew; otherwise
            what differs for this template (many drop an earlier turn's reasoning).
        opening: what every answer begins with, given and not sampled: ``chat.prefill``, and a
            ``<think>`` that the template opens.
        notices: what a user should know of the template: consequence and remedy, a line each.

    Raises:
        ValueError: the tokenizer has no end-of-sequence token.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, end_token_ids: Sequence[int] = ()
    ) -> None:
        self.tokenizer = tokenizer
        self._encoder = Encoder(tokenizer)
        self._around: dict[str, tuple[str, str] | None] = {}
        # The Rust tokenizer itself: transformers' wrapper takes ten times as long per call.
        fast = isinstance(tokenizer, PreTrainedTokenizerFast)
        self._rust = tokenizer.backend_tokenizer if fast else None
        if tokenizer.chat_template is None:
            logger.warning("the tokenizer has no chat template: messages are rendered as lines")
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no eos_token: set the one that ends a message")
        self.template = ChatTemplate(tokenizer, self._encoder)
        after_message = self.template.after_assistant([{"role": "user", "content": "x"}])
        self.end_token_ids = tuple(
            dict.fromkeys((*self._end_tokens(after_message), *end_token_ids))
        )
        self.opening = self._find_opening()
        self.difference, notice = self._compare(_PROBE)
        folded = [FOLDED] if self.template.folds_system else []
        self.notices = (*folded, *([notice] if notice else []))

    @cached_property
    def identity(self) -> str:
        """Equal for renderers whose token ids mean the same, and whose templates are the same."""
        ids = sorted(self.tokenizer.get_vocab().items())
        named = json.dumps([ids, self.template.source])
        return hashlib.sha256(named.encode()).hexdigest()[:16]

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template shows the model which tools there are."""
        return self.template.takes_tools

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
        return self._encoder.encode(self.template.render(messages, tools))

    def follow(self, messages: Sequence[Mapping[str, Any]], *, ended: bool) -> list[int]:
        """The tokens between one assistant message and the next, for any messages between them.

        Args:
            messages: as of :meth:`start`; words of an assistant among them are not sampled ones.
            ended: as of :meth:`extend`, which this equals for one message of one text.

        Raises:
            ValueError: the chat template refuses the messages.
        """
        return self._after_end(self._encoder.encode(self.template.after_assistant(messages)), ended)

    def extend(self, observation: str, *, ended: bool, role: str = "user") -> list[int]:
        """The tokens between one assistant message and the next, for an observation in a message.

        Args:
            observation: the message's text.
            ended: whether the policy sampled the token that ends its message; otherwise that
                token is part of the extension.
            role: who speaks.
        """
        return self._after_end(self._encoder.encode(self._bridge(role, observation)), ended)

    def begin(
        self, observation: str, system: str | None, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """The tokens of an episode's first observation, behind its rules and its tools.

        A template that knows no tools gets them in words, in the system message.
        """
        shown = tools if self.takes_tools else ()
        rules = "\n".join(filter(None, [system, listed(tools) if tools and not shown else ""]))
        messages = [{"role": "system", "content": rules}] if rules else []
        return self.start([*messages, {"role": "user", "content": observation}], shown)

    def observe(self, observation: str, *, ended: bool, role: str = "user") -> list[int]:
        """As :meth:`extend`; results of calls are messages of tools where the template has such.

        With role "tool" a template that lists no tools, but has their role, is enough.
        """
        results = observation.results if isinstance(observation, ToolResults) else ()
        if not results:
            return self.extend(observation, ended=ended, role=role)
        if not (self.takes_tools or (role == "tool" and self.template.has_tool_role)):
            return self.extend(observation, ended=ended)
        messages = [tool_message(place, *result) for place, result in enumerate(results)]
        return self.follow(messages, ended=ended)

    def splice(self, text: str) -> list[int]:
        """The tokens of a result that continues the assistant's own message."""
        return self._encoder.encode(self._encoder.plain(text))

    def answer(self, text: str) -> list[int]:
        """The tokens of an assistant's words; an opening that the template writes is no part."""
        opened = bool(self.opening) and text.startswith(self.opening.rstrip())
        opening = self.opening if text.startswith(self.opening) else self.opening.rstrip()
        return self.splice(text.removeprefix(opening) if opened else text)

    def answer_with_calls(
        self, text: str, calls: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> list[int]:
        """The tokens of an assistant's words and of its tool calls, each a name and arguments.

        A template that writes no calls gets them in Hermes's form, behind the words.
        """
        if self.template.writes_calls:
            return self._encoder.encode(self.template.assistant_with_calls(text, calls))
        return self.answer("\n".join(filter(None, [text, *(written(*call) for call in calls)])))

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

    def _find_opening(self) -> str:
        """What the prompt ends with that belongs to the answer."""
        prefill = prefill_of(self.template.source)
        prompt = self._decode(self.start([{"role": "user", "content": "x"}]))
        found = _OPENED.search(prompt.removesuffix(prefill))
        return (found[0] if found else "") + prefill

    def _after_end(self, tokens: list[int], ended: bool) -> list[int]:
        """Without the token that ends an assistant's message, where the policy sampled it."""
        return tokens[1:] if ended and tokens and tokens[0] in self.end_token_ids else tokens

    def _end_tokens(self, after_message: str) -> tuple[int, ...]:
        """The special token that the template closes with, and the end-of-sequence token."""
        eos = int(self._single(self.tokenizer.eos_token_id))
        ids = self._encoder.encode(after_message)
        first = self.tokenizer.added_tokens_decoder.get(ids[0]) if ids else None
        closing = ids[0] if first is not None and first.special else eos
        return closing, eos

    @staticmethod
    def _single(token_id: int | list[int]) -> int:
        return token_id[0] if isinstance(token_id, list) else token_id

    def _bridge(self, role: str, observation: str) -> str:
        """What the template writes after an assistant's words for one message of ``role``.

        Templates are slow to run; most write a message's content as it is, between two texts that
        never change. Where a probe shows that, the two texts are kept.
        """
        if role not in self._around:
            probe = self.template.after_assistant([{"role": role, "content": _EDGES}])
            before, found, after = probe.partition(_EDGES)
            self._around[role] = (before, after) if found else None
        around = self._around[role]
        if around is None:
            return self.template.after_assistant([{"role": role, "content": observation}])
        return around[0] + self._encoder.plain(observation) + around[1]

    def _compare(self, conversation: list[dict[str, str]]) -> tuple[str | None, str | None]:
        """How appending differs from rendering ``conversation`` (user, assistant, user) anew.

        Returns:
            The two texts, and what the difference means for a user; None twice where none is.
        """
        first, answer, second = conversation
        appended = self.start([first]) + self.answer(answer["content"])
        appended += self.extend(second["content"], ended=False)
        anew = self.start(conversation)
        if appended == anew:
            return None, None
        kept, template = self._decode(appended), self._decode(anew)
        difference = f"anew, the template writes {template!r}; appended, it is {kept!r}"
        forgets = _THOUGHT.sub("", kept) == _THOUGHT.sub("", template)
        return difference, FORGETS if forgets else f"{REWRITES} ({difference})"

    def _decode(self, ids: Sequence[int]) -> str:
        if self._rust is not None:
            return str(self._rust.decode(list(ids), skip_special_tokens=False))
        text = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text
