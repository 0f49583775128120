"""Turns messages into tokens, by appending only. No other module does this.

A conversation is a list of tokens that starts with the first message. Sampled tokens are kept as
sampled. An observation adds exactly the tokens that the chat template puts between two assistant
messages. Nothing is decoded and encoded again, and no content can become a special token: the
output of a program cannot end its message or begin a message of another role.
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

from agents.plain_text import Encoder
from agents.template import ChatTemplate, tool_message
from agents.template_settings import prefill_of
from envs.episode import ToolResults
from tools.calls import listed, written
from tools.syntax import split_reasoning

logger = logging.getLogger(__name__)

# A template that edits contents would change this message's white space or tags.
_EDGES = " \n<think> TURNWISE\n</think>\n\nMESSAGE\n "
_QUESTION = {"role": "user", "content": "x"}
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
_CLOSED = re.compile(r"<think>\s*</think>\s*\Z")
# Templates that drop reasoning also change white space.
_THOUGHT = re.compile(r"<think>.*?</think>|\s+", re.DOTALL)


class Renderer:
    """Turns messages into tokens, for one tokenizer and its chat template.

    Args:
        tokenizer: a Hugging Face tokenizer. If it has no chat template, it gets a plain one, and a
            warning is logged.
        end_token_ids: additional tokens that end an assistant message, from a model's generation
            config. Llama 3.1, for example, ends a tool call with ``<|eom_id|>``.

    Attributes:
        end_token_ids: tokens that end an assistant message if the policy samples one of them. The
            template ends its last message with the first, or begins the next message with it.
        difference: the difference between appending and rendering the whole conversation again, or
            None. Many templates drop the reasoning of earlier turns.
        opening: text with which every assistant message starts and which is not sampled:
            ``chat.prefill``, and a ``<think>`` that the template opens.
        notices: consequences of the template and their remedies, one line each.

    Raises:
        ValueError: the tokenizer has no end-of-sequence token.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, end_token_ids: Sequence[int] = ()
    ) -> None:
        self.tokenizer = tokenizer
        self._encoder = Encoder(tokenizer)
        self._around: dict[str, tuple[str, str] | None] = {}
        # The Rust tokenizer itself: transformers' wrapper is ten times slower per call.
        fast = isinstance(tokenizer, PreTrainedTokenizerFast)
        self._rust = tokenizer.backend_tokenizer if fast else None
        if tokenizer.chat_template is None:
            logger.warning("the tokenizer has no chat template: messages are rendered as lines")
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no eos_token: set the one that ends a message")
        self.template = ChatTemplate(tokenizer, self._encoder)
        self._between = self._special(self.template.after_assistant([_QUESTION]))
        end = self._special(self.template.after_answer)
        self._closes = end is not None
        eos = int(self._single(tokenizer.eos_token_id))
        closing = (end, self._between, eos) if end is None else (end, eos)
        called = self.template.has_tool_role
        result = self.template.after_assistant([tool_message(0, "x", "x")]) if called else ""
        call_end = self._special(result)
        own = [token for token in (*closing, call_end) if token is not None]
        self.end_token_ids = tuple(dict.fromkeys((*own, *end_token_ids)))
        self._call_end = self.end_token_ids[0] if call_end is None else call_end
        self.opening = self._find_opening()
        self.difference, notice = self._compare(_PROBE)
        folded = [FOLDED] if self.template.folds_system else []
        self.notices = (*folded, *([notice] if notice else []))

    @cached_property
    def identity(self) -> str:
        """Hash of vocabulary and template. Equal renderers have equal identities."""
        ids = sorted(self.tokenizer.get_vocab().items())
        named = json.dumps([ids, self.template.source])
        return hashlib.sha256(named.encode()).hexdigest()[:16]

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template shows tools to the model."""
        return self.template.takes_tools

    def start(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """The tokens of a conversation's first messages, up to the assistant's message.

        Args:
            messages: messages, each with role, content and other fields that chat templates read
                (``tool_calls``, with arguments as an object).
            tools: tools in the format of chat templates. A template without tools (``takes_tools``)
                ignores them.

        Raises:
            ValueError: the chat template rejects the messages.
        """
        return self._encoder.encode(self.template.render(messages, tools))

    def follow(self, messages: Sequence[Mapping[str, Any]], *, last: int | None) -> list[int]:
        """The tokens of several messages between two sampled assistant messages.

        Args:
            messages: as for :meth:`start`. Assistant messages among them count as context, and not
                as sampled.
            last: as for :meth:`extend`, which returns the same tokens for a single message.

        Raises:
            ValueError: the chat template rejects the messages.
        """
        return self._after_end(self._encoder.encode(self.template.after_assistant(messages)), last)

    def extend(self, observation: str, *, last: int | None, role: str = "user") -> list[int]:
        """The tokens of an observation between two assistant messages.

        Args:
            observation: the message's text.
            last: the last token that the policy sampled, or None. If it does not end the message,
                the result begins with the token that does.
            role: the message's role.
        """
        return self._after_end(self._encoder.encode(self._bridge(role, observation)), last)

    def begin(
        self, observation: str, system: str | None, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """The tokens of an episode's rules, tools and first observation.

        If the template does not support tools, the system message describes them.
        """
        shown = tools if self.takes_tools else ()
        rules = "\n".join(filter(None, [system, listed(tools) if tools and not shown else ""]))
        messages = [{"role": "system", "content": rules}] if rules else []
        return self.start([*messages, {"role": "user", "content": observation}], shown)

    def observe(self, observation: str, *, last: int | None, role: str = "user") -> list[int]:
        """The tokens of an observation; see :meth:`extend`.

        Results of tool calls become tool messages if the template shows tools (``takes_tools``).
        For the role "tool", the template only needs a tool role.
        """
        results = observation.results if isinstance(observation, ToolResults) else ()
        if not results:
            return self.extend(observation, last=last, role=role)
        if not (self.takes_tools or (role == "tool" and self.template.has_tool_role)):
            return self.extend(observation, last=last)
        messages = [tool_message(n, *result) for n, result in enumerate(results)]
        return self.follow(messages, last=last)

    def splice(self, text: str) -> list[int]:
        """The tokens of text that continues the assistant's message."""
        return self._encoder.encode(self._encoder.plain(text))

    def answer(self, text: str) -> list[int]:
        """The tokens of an assistant's text, without an opening that the template writes itself."""
        opened = bool(self.opening) and text.startswith(self.opening.rstrip())
        opening = self.opening if text.startswith(self.opening) else self.opening.rstrip()
        return self.splice(text.removeprefix(opening) if opened else text)

    def taught(
        self,
        context: Sequence[int],
        text: str,
        calls: Sequence[tuple[str, Mapping[str, Any]]] = (),
        *,
        ended: bool = True,
    ) -> tuple[Sequence[int], Sequence[int]]:
        """The context and the tokens of an answer to imitate, as the template writes them.

        Before the text, a template may write an empty thought (Qwen3), the name of a channel
        (gpt-oss), or nothing where its prompt opens a thought: the context then ends earlier. A
        template that drops thoughts writes the answer as the model would sample it. One that cannot
        write calls has them behind the text, in Hermes's format.

        Args:
            context: tokens that end in the prompt of the answer.
            text: the assistant's text.
            calls: name and arguments of each call that follows the text.
            ended: whether the answer has the token that ends it.

        Raises:
            ValueError: the text has a thought, and the prompt has closed an empty one; or the
                template writes the answer behind something else than its prompt.
        """
        if calls and not self.template.writes_calls:
            text = "\n".join(filter(None, [text, *(written(*call) for call in calls)]))
            calls = ()
        end = (self._call_end if calls else self.end_token_ids[0],) if ended else ()
        prompt, whole = self.template.render([_QUESTION]), self.template.answered(text, calls)
        start = self._encoder.shared(prompt, whole)
        added, missing = whole[start:], self._encoder.encode(prompt[start:])
        thought, _ = split_reasoning(text)
        dropped = not calls and thought not in whole
        if dropped or (missing and prefill_of(self.template.source)):
            return context, [*self.answer(text), *end]
        if missing and _CLOSED.search(self._prompt):
            raise ValueError(
                "the chat template closes an empty thought before each answer, and an answer "
                "begins with a thought: turn reasoning on (chat.template_kwargs="
                '"enable_thinking=True") or leave the thoughts out'
            )
        kept = len(context) - len(missing)
        # The cut must fall between tokens, and take a thought's opening only.
        if [*context[kept:]] != missing or not self.opening.endswith(self._decode(missing)):
            raise ValueError(
                f"the chat template writes sampled answers behind {self._decode(missing)!r}, and "
                f"given ones behind {added[:40]!r}: give a template that writes both alike "
                "(chat.template=FILE)"
            )
        return context[:kept], [*self._encoder.encode(added), *end]

    @cached_property
    def _prompt(self) -> str:
        """The prompt of an answer to a user's ``x``."""
        return self._decode(self.start([_QUESTION]))

    def text(self, token_ids: Sequence[int], stop: Sequence[str] = ()) -> str:
        """The text of sampled tokens, without an end token, as the environment receives it.

        The text ends with the first stop string that it contains.
        """
        ids = list(token_ids)
        if ids and ids[-1] in self.end_token_ids:
            ids = ids[:-1]
        text = self._decode(ids)
        ends = [text.find(s) + len(s) for s in stop if s in text]
        return text[: min(ends)] if ends else text

    def _find_opening(self) -> str:
        """The end of the prompt that already belongs to the assistant's message."""
        prefill = prefill_of(self.template.source)
        found = _OPENED.search(self._prompt.removesuffix(prefill))
        return (found[0] if found else "") + prefill

    def _after_end(self, tokens: list[int], last: int | None) -> list[int]:
        """``tokens`` without the first one, if the last sampled token stands in its place.

        Any token that ends a message stands for the one with which the template does. Where no
        token does (GLM-4.5), ``tokens`` begin with the next message's role: only that token itself.
        """
        closed = self._closes and last in self.end_token_ids and tokens[:1] == [self._between]
        return tokens[1:] if closed or (tokens and tokens[0] == last) else tokens

    def _special(self, text: str) -> int | None:
        """The special token with which a template's text begins, or None."""
        ids = self._encoder.encode(text)
        return ids[0] if ids and self._encoder.is_special(ids[0]) else None

    @staticmethod
    def _single(token_id: int | list[int]) -> int:
        return token_id[0] if isinstance(token_id, list) else token_id

    def _bridge(self, role: str, observation: str) -> str:
        """The template's text between two assistant texts: one message of ``role``.

        Templates are slow. Most of them write a message's content unchanged between two fixed
        texts. If a probe confirms this, the two texts are cached.
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
        """Compare two ways to tokenize ``conversation``: by appending, and by rendering the whole.

        ``conversation`` has messages of user, assistant and user.

        Returns:
            The difference and its consequence for a user. Both are None if there is no difference.
        """
        first, answer, second = conversation
        appended = self.start([first]) + self.answer(answer["content"])
        appended += self.extend(second["content"], last=None)
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
