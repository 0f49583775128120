"""A judge's grades as a reward, from an endpoint and from a model in this process."""

from __future__ import annotations

import asyncio
import json
import math

import pytest
import torch
from aiohttp import web

from envs.judges.verdicts import expected_grade, grades
from rl.credit.shaping import Member, make_shapings
from rl.data.conversations import Conversation, Exchange
from rl.errors import RunFailure
from rl.learner.checkpoint import save_checkpoint
from rl.preferences.judge_model import load_judge
from rl.rollout.trajectory import Trajectory, Turn
from rl.runtime.tiny import new_model, train_tokenizer
from rl.settings.groups import TinyRecipe


def member(*turns, system=None):
    episode = Trajectory("e", {}, 0, 0, 0, observation="Hi", system=system)
    episode.turns = [Turn(said, read, "stop_token", 1) for said, read in turns]
    return Member(1, False, 0.0, episode=episode)


@pytest.fixture
async def endpoint():
    """A judge that grades an answer by its length; None refuses."""
    asked = []

    async def answer(request):
        asked.append(json.loads((await request.json())["messages"][1]["content"]))
        said = asked[-1]["answer"]
        if said == "refuse":
            return web.Response(status=400, text="no")
        grade = str(len(said)) if isinstance(said, str) else "9"
        top = [{"token": t, "logprob": math.log(p)} for t, p in ((grade, 0.8), ("2", 0.2))]
        token = {"token": grade, "logprob": math.log(0.8), "top_logprobs": top}
        choice = {"message": {"content": grade}, "logprobs": {"content": [token]}}
        return web.json_response({"choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", asked
    await runner.cleanup()


async def test_episodes_are_graded_over_http(endpoint):
    url, asked = endpoint
    (judge,) = make_shapings(f"0.5*judge(model='m', url='{url}', scale=9, retries=0)")
    assert judge.shaping.judges
    members = [member(("four", "")), member(), member(("a", "read"), ("b", ""), system="Be good.")]
    # The server runs in this thread's loop.
    given = await asyncio.to_thread(judge.contributions, members)
    means = [0.8 * 4 + 0.2 * 2, None, 0.8 * 9 + 0.2 * 2]
    expected = [-1.0 if mean is None else 2 * (mean - 1) / 8 - 1 for mean in means]
    assert given == pytest.approx([0.5 * x for x in expected])
    first, second = sorted(asked, key=lambda data: len(str(data)))
    assert first == {"request": "Hi", "answer": "four"}
    assert second == {
        "request": [
            {"role": "system", "content": "Be good."},
            {"role": "user", "content": "Hi"},
        ],
        "answer": [
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "read"},
            {"role": "assistant", "content": "b"},
        ],
    }
    with pytest.raises(RunFailure, match=r"shaping judge: the judge 'm' .* refuses .*resume=auto"):
        await asyncio.to_thread(judge.contributions, [member(("x", "")), member(("refuse", ""))])


async def test_a_model_in_this_process_grades_while_a_loop_runs(tmp_path):
    tokenizer = train_tokenizer([Conversation((Exchange("1 or 2?", "2"),))], 300)
    recipe = TinyRecipe(
        hidden_size=32, intermediate_size=32, num_layers=1, num_heads=2, context_length=2048
    )
    save_checkpoint(tmp_path / "judge", new_model(tokenizer, recipe, seed=0), tokenizer)
    (judge,) = make_shapings(f"judge(model='{tmp_path}/judge')")
    given = judge.contributions([member(("one", "")), member(("two", ""))])
    chooser = load_judge(str(tmp_path / "judge"), "cpu", torch.float32)
    expected = [expected_grade(await grades(chooser, "Hi", said)) for said in ("one", "two")]
    assert given == pytest.approx(expected)
    assert min(given) > -1 and max(given) < 1 and given[0] != given[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [("scale=1", r"scale \(1\) must be >= 2"), ("key='NO_KEY'", "not a set environment variable")],
)
def test_a_mistake_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_shapings(f"judge(model='m', {options})")
