"""The agent records every token once, with its version, turn and log-probability."""

from __future__ import annotations

import pytest

from agents.agent import ContextFull, TokenAgent
from agents.completion import Completion, FinishReason, SamplingParams
from agents.renderer import Renderer
from agents.segment import NOT_SAMPLED


class RecordingPolicy:
    """Answers with given completions and remembers what it was asked."""

    def __init__(self, *completions):
        self.completions = list(completions)
        self.asked = []

    async def generate(self, prompt_ids, sampling, session=None):
        self.asked.append((list(prompt_ids), sampling, session))
        return self.completions.pop(0)


def completion(token_ids, reason, version=7):
    count = len(token_ids)
    logprobs = tuple(-0.5 - i for i in range(count))
    return Completion(tuple(token_ids), logprobs, (version,) * count, reason)


@pytest.fixture
def renderer(make_tokenizer):
    return Renderer(make_tokenizer("tiny"))


def make_agent(renderer, policy, **options):
    settings = {"session": "s", "context_length": 200} | options
    sampling = settings.pop("sampling", SamplingParams(max_tokens=50))
    return TokenAgent(renderer, policy, sampling, **settings)


async def test_two_turns_as_list_algebra(renderer):
    end = renderer.end_token_ids[0]
    first = [*renderer.splice("42"), end]
    second = renderer.splice("No")
    policy = RecordingPolicy(
        completion(first, FinishReason.STOP_TOKEN, 3), completion(second, FinishReason.LENGTH, 4)
    )
    agent = make_agent(renderer, policy)
    agent.start("6 x 7?", "Rules")
    prompt = renderer.start(
        [{"role": "system", "content": "Rules"}, {"role": "user", "content": "6 x 7?"}]
    )
    action = await agent.act()
    assert (action, action.finish_reason) == ("42", "stop_token")
    agent.observe("Sure?", continues=False)
    between = renderer.extend("Sure?", last=renderer.end_token_ids[0])
    action = await agent.act()
    assert (action, action.finish_reason) == ("No", "length")

    segment = agent.segment
    parts = [prompt, first, between, second]
    assert segment.token_ids == [token for part in parts for token in part]
    sizes = [len(part) for part in parts]

    def columns(*values):
        return [value for value, size in zip(values, sizes, strict=True) for _ in range(size)]

    assert segment.loss_mask == columns(0, 1, 0, 1)
    assert segment.versions == columns(NOT_SAMPLED, 3, NOT_SAMPLED, 4)
    assert segment.turn_ids == columns(0, 0, 1, 1)
    logprobs = [
        p for p, mask in zip(segment.sampling_logprobs, segment.loss_mask, strict=True) if mask
    ]
    assert logprobs == [-0.5 - i for i in range(len(first))] + [
        -0.5 - i for i in range(len(second))
    ]
    assert sum(segment.sampling_logprobs) == sum(logprobs)
    segment.check()
    assert [asked[0] for asked in policy.asked] == [prompt, prompt + first + between]


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.STOP_STRING])
async def test_a_message_that_did_not_end_is_ended_by_the_extension(renderer, reason):
    end = renderer.end_token_ids[0]
    agent = make_agent(renderer, RecordingPolicy(completion(renderer.splice("4"), reason)))
    agent.start("6 x 7?")
    await agent.act()
    length = len(agent.segment)
    agent.observe("Go on", continues=False)
    added = agent.segment.token_ids[length:]
    assert added == [end, *renderer.start([{"role": "user", "content": "Go on"}])]
    assert agent.segment.loss_mask[length:] == [0] * len(added)


async def test_a_result_that_continues_the_message_adds_its_text_alone(renderer):
    said = renderer.splice("<search>x</search>")
    agent = make_agent(renderer, RecordingPolicy(completion(said, FinishReason.STOP_STRING)))
    agent.start("Who?", stop=("</search>",))
    await agent.act()
    length = len(agent.segment)
    agent.observe("<result>y</result>", continues=True)
    assert agent.segment.token_ids[length:] == renderer.splice("<result>y</result>")
    assert agent.segment.turn_ids[length:] == [1] * (len(agent.segment) - length)


async def test_tokens_after_a_stop_string_are_kept_and_hidden(renderer):
    said = renderer.splice("<search>x</search> and more")
    agent = make_agent(renderer, RecordingPolicy(completion(said, FinishReason.STOP_STRING)))
    agent.start("Who?", stop=("</search>",))
    action = await agent.act()
    assert action == "<search>x</search>"
    assert agent.segment.token_ids[-len(said) :] == said
    assert agent.segment.loss_mask[-len(said) :] == [1] * len(said)


async def test_the_policy_is_asked_with_the_episodes_stops_seed_and_room(renderer):
    policy = RecordingPolicy(
        completion([9], FinishReason.LENGTH), completion([9], FinishReason.LENGTH)
    )
    agent = make_agent(
        renderer,
        policy,
        session="episode/3",
        turn_seed=lambda turn: 100 + turn,
        context_length=12,
        sampling=SamplingParams(temperature=0.5, max_tokens=8, stop=("a",), stop_token_ids=(11,)),
    )
    agent.start("x", stop=("b",))
    prompt = len(agent.segment)
    await agent.act()
    agent.observe("", continues=True)
    await agent.act()
    for turn, (_, sampling, session) in enumerate(policy.asked):
        assert session == "episode/3"
        assert sampling.seed == 100 + turn
        assert sampling.stop == ("a", "b")
        assert sampling.stop_token_ids == (11, *renderer.end_token_ids)
        assert sampling.temperature == 0.5
        assert sampling.max_tokens == min(8, 12 - prompt - turn)


async def test_a_full_context_asks_the_policy_for_nothing(renderer):
    policy = RecordingPolicy()
    agent = make_agent(renderer, policy)
    agent.start("x")
    agent.context_length = len(agent.segment)
    with pytest.raises(ContextFull):
        await agent.act()
    assert policy.asked == []
    assert agent.num_turns == 0


async def test_without_turn_seeds_the_samplings_own_counts(renderer):
    policy = RecordingPolicy(completion([9], FinishReason.LENGTH))
    agent = make_agent(renderer, policy, sampling=SamplingParams(seed=5))
    agent.start("x")
    await agent.act()
    assert policy.asked[0][1].seed == 5
