"""A policy that logs its requests, and an agent that uses plain HTTP."""

from __future__ import annotations

import contextlib
import json

import aiohttp
import pytest
from transformers import AddedToken

from agents.capture import CapturedEpisode, CaptureLimits, CaptureServer
from agents.completion import SamplingParams
from agents.renderer import Renderer
from agents.scripted import ScriptedPolicy
from rl.data.conversations import Conversation, Exchange
from rl.runtime.tiny import train_tokenizer

HERMES = (
    "{% if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}"
    "{{ messages[0].content }}\n{% endif %}<tools>{% for t in tools %}\n{{ t | tojson }}"
    "{% endfor %}\n</tools><|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'system' and tools %}"
    "{% elif m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
).replace("%}\n", "%}{{ '\\n' }}")  # A line feed behind a block is dropped.
"""Qwen2.5's: tools in the system message, responses of several tools in one message of a user."""
TEXTS = "Which colour has box 3? green hello", '<tool_call>\n{"name": "look"}\n</tool_call> yes no'


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    tokenizer = train_tokenizer([Conversation((Exchange(*TEXTS),))] * 3, 300)
    names = ("<|im_start|>", "<|im_end|>")
    added = [AddedToken(name, special=True, normalized=False) for name in names]
    tokenizer.add_tokens(added, special_tokens=True)
    tokenizer.chat_template = HERMES
    return Renderer(tokenizer)


class LoggingPolicy(ScriptedPolicy):
    """Says the texts that ``say(text of the prompt)`` gives, spelt letter by letter.

    No encoding produces this spelling, so a text that is encoded again is detected.
    """

    def __init__(self, renderer, say, delay_s=0.0):
        self.renderer, self.say, self.log, self.samplings = renderer, say, [], []
        self.ends = True
        super().__init__(self.spell, delay_s=delay_s)

    def spell(self, session, prompt_ids):
        text = self.say(self.renderer.tokenizer.decode(list(prompt_ids)))
        letters = [token for letter in text for token in self.renderer.splice(letter)]
        return [*letters, *self.renderer.end_token_ids[:1]] if self.ends else letters

    async def generate(self, prompt_ids, sampling, session=None):
        self.samplings.append(sampling)
        completion = await super().generate(prompt_ids, sampling, session)
        self.log.append((tuple(prompt_ids), completion))
        return completion


class Agent:
    """Posts requests; ``ask`` returns (status, JSON)."""

    def __init__(self, http, base_url):
        self.http, self.base_url = http, base_url

    async def post(self, path, body):
        async with self.http.post(f"{self.base_url}/{path}", json=body) as response:
            return response.status, await response.json()

    async def ask(self, messages, **fields):
        return await self.post("chat/completions", {"messages": messages, **fields})

    async def say(self, messages, **fields):
        """The answer, as a message to put into the history."""
        status, body = await self.ask(messages, **fields)
        assert status == 200, body
        return body["choices"][0]["message"]

    async def stream(self, messages, **fields):
        body = {"messages": messages, "stream": True, **fields}
        async with self.http.post(f"{self.base_url}/chat/completions", json=body) as response:
            assert response.status == 200
            assert response.content_type == "text/event-stream"
            lines = (await response.text()).split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


@pytest.fixture
def serve(renderer):
    """``async with serve(policy, limits...) as (agent, episode, server)``."""

    @contextlib.asynccontextmanager
    async def serve(policy, *, sampling=None, **limits):
        chosen = CaptureLimits(**{"context_length": 100_000, **limits})
        episode = CapturedEpisode(
            renderer,
            policy,
            sampling or SamplingParams(max_tokens=400),
            session="s",
            limits=chosen,
            turn_seed=lambda turn: 100 + turn,
        )
        async with CaptureServer() as server, aiohttp.ClientSession() as http:
            yield Agent(http, server.open(episode)), episode, server

    return serve


@pytest.fixture
def logging_policy(renderer):
    """From what to say to a policy that says it."""
    return lambda say, **settings: LoggingPolicy(renderer, say, **settings)


@pytest.fixture
def exact():
    """Check that a capture holds each sampled token once, behind the very prompt of its request."""

    def exact(capture, log):
        assert len(capture.turns) == len(log)
        asked = {id(completion): prompt for prompt, completion in log}
        trained = 0
        for index, segment in enumerate(capture.segments):
            segment.check()
            trained += sum(segment.loss_mask)
            if segment.parent is not None:
                assert segment.parent < index
                parent = capture.segments[segment.parent].token_ids
                assert segment.token_ids[: segment.offset] == parent[: segment.offset]
        for number, turn in enumerate(capture.turns):
            segment = capture.segments[turn.segment]
            rows = zip(segment.turn_ids, segment.loss_mask, strict=True)
            places = [i for i, row in enumerate(rows) if row == (number, 1)]
            assert places == [*range(places[0], places[-1] + 1)]
            sampled = segment.token_ids[places[0] : places[-1] + 1]
            assert tuple(sampled) == turn.completion.token_ids
            assert tuple(segment.token_ids[: places[0]]) == asked[id(turn.completion)]
        assert trained == sum(len(completion.token_ids) for _, completion in log)
        numbers = [
            turn
            for segment in capture.segments
            for turn, mask in zip(segment.turn_ids, segment.loss_mask, strict=True)
            if mask
        ]
        assert numbers == sorted(numbers)

    return exact
