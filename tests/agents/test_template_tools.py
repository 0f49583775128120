"""Tools in chat templates: their list, their calls, and their results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from agents.agent import TokenAgent
from agents.completion import Completion, FinishReason, SamplingParams
from agents.renderer import Renderer
from envs.episode import ToolResults
from tools.chat_calls import chat_calls

TEXT = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    | st.sampled_from(["<|im_end|>", "</s>", "[TOOL_RESULTS]", "<|eot_id|>", "<tool_call>", '"\n']),
    max_size=4,
).map("".join)
CALLS = {
    "hermes": (
        '<tool_call>\n{"name": "search", "arguments": {"query": "friend of Bako"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "search", "arguments": {"query": "friend of Vabo"}}\n</tool_call>'
    ),
    "llama": (
        '{"name": "search", "parameters": {"query": "friend of Bako"}}; '
        '{"name": "search", "parameters": {"query": "friend of Vabo"}}'
    ),
    "mistral": (
        '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "friend of Bako"}}, '
        '{"name": "search", "arguments": {"query": "friend of Vabo"}}]'
    ),
}


class Script:
    """A policy that says given texts, one after the other."""

    def __init__(self, renderer, *texts):
        end = renderer.end_token_ids[0]
        self.said = [(*renderer.splice(text), end) for text in texts]
        self.left = iter(self.said)

    async def generate(self, prompt, sampling, session):
        tokens = next(self.left)
        zeros = (0.0,) * len(tokens)
        return Completion(tokens, zeros, (0,) * len(tokens), FinishReason.STOP_TOKEN)


def test_a_template_that_lists_tools_and_drops_their_results_has_no_place_for_tools(
    make_tokenizer,
):
    tokenizer = make_tokenizer("hermes")
    assert Renderer(tokenizer).takes_tools
    shown = "<tool_response>\n{{ m.content }}\n</tool_response>"
    assert shown in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(shown, "")
    assert not Renderer(tokenizer).takes_tools


@pytest.mark.parametrize("kind", CALLS)
async def test_parallel_calls_in_a_models_own_format(make_tokenizer, kind):
    renderer = Renderer(make_tokenizer(kind))
    policy = Script(renderer, CALLS[kind], "<answer> x </answer>")
    agent = TokenAgent(renderer, policy, SamplingParams(), session="s", context_length=10_000)
    env = envs.make("search-qa", syntax="chat")
    question, _ = await env.areset(seed=0)
    agent.start(question, env.system_prompt, env.stop, env.prefill, env.tool_schemas)
    prompt = renderer.tokenizer.decode(agent.segment.token_ids)
    assert '"name": "search"' in prompt
    assert "<answer>" in prompt and question in prompt

    result = await env.astep(await agent.act())
    calls = result.info["tool_calls"]
    assert [call.arguments["query"] for call in calls] == ["friend of Bako", "friend of Vabo"]
    assert all(call.error is None for call in calls)
    before = len(agent.segment)
    agent.observe(result.observation, continues=False)
    read = renderer.tokenizer.decode(agent.segment.token_ids[before:])
    assert "The friend of Bako is " in read and "The friend of Vabo is " in read
    if kind != "hermes":
        assert "<tool_response>" not in read
    last = await env.astep(await agent.act())
    assert last.terminated
    assert last.info["scores"]["num_searches"] == 2.0
    trained = [
        t for t, m in zip(agent.segment.token_ids, agent.segment.loss_mask, strict=True) if m
    ]
    assert trained == [token for said in policy.said for token in said]
    await env.aclose()


@pytest.mark.parametrize("kind", CALLS)
async def test_math_takes_parallel_calls_in_a_models_own_format(make_tokenizer, kind):
    renderer = Renderer(make_tokenizer(kind))
    env = envs.make("math", syntax="chat", tools="calculator", max_turns=2)
    question, _ = await env.areset(options={"task": 0})
    calls = CALLS[kind].replace("search", "calculator").replace("query", "expression")
    calls = calls.replace("friend of Bako", "2 + 3").replace("friend of Vabo", "2 * 9")
    policy = Script(renderer, calls, rf"\boxed{{{env.state.task.answer}}}")
    agent = TokenAgent(renderer, policy, SamplingParams(), session="s", context_length=10_000)
    agent.start(question, env.system_prompt, env.stop, env.prefill, env.tool_schemas)
    assert '"name": "calculator"' in renderer.tokenizer.decode(agent.segment.token_ids)
    result = await env.astep(await agent.act())
    assert result.observation.results == (("calculator", "5"), ("calculator", "18"))
    agent.observe(result.observation, continues=False)
    assert (await env.astep(await agent.act())).reward == 1.0
    await env.aclose()


def test_how_results_stand_in_each_format(make_tokenizer):
    results = ToolResults.of([("a", "1"), ("b", "2")])
    read = {
        kind: renderer.tokenizer.decode(renderer.observe(results, last=renderer.end_token_ids[0]))
        for kind in CALLS
        for renderer in [Renderer(make_tokenizer(kind))]
    }
    start = "<|start_header_id|>"
    assert read == {
        "hermes": (
            "\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n"
            "</tool_response><|im_end|>\n<|im_start|>assistant\n"
        ),
        "llama": (
            f'{start}ipython<|end_header_id|>\n\n"1"<|eot_id|>{start}ipython<|end_header_id|>\n\n"2"'
            f"<|eot_id|>{start}assistant<|end_header_id|>\n\n"
        ),
        "mistral": (
            '[TOOL_RESULTS] {"content": "1", "call_id": "call00000"}[/TOOL_RESULTS][TOOL_RESULTS] '
            '{"content": "2", "call_id": "call00001"}[/TOOL_RESULTS]'
        ),
    }


@pytest.mark.parametrize("kind", CALLS)
def test_no_result_writes_a_special_token(make_tokenizer, kind):
    renderer = Renderer(make_tokenizer(kind))
    assert renderer.takes_tools
    added = renderer.tokenizer.added_tokens_decoder

    def specials(text):
        tokens = renderer.observe(ToolResults.of([("a", text), ("b", text)]), last=None)
        return [token for token in tokens if token in added and added[token].special]

    innocent = specials("x")

    @settings(max_examples=60, deadline=None, database=None)
    @given(TEXT)
    def check(text):
        assert specials(text) == innocent

    check()


@pytest.mark.parametrize("kind", ["tiny", "gemma", "distill", "plain"])
def test_a_template_without_tools_gets_them_in_words(make_tokenizer, kind):
    renderer = Renderer(make_tokenizer(kind))
    assert not renderer.takes_tools
    schema = {"type": "function", "function": {"name": "look", "parameters": {}}}
    decode = renderer.tokenizer.decode
    prompt = decode(renderer.begin("Q", "Rules.", [schema]))
    assert prompt.index("Rules.") < prompt.index(json.dumps(schema)) < prompt.index("Q")
    assert '<tool_call>\n{"name"' in prompt
    read = decode(renderer.observe(ToolResults.of([("look", "1")]), last=renderer.end_token_ids[0]))
    assert "<tool_response>\n1\n</tool_response>" in read


def test_templates_that_publishers_ship_list_tools_and_hold_results(make_tokenizer):
    found = importlib.util.find_spec("trl")
    if found is None or found.origin is None:
        pytest.skip("TRL, which carries published templates, is not installed")
    folder = Path(found.origin).parent / "chat_templates"
    names = [
        name for name in ("qwen2_5", "qwen3", "llama3_1", "llama3_2") if _is_there(folder, name)
    ]
    if not names:
        pytest.skip("this TRL carries no templates")
    schema = {
        "type": "function",
        "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}},
    }
    for name in names:
        tokenizer = make_tokenizer("hermes")
        tokenizer.chat_template = (folder / f"{name}.jinja").read_text(encoding="utf-8")
        tokenizer.add_special_tokens({"bos_token": "<|im_start|>"})
        renderer = Renderer(tokenizer)
        assert renderer.takes_tools, name
        assert '"look"' in tokenizer.decode(renderer.begin("Q", "Rules.", [schema])), name
        results = ToolResults.of([("look", "first"), ("look", "second")])
        read = tokenizer.decode(renderer.observe(results, last=renderer.end_token_ids[0]))
        assert read.index("first") < read.index("second"), name


def _is_there(folder, name):
    return (folder / f"{name}.jinja").is_file()


async def test_a_call_may_end_with_a_token_that_the_generation_config_names(make_tokenizer):
    """Llama 3.1 ends a call with ``<|eom_id|>``, which its template does not write."""
    tokenizer = make_tokenizer("llama")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|eom_id|>"]})
    eot, eom = tokenizer.convert_tokens_to_ids(["<|eot_id|>", "<|eom_id|>"])
    renderer = Renderer(tokenizer, [tokenizer.eos_token_id, eom, eot])
    assert renderer.end_token_ids == (eot, tokenizer.eos_token_id, eom)
    said, asked = (*renderer.splice(CALLS["llama"]), eom), []

    class Policy:
        async def generate(self, prompt, sampling, session):
            asked.append(sampling.stop_token_ids)
            zeros = (0.0,) * len(said)
            return Completion(said, zeros, (0,) * len(said), FinishReason.STOP_TOKEN)

    agent = TokenAgent(renderer, Policy(), SamplingParams(), session="s", context_length=10_000)
    agent.start("Q")
    action = await agent.act()
    assert asked == [(eot, tokenizer.eos_token_id, eom)]
    assert (str(action), len(chat_calls(action))) == (CALLS["llama"], 2)
    before = len(agent.segment)
    agent.observe(ToolResults.of([("search", "x"), ("search", "y")]), continues=False)
    after = tokenizer.decode(agent.segment.token_ids[before - 1 :])
    assert after.startswith("<|eom_id|><|start_header_id|>ipython<|end_header_id|>")
