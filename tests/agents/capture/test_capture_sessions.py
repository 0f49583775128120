"""Sessions in the shapes of Claude Code and Codex: every request lands in one of its conversations.

The shapes follow public traces and Codex's public source; the texts are our own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random

import pytest

NAMES = ("Bash", "Read", "Edit", "Glob", "Task")
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


def speaking(rng):
    """Reasoning, a text, one to three parallel calls, or several of them; no two are equal."""
    count = itertools.count()

    def say(prompt):
        number = next(count)
        words = f"<think>plan {number}</think>\n\n" if rng.random() < 0.5 else ""
        words += f"step {number}" if rng.random() < 0.8 else ""
        for place in range(rng.choice([0, 0, 1, 1, 2, 3])):
            call = {"name": rng.choice(NAMES), "arguments": {"path": f"{number}.{place}"}}
            words += f"\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
        return words or f"done {number}"

    return say


class ClaudeCode:
    """Requests of one conversation of Claude Code: the main one, or a sub-agent's."""

    path = "messages"

    def __init__(self, rng, prompt, names=NAMES):
        self.rng, self.names, self.said = rng, names, None
        reminder = "<system-reminder>\nToday is Monday.\n</system-reminder>"
        self.history = [
            {"role": "user", "content": "<available-deferred-tools>\nWebFetch"},
            {"role": "user", "content": [text_block(reminder), text_block(prompt)]},
            {"role": "system", "content": "Available agent types for the tool Task: one."},
        ]
        self.main = names == NAMES

    def request(self):
        stamp = f"x-anthropic-billing-header: cc_version=2.1.69; cch={self.rng.random()};"
        system = [text_block(stamp), {**text_block("You are an agent."), **CACHED}]
        # The mark of the cache moves to the last block of each request.
        *before, last = self.history
        blocks = last["content"] if isinstance(last["content"], list) else []
        marked = {**last, "content": [*blocks[:-1], {**blocks[-1], **CACHED}]} if blocks else last
        edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
        # Sub-agents do not think.
        thinking = {"thinking": {"type": "adaptive"}, "context_management": edits}
        return {
            "model": "claude-opus-4-6",
            "max_tokens": 32000,
            "system": [*system, {**text_block("Rules of this project."), **CACHED}],
            "messages": [*before, marked],
            "tools": [{"name": n, "description": n, "input_schema": SCHEMA} for n in self.names],
            **(thinking if self.main else {"thinking": {"type": "disabled"}}),
            "output_config": {"effort": "medium"},
            "metadata": {"user_id": '{"device_id": "1", "account_uuid": "", "session_id": "3"}'},
            "stream": True,
        }

    def take(self, events):
        """Rebuild the answer from its events, and answer its calls."""
        content = []
        for event in events:
            if event["type"] == "content_block_start":
                content.append(dict(event["content_block"]))
            elif event["type"] == "content_block_delta":
                delta = dict(event["delta"])
                kind = delta.pop("type")
                if kind == "input_json_delta":
                    content[-1]["input"] = json.loads(delta["partial_json"])
                else:
                    content[-1] |= delta
        for block in content:
            if block.get("name") == "Edit":
                # Defaults of missing arguments are added.
                block["input"] = {"replace_all": False, **block["input"]}
        self.history.append({"role": "assistant", "content": content})
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": f"ok {block['input']}"}
            for block in content
            if block["type"] == "tool_use"
        ]
        if results and self.rng.random() < 0.1:
            reminder = {"role": "system", "content": "Available agent types changed."}
            self.history.append({"role": "user", "content": results})
            self.history.append(reminder)
            return
        if not results:
            # Reasoning of finished loops is left out by some versions.
            kept = [block for block in content if block["type"] != "thinking"]
            self.history[-1]["content"] = kept
        more = [text_block(f"go on {self.rng.random()}")] if not results else []
        self.history.append({"role": "user", "content": [*results, *more]})

    def rewind(self):
        """Go back behind the first answer, and say something else."""
        first = next(place for place, each in enumerate(self.history) if is_answer(each))
        self.history[first + 1 :] = [
            {"role": "user", "content": [text_block(f"no: {self.rng.random()}")]}
        ]

    def compact(self):
        summary = f"This session is being continued. Summary: {self.rng.random()}"
        self.history = [{"role": "user", "content": [text_block(summary)]}]


def text_block(text):
    return {"type": "text", "text": text}


class Codex:
    """Requests of one conversation of Codex, which keeps no state at the server."""

    path = "responses"

    def __init__(self, rng, prompt, names=NAMES):
        self.rng, self.names = rng, names
        context = "<environment_context>\n<cwd>/app</cwd>\n</environment_context>"
        self.start = [
            item("developer", "Sandboxed."),
            item("user", context),
            item("user", prompt),
        ]
        self.history = [*self.start]

    def request(self):
        tools = [
            {"type": "function", "name": n, "description": n, "strict": False, "parameters": SCHEMA}
            for n in self.names[1:]
        ]
        custom = {"type": "custom", "name": self.names[0], "description": "Runs.", "format": {}}
        return {
            "model": "gpt-5-codex",
            "instructions": "You are an agent.",
            "input": self.history,
            "tools": [*tools, custom, {"type": "web_search", "external_web_access": False}],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "0199",
            "text": {"verbosity": "medium"},
            "client_metadata": {"x-codex-installation-id": "1"},
        }

    def take(self, events):
        """Echo each finished item without its id, then the results of calls."""
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        for each in done:
            left_out = ("id", "content") if each["type"] == "reasoning" else ("id", "status")
            self.history.append({k: v for k, v in each.items() if k not in left_out})
        calls = [each for each in done if each["type"].endswith("_call")]
        for call in calls:
            result = {"type": f"{call['type']}_output", "call_id": call["call_id"]}
            self.history.append({**result, "output": f"Exit code: 0 {call['call_id']}"})
        if not calls:
            self.history.append(item("user", f"go on {self.rng.random()}"))

    def rewind(self):
        """Go back behind the first answer, and say something else."""
        places = range(len(self.start), len(self.history))
        end = next(place for place in places if is_new(self.history[place]))
        self.history[end:] = [item("user", f"no: {self.rng.random()}")]

    def compact(self):
        self.start = [*self.start[:3], item("user", f"Summary: {self.rng.random()}")]
        self.history = [*self.start]


def item(role, text):
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def is_answer(each):
    """Whether a message or item is the model's."""
    return each.get("role") == "assistant" or each.get("type", "").endswith("_call")


def is_new(each):
    """Whether an item is the agent's, and not the model's."""
    return each["type"].endswith("_output") or each.get("role") == "user"


async def ask(agent, session):
    """Send the session's next request; returns the events."""
    body, headers = session.request(), {"anthropic-beta": "claude-code-20250219", "x-app": "cli"}
    url = f"{agent.base_url}/{session.path}?beta=true"
    async with agent.http.post(url, json=body, headers=headers) as http:
        text = await http.text()
        assert http.status == 200, text
    return [json.loads(block.split("data: ")[1]) for block in text.split("\n\n")[:-1]]


@pytest.mark.parametrize("kind", [ClaudeCode, Codex])
@pytest.mark.parametrize("seed", range(5))
async def test_every_request_lands_in_one_of_the_conversations(
    serve, logging_policy, exact, kind, seed
):
    rng = random.Random(seed)
    policy = logging_policy(speaking(rng), delay_s=0.001)
    async with serve(policy) as (agent, _, server):
        sessions, requests = [kind(rng, "Mend the test.")], 0
        # One conversation each; retries and rewound histories fork, a compacted one is another.
        roots, forks = 1, 0
        sessions[0].take(await ask(agent, sessions[0]))
        requests += 1
        for step in range(14):
            act, main = rng.random(), sessions[0]
            if act < 0.15:
                # A lost answer: the agent asks again, and continues from the second.
                await ask(agent, main)
                requests, forks = requests + 1, forks + 1
            elif act < 0.3 and any(is_answer(each) for each in main.history):
                main.rewind()
                forks += 1
            elif act < 0.4:
                main.compact()
                roots += 1
            elif act < 0.6:
                sessions.append(kind(rng, f"Sub-task {step}.", NAMES[:3]))
                roots += 1
            # The main agent and its sub-agents ask at once.
            found = await asyncio.gather(*(ask(agent, session) for session in sessions))
            for session, events in zip(sessions, found, strict=True):
                session.take(events)
            requests += len(sessions)
            if len(sessions) > 3:
                sessions.pop(1)
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert len(capture.turns) == requests
    parents = [segment.parent for segment in capture.segments]
    assert parents.count(None) == roots
    assert len(parents) - parents.count(None) <= forks
    assert len({turn.segment for turn in capture.turns}) == len(parents)


async def test_a_header_that_changes_with_each_request_begins_no_conversation(
    serve, logging_policy
):
    policy = logging_policy(speaking(random.Random(3)))
    async with serve(policy) as (agent, _, server):
        session = ClaudeCode(random.Random(1), "Mend the test.")
        for _ in range(3):
            session.take(await ask(agent, session))
        capture = await server.close(agent.base_url)
    assert len(capture.segments) == 1
    assert "billing" not in policy.renderer.tokenizer.decode(capture.segments[0].token_ids)
    assert capture.system == "You are an agent.\nRules of this project."
