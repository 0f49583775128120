"""A model in this process as a judge."""

from __future__ import annotations

import asyncio

import pytest
import torch

import envs
from agents.renderer import Renderer
from envs.judges.chooser import JudgeFailure
from envs.judges.verdicts import reference_messages
from envs.reference.judges import ChooserJudge
from rl.data.conversations import Conversation, Exchange
from rl.learner.scoring import ScoringModel
from rl.preferences.judge_model import LocalChooser
from rl.runtime.tiny import new_model, train_tokenizer
from rl.settings.groups import TinyRecipe

ASKED = [{"role": "user", "content": "1 or 2?"}]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([Conversation((Exchange("1 or 2? YES", "NO"),))] * 3, 300)


@pytest.fixture(scope="module")
def judge(tokenizer):
    recipe = TinyRecipe(
        hidden_size=32, intermediate_size=32, num_layers=2, num_heads=2, context_length=1024
    )
    model = new_model(tokenizer, recipe, seed=3)
    with torch.no_grad():
        model.lm_head.weight.mul_(4)
    return LocalChooser(ScoringModel(model, packing=True), Renderer(tokenizer))


def next_logprobs(judge, tokens):
    """The model's own log-probabilities of the token after these."""
    with torch.no_grad():
        logits = judge._model.model(torch.tensor([tokens])).logits[0, -1]
    return logits.double().log_softmax(0)


async def test_options_of_one_token_have_their_probability(judge):
    renderer = judge._renderer
    context = renderer.start(ASKED)
    (one,), (two,) = renderer.splice("1"), renderer.splice("2")
    logprobs = next_logprobs(judge, context)
    expected = logprobs[[one, two]].softmax(0)
    found = await judge(ASKED, ("1", "2"))
    assert found == pytest.approx(expected.tolist(), rel=1e-4)
    assert abs(found[0] - 0.5) > 0.05, "the judge is no coin"
    assert await judge(ASKED, ("2", "1")) == pytest.approx(found[::-1])


async def test_an_option_that_begins_another_ends_the_message(judge):
    renderer, (end, *_) = judge._renderer, judge._renderer.end_token_ids
    context = renderer.start(ASKED)
    ten = renderer.splice("10")
    (one,), (nine,) = renderer.splice("1"), renderer.splice("9")
    assert len(ten) == 2 and ten[0] == one

    def whole(*tokens):
        said = [
            next_logprobs(judge, [*context, *tokens[:i]])[tokens[i]] for i in range(len(tokens))
        ]
        return torch.stack(said).sum()

    totals = torch.stack([whole(one, end), whole(nine, end), whole(*ten, end)])
    found = await judge(ASKED, ("1", "9", "10"))
    assert found == pytest.approx(totals.softmax(0).tolist(), rel=1e-4)


async def test_concurrent_questions_get_the_same_answers(judge):
    questions = [[{"role": "user", "content": f"{n} or {n + 1}?"}] for n in range(8)]
    alone = [await judge(question, ("1", "2")) for question in questions]
    assert await asyncio.gather(*(judge(q, ("1", "2")) for q in questions)) == alone
    assert len({p for p, _ in alone}) == 8


async def test_a_conversation_beyond_the_context_window_is_a_failure(judge):
    long = [{"role": "user", "content": "1" * 1100}]
    message = "more than the judge's context window of 1024"
    with pytest.raises(JudgeFailure, match=message) as failed:
        await judge(long, ("1", "2"))
    assert not failed.value.retryable


async def test_it_judges_free_answers_of_reference_qa(judge):
    env = envs.make("reference-qa", services={"judge": ChooserJudge(judge)}, reward="soft")
    question, _ = await env.areset(seed=0)
    result = await env.astep("water")
    asked = reference_messages(question, env.state.reference, "water")
    yes, no = await judge(asked, ("YES", "NO"))
    assert result.reward == pytest.approx(yes)
    assert result.info["scores"]["correct"] == float(yes >= no)
    await env.aclose()
