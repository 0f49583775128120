"""Episodes as conversations, token for token, and as transcripts."""

from __future__ import annotations

import json

import pytest

import envs
from agents.completion import SamplingParams
from agents.scripted import ScriptedPolicy
from rl.data.conversations import Conversation, conversation_of, to_messages
from rl.distillation.episodes import conversation_of_episode, transcript_of
from rl.rollout.collector import Collector
from rl.rollout.context import EpisodeContext, EpisodeLimits
from rl.rollout.trajectory import Trajectory, Turn


def through_json(conversation):
    messages = json.loads(json.dumps(to_messages(conversation)))
    return conversation_of(messages, conversation.tokenizer)


async def test_random_episodes_come_back_token_for_token(make_collector, renderer):
    collector = make_collector(limits={"context_length": 80})
    groups = await collector.collect(range(12), 4, (0,))
    episodes = [t for group in groups for t in group.trajectories]
    assert {t.stop_reason for t in episodes} >= {None, "context_full"}
    cut_short = 0
    for episode in episodes:
        conversation = conversation_of_episode(episode, renderer)
        assert conversation.exchanges[0].observation == episode.observation
        assert [e.action for e in conversation.exchanges] == [t.action for t in episode.turns]
        segment = through_json(conversation).to_segment(renderer)
        segment.check()
        (played,) = episode.segments
        end = len(segment)
        assert segment.token_ids == played.token_ids[:end]
        assert segment.loss_mask == played.loss_mask[:end]
        assert segment.turn_ids == played.turn_ids[:end]
        assert not any(played.loss_mask[end:]), "what is left out was read, and not answered"
        cut_short += end < len(played)
    assert cut_short


async def search(renderer, *said):
    """An episode of search-qa in which an agent writes these texts, in its own message."""
    scripts, env_type = iter(said), envs.env_type("search-qa-v0")
    async with env_type.open_services(env_type.Options()) as services:
        collector = Collector(
            EpisodeContext(
                env_id="search-qa-v0",
                options=env_type.Options(),
                services=services,
                policy=ScriptedPolicy(lambda session, prompt: next(scripts)),
                renderer=renderer,
                sampling=SamplingParams(max_tokens=400),
                limits=EpisodeLimits(context_length=4000),
            ),
        )
        (group,) = await collector.collect([0], 1, (0,))
    (trajectory,) = group.trajectories
    assert trajectory.failure is None
    return trajectory


async def test_a_result_inside_the_agents_own_message_stays_there(renderer):
    first = renderer.splice("<think> </think> <search> Nemo </search> and")
    last = [*renderer.splice("<answer> \\boxed{x} </answer>"), renderer.end_token_ids[0]]
    episode = await search(renderer, first, last)
    conversation = through_json(conversation_of_episode(episode, renderer))
    assert [(e.ended, e.continues) for e in conversation.exchanges] == [
        (False, False),
        (True, True),
    ]
    assert conversation.system == episode.system
    assert conversation.exchanges[0].action.endswith("</search>"), "as the environment read it"
    assert conversation.to_segment(renderer).token_ids == episode.segments[0].token_ids
    texts = Conversation(conversation.exchanges, conversation.system).to_segment(renderer)
    assert texts.token_ids != episode.segments[0].token_ids, "' and' is in the tokens alone"


async def test_texts_alone_render_to_the_tokens_of_an_agent_that_writes_as_the_tokenizer(renderer):
    first = renderer.splice("<think> </think> <search> Nemo </search>")
    last = [*renderer.splice("<answer> \\boxed{x} </answer>"), renderer.end_token_ids[0]]
    episode = await search(renderer, first, last)
    conversation = conversation_of_episode(episode, renderer)
    texts = Conversation(conversation.exchanges, conversation.system).to_segment(renderer)
    assert texts.token_ids == episode.segments[0].token_ids


def test_several_roles_are_several_conversations(renderer):
    episode = Trajectory("e", {}, 0, 0, 0)
    with pytest.raises(ValueError, match="e is played by 0 roles; a conversation is of one"):
        conversation_of_episode(episode, renderer)


def test_what_a_rubric_reads(renderer):
    turns = [Turn("look", "found", "stop_string", 2), Turn("so", "", "length", 1)]
    episode = Trajectory("e", {}, 0, 0, 0, turns=turns, observation="Who?", outcome=0.5)
    transcript = transcript_of(episode)
    assert (transcript.question, transcript.text) == ("Who?", "lookfoundso")
    assert (transcript.written, transcript.correct) == ("look\nso", 0.5)
    assert not transcript.complete
    turns[-1].finish_reason = "stop_token"
    assert transcript_of(episode).complete
    assert not transcript_of(Trajectory("e", {}, 0, 0, 0)).complete
