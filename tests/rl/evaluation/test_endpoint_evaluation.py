"""``rl.eval policy=openai`` from the command line, against a local chat API."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter

import pytest
from aiohttp import web
from chat_server import chat_server, refusal

import rl.eval
import rl.sft
import rl.train
from rl.rollout.trajectory_files import read_trajectories


@pytest.fixture
def server():
    with chat_server() as made:
        yield made


def run(main, capfd, server, *words):
    common = ["env=toy-copy", "policy=openai", f"policy.url={server.url}", *words]
    code = main(common)
    out, err = capfd.readouterr()
    return code, out, err


def digit(request):
    """The right answer to toy-copy: the digit of the last message."""
    return next(c for c in request["messages"][-1]["content"] if c.isdigit())


def test_a_served_model_is_evaluated(server, tmp_path, capfd):
    server.answer = digit
    words = ["policy.model=gpt", "tasks=6", "episodes=2", f"out={tmp_path}/out", "json=true"]
    code, out, err = run(rl.eval.main, capfd, server, *words)
    assert code == 0, err
    result = json.loads(out)
    assert (result["model"], result["success"], result["episodes"]) == ("gpt", 1.0, 12)
    assert result["policy/requests"] == len(server.requests)
    assert {request["model"] for request in server.requests} == {"gpt"}
    assert result["completions/mean_length"] == 5 * result["num_turns"]
    episodes = read_trajectories(tmp_path / "out" / "trajectories.jsonl.gz")
    assert episodes[0].num_sampled == 5 * len(episodes[0].turns)
    count = len(server.requests)
    assert json.loads(run(rl.eval.main, capfd, server, *words)[1])["success"] == 1.0
    assert len(server.requests) == count


def test_a_model_of_another_server_is_compared(server, tmp_path, capfd):
    server.answer = lambda request: "9"
    words = ["tasks=8", "json=true"]
    run(rl.eval.main, capfd, server, "policy.model=weak", f"out={tmp_path}/weak", *words)
    server.answer = digit
    _, out, _ = run(
        rl.eval.main, capfd, server, "policy.model=good", f"compare={tmp_path}/weak", *words
    )
    result = json.loads(out)
    assert (result["compare/model"], result["compare/difference"]) == ("weak", 1.0)
    assert result["compare/p_value"] == pytest.approx(2 / 2**8)


def test_a_folder_with_other_options_of_the_environment_is_refused(server, tmp_path, capfd):
    """The option changes the rules, but no first observation."""
    server.answer = digit
    words = ["policy.model=gpt", "tasks=3"]
    assert run(rl.eval.main, capfd, server, *words, f"out={tmp_path}/base")[0] == 0
    count = len(server.requests)
    code, _, err = run(
        rl.eval.main, capfd, server, *words, "env.max_turns=2", f"compare={tmp_path}/base"
    )
    assert (code, len(server.requests)) == (1, count)
    last = err.splitlines()[-1]
    assert last.startswith(f"error: compare ({tmp_path}/base): env.max_turns is ")
    assert "there and 2 here; a paired test needs the same tasks" in last


def test_other_settings_of_a_comparison_are_named(server, tmp_path, capfd):
    server.answer = digit
    words = ["policy.model=gpt", "tasks=3"]
    run(rl.eval.main, capfd, server, *words, f"out={tmp_path}/base")
    words += ["sampling.temperature=0.5", f"compare={tmp_path}/base"]
    code, out, err = run(rl.eval.main, capfd, server, *words)
    named = "sampling.temperature is 1.0 there and 0.5 here"
    assert (code, named in out) == (0, True)
    assert f"warning: compare ({tmp_path}/base) has other settings: {named}" in err


def test_a_model_beside_an_endpoint_is_refused_before_the_first_request(server, capfd):
    code, _, err = run(rl.eval.main, capfd, server, "policy.model=gpt", "tasks=3", "compare=tiny")
    assert (code, server.requests) == (1, [])
    assert "compare (tiny) must be the folder of an earlier evaluation with policy=o" in err


def test_one_task_gives_json_that_any_reader_reads(server, tmp_path, capfd):
    def refuse(name):
        raise AssertionError(name)

    server.answer = digit
    words = ["policy.model=gpt", "tasks=1", f"out={tmp_path}/out"]
    _, out, _ = run(rl.eval.main, capfd, server, *words, "json=true")
    result = json.loads(out, parse_constant=refuse)
    assert (result["success"], result["detectable_difference"]) == (1.0, None)
    written = (tmp_path / "out/result.json").read_text()
    assert json.loads(written, parse_constant=refuse) == result
    _, table, _ = run(rl.eval.main, capfd, server, *words)
    assert "inf" not in table


def test_a_folder_of_other_rows_in_the_same_file_is_refused(server, tmp_path, capfd):
    server.answer = lambda request: "\\boxed{2}"
    rows = tmp_path / "rows.jsonl"
    words = ["env=math", f"env.tasks={rows}", "policy.model=gpt", f"out={tmp_path}/out"]
    rows.write_text('{"question": "1 + 1?", "answer": "2"}\n')
    assert run(rl.eval.main, capfd, server, *words)[0] == 0
    assert "already" in run(rl.eval.main, capfd, server, *words)[2]
    rows.write_text('{"question": "1 + 11?", "answer": "12"}\n')
    code, _, err = run(rl.eval.main, capfd, server, *words)
    assert code == 1
    assert "holds an evaluation with other settings (files)" in err


class Unreliable:
    """Answers each request only after it failed in all of these ways, in a random order.

    One request is refused for good.
    """

    def __init__(self, refused):
        self.refused = refused
        self.left = {}
        self.failed = Counter()
        self.random = random.Random(0)

    async def __call__(self, request):
        body = await request.json()
        if body == self.refused:
            return refusal(400, "no")
        slow = [] if self.left else ["slow"]
        known = self.left.setdefault(json.dumps(body), ["429", "500", "cut", *slow])
        if not known:
            said = {"role": "assistant", "content": digit(body)}
            answer = {"choices": [{"message": said, "finish_reason": "stop"}]}
            return web.json_response(answer)
        kind = known.pop(self.random.randrange(len(known)))
        self.failed[kind] += 1
        if kind == "cut":
            # Half an answer, and then no connection.
            response = web.StreamResponse(headers={"Content-Length": "900"})
            await response.prepare(request)
            await response.write(b'{"choices": [{"message": {"content": "')
            request.transport.close()
            return response
        if kind == "slow":
            while request.transport is not None:
                await asyncio.sleep(0.05)
        return refusal(429 if kind == "slow" else int(kind))


def test_no_failure_of_a_server_becomes_a_reward(server, tmp_path, capfd, monkeypatch):
    """Each request fails several times before its answer, and one episode never gets an answer."""
    monkeypatch.setattr("agents.chat.client.FIRST_WAIT_S", 0.001)
    words = ["policy.model=gpt", "tasks=6", "episodes=2", "policy.timeout_s=2"]
    server.answer = digit
    code, out, _ = run(rl.eval.main, capfd, server, *words, "json=true")
    perfect = json.loads(out)
    assert (code, perfect["success"], perfect["policy/retries"]) == (0, 1.0, 0.0)
    unreliable = Unreliable(refused=server.requests[0])
    server.complete = unreliable
    code, out, _ = run(rl.eval.main, capfd, server, *words, f"out={tmp_path}/out")
    assert code == 0
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert (result["failures"], result["episodes"], result["success"]) == (1.0, 11, 1.0)
    count = {kind: result[f"policy/retries/{kind}"] for kind in ("connection", "timeout")}
    statuses = {code: result[f"policy/retries/status_{code}"] for code in (429, 500)}
    assert statuses == {429: unreliable.failed["429"], 500: unreliable.failed["500"]}
    assert count["connection"] == unreliable.failed["cut"] == result["policy/requests"]
    # A busy machine may miss the deadline of another request as well.
    assert count["timeout"] >= unreliable.failed["slow"] > 0
    repeated = sum([*count.values(), *statuses.values()])
    assert result["policy/retries"] == repeated
    last = out.splitlines()[-1]
    assert last.startswith("requests")
    assert f"{repeated:.0f} attempts repeated ({count['connection']:.0f} connection, " in last
    episodes = read_trajectories(tmp_path / "out" / "trajectories.jsonl.gz")
    assert [e.turns for e in episodes if e.failure is not None] == [[]]


def test_a_server_that_refuses_ends_the_evaluation(server, capfd):
    server.answer = lambda request: refusal(401, "wrong key")
    code, _, err = run(rl.eval.main, capfd, server, "policy.model=gpt", "tasks=3")
    assert code == 1
    last = err.splitlines()[-1]
    assert last.startswith("error: 3 of 3 episodes failed")
    assert "401: wrong key" in last


@pytest.mark.parametrize(
    ("main", "words", "line"),
    [
        (rl.train.main, [], "policy (openai) returns text without token ids"),
        (rl.sft.main, ["data=demonstrations"], "policy (openai) returns text without token ids"),
        (rl.eval.main, [], "policy.model ('') must name the model of policy=openai"),
        (rl.eval.main, ["policy.model=a", "model=x"], "model (x) must be left out with policy=o"),
        (rl.eval.main, ["policy.model=a", "policy.url=x"], "policy.url (x) must begin with http"),
        (rl.eval.main, ["policy.model=a", "policy.body=[]"], "policy.body ([]) must be a JSON obj"),
        (rl.eval.main, ["policy.model=a", "policy.key_env=NO_KEY"], "policy.key_env (NO_KEY) must"),
    ],
)
def test_a_wrong_setting_is_one_line(server, capfd, tmp_path, main, words, line):
    out = [f"out={tmp_path}/out"]
    code, stdout, stderr = run(main, capfd, server, *out, *words)
    assert (code, stdout) == (1, "")
    assert stderr.splitlines()[-1].startswith(f"error: {line}")
    assert not (tmp_path / "out").exists()
