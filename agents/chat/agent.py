"""The agent of an episode whose model reads messages: it has texts, and no token ids."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from agents.chat.client import ChatAnswer, ChatModel
from agents.completion import Completion, FinishReason, SamplingParams
from agents.segment import Segment
from envs.episode import Action, ToolResults
from tools.calls import written


class ChatAgent:
    """An agent for one episode, as :class:`~agents.agent.TokenAgent`, behind a chat API.

    An action is the model's content. Reasoning that the server separated precedes it between
    ``<think>`` and ``</think>``, as a local model writes it; later requests leave reasoning out.
    Tool calls of the API follow the content in Hermes's format. A stop string that the server
    removed is restored where the text ended, if the server names it, or if it closes an open tag.
    A thought in which an answer was stopped or cut stays open, as in a local model's text.

    Args:
        client: the model.
        sampling: sampling parameters. The episode adds its stop strings.
        session: the episode's name.
        turn_seed: returns the sampling seed of a turn.
    """

    def __init__(
        self,
        client: ChatModel,
        sampling: SamplingParams,
        *,
        session: str,
        turn_seed: Callable[[int], int] | None = None,
    ) -> None:
        self.client = client
        self.sampling = sampling
        self.session = session
        self.turn_seed = turn_seed
        self.segment = Segment()
        self.earlier: list[Segment] = []
        self.num_turns = 0
        self.last: Completion | None = None
        self.num_sampled = self.unrecorded_tokens = 0
        self.messages: list[dict[str, Any]] = []
        self._tools: tuple[Mapping[str, Any], ...] = ()
        self._open_calls: tuple[Mapping[str, Any], ...] = ()

    def fork(self) -> Self:
        """A copy of this agent. Later messages of one agent do not change the other agent."""
        twin = copy.copy(self)
        twin.segment, twin.messages = self.segment.copy(), [*self.messages]
        return twin

    def start(
        self,
        observation: str,
        system: str | None = None,
        stop: Sequence[str] = (),
        prefill: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Read the episode's first observation and its rules.

        Args:
            observation: the environment's text.
            system: the environment's rules.
            stop: the environment's stop strings.
            prefill: ignored, because the API cannot begin the model's message.
            tools: tools that the model can call.
        """
        if system:
            self.messages.append({"role": "system", "content": system})
        self.messages.append({"role": "user", "content": str(observation)})
        self._tools = tuple(tools)
        self.sampling = dataclasses.replace(self.sampling, stop=(*self.sampling.stop, *stop))

    def observe(self, observation: str, *, continues: bool) -> None:
        """Read the observation after an action.

        Args:
            observation: the environment's text.
            continues: ignored: the observation is always a message of its own.
        """
        calls, self._open_calls = self._open_calls, ()
        if not calls:
            self.messages.append({"role": "user", "content": str(observation)})
            return
        # The API requires a message for each call.
        results = observation.results if isinstance(observation, ToolResults) else ()
        texts = [text for _, text in results]
        if len(texts) != len(calls):
            texts = [str(observation)] + [""] * (len(calls) - 1)
        for call, text in zip(calls, texts, strict=True):
            self.messages.append(
                {"role": "tool", "tool_call_id": str(call.get("id", "")), "content": text}
            )

    async def act(self) -> Action:
        """Request the next action.

        Raises:
            ContextFull: the conversation is longer than the model's context window.
            PolicyFailure: the server failed.
        """
        seed = self.turn_seed(self.num_turns) if self.turn_seed else self.sampling.seed
        sampling = dataclasses.replace(self.sampling, seed=seed)
        answer = await self.client.complete(self.messages, sampling, self._tools, self.session)
        in_thought = bool(answer.reasoning) and not (answer.content or answer.calls)
        written_last = answer.reasoning if in_thought else answer.content
        last, ended = self._completed(answer, written_last)
        content = "" if in_thought else last
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if answer.calls:
            message["tool_calls"] = list(answer.calls)
        self.messages.append(message)
        self._open_calls = answer.calls
        self.last = Completion((), (), (), ended)
        self.unrecorded_tokens = answer.num_tokens
        self.num_turns += 1
        if in_thought and ended is not FinishReason.STOP_TOKEN:
            return Action(f"<think>\n{last}", ended)
        thought = f"<think>\n{answer.reasoning}\n</think>\n" if answer.reasoning else ""
        calls = "\n".join(_written(call) for call in answer.calls)
        text = "\n".join(filter(None, [content, calls]))
        return Action(thought + text, ended)

    def _completed(self, answer: ChatAnswer, text: str) -> tuple[str, FinishReason]:
        """The last written text with the stop string that ended it, and the reason of the end."""
        if answer.finish_reason is not FinishReason.STOP_TOKEN or answer.calls:
            return text, answer.finish_reason
        for stop in self.sampling.stop:
            if text.endswith(stop):
                return text, FinishReason.STOP_STRING
            opening = stop.replace("</", "<", 1)
            is_tag = stop.startswith("</") and stop.endswith(">")
            is_open = text.rfind(opening) > text.rfind(stop)
            if answer.stop == stop or (is_tag and is_open):
                return text + stop, FinishReason.STOP_STRING
        return text, answer.finish_reason


def _written(call: Mapping[str, Any]) -> str:
    """A call of the API as text. Malformed arguments stay as they are, for the environment."""
    function = call.get("function") or {}
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            name = json.dumps(str(function.get("name", "")))
            return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
    return written(str(function.get("name", "")), arguments)
