"""``rl.judge`` from its command line to the labelled pairs."""

from __future__ import annotations

import asyncio
import json
import math
import threading

import pytest
from aiohttp import web

import rl.judge
from rl.data.comparisons import read_comparisons
from rl.data.conversations import Conversation, Exchange
from rl.learner.checkpoint import save_checkpoint
from rl.runtime.tiny import new_model, train_tokenizer
from rl.settings.groups import TinyRecipe


class Grader:
    """A chat API in a thread of its own that likes long answers, and the place shown first."""

    def __init__(self):
        self.refuses = 0
        self.requests = []
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        assert self.ready.wait(30)

    def serve(self):
        self.loop.run_until_complete(self.open())
        self.ready.set()
        self.loop.run_forever()
        self.loop.run_until_complete(self.runner.cleanup())
        self.loop.close()

    async def open(self):
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}/v1"

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(30)
        assert not self.thread.is_alive()

    async def answer(self, request):
        self.requests.append(await request.json())
        data = json.loads(self.requests[-1]["messages"][1]["content"])
        if len(self.requests) <= self.refuses or data["request"] == "refuse":
            return web.Response(status=400, text="no")
        if "answer" in data:
            grade = str(min(9, len(data["answer"])))
            odds = {grade: 0.75, "1": 0.25}
        else:
            lead = len(data["answer_1"]) - len(data["answer_2"])
            first = 1 / (1 + math.exp(-(lead + 1)))
            odds = {"1": first, "2": 1 - first}
        said = max(odds, key=odds.get)
        top = [{"token": text, "logprob": math.log(p)} for text, p in odds.items()]
        token = {"token": said, "logprob": math.log(odds[said]), "top_logprobs": top}
        choice = {"message": {"content": said}, "logprobs": {"content": [token]}}
        return web.json_response({"choices": [choice]})


@pytest.fixture
def grader():
    made = Grader()
    yield made
    made.close()


@pytest.fixture
def write(tmp_path):
    def write(*rows):
        path = tmp_path / "data.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def pair(first, second, prompt="Hi", **more):
    return {
        "prompt": [{"role": "user", "content": prompt}],
        "chosen": [{"role": "assistant", "content": first, "ended": False}],
        "rejected": [{"role": "assistant", "content": second}],
        **more,
    }


def rewards(first, second):
    return {"chosen_reward": first, "rejected_reward": second}


def logistic(x):
    return 1 / (1 + math.exp(-x))


def rows(folder):
    return [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]


def test_pairs_are_labelled_over_http(grader, write, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "k-1")
    data = write(
        pair("good morning", "hello", **rewards(1.0, 0.0)),
        pair("a", "abcd", **rewards(1.0, 0.0), task=7),
        pair("ab", "abc", **rewards(0.5, 0.5)),
        pair("ab", "ab"),
    )
    words = [f"data={data}", f"url={grader.url}", "model=fair-1", "key=JUDGE_KEY"]
    assert rl.judge.main([*words, f"out={tmp_path}/out"]) == 0
    reported = json.loads(capfd.readouterr().out)
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == reported
    first, second, third, fourth = rows(tmp_path / "out")
    # Leads of 7, -3, -1 and 0 characters, one more for the place shown first.
    labels = [(logistic(lead + 1) + logistic(lead - 1)) / 2 for lead in (7, -3, -1, 0)]
    assert first["label"] == pytest.approx(labels[0])
    assert second["label"] == pytest.approx(1 - labels[1])
    assert second["chosen"][0] == {"role": "assistant", "content": "abcd"}
    assert second["rejected"][0]["ended"] is False
    assert (second["chosen_reward"], second["rejected_reward"], second["task"]) == (0.0, 1.0, 7)
    assert third["label"] == pytest.approx(1 - labels[2])
    assert fourth["label"] == pytest.approx(0.5)
    assert (reported["pairs"], reported["failures"], reported["verifiable"]) == (4, 0, 2)
    assert reported["agreement"] == 0.5, "of the two whose rewards differ"
    # For the last two pairs the two orders disagree.
    assert reported["consistent"] == 0.5
    bias = [logistic(lead + 1) - logistic(lead - 1) for lead in (7, -3, -1, 0)]
    assert reported["place_bias"] == pytest.approx(sum(bias) / 4)
    assert reported["confidence"] == pytest.approx(
        (labels[0] + 1 - labels[1] + 1 - labels[2] + 0.5) / 4
    )
    assert len(grader.requests) == 8
    comparisons = read_comparisons(str(tmp_path / "out" / "pairs.jsonl"))
    assert [c.pairs[0].label for c in comparisons] == [
        row["label"] for row in rows(tmp_path / "out")
    ]


def test_answers_are_graded_by_themselves(grader, write, tmp_path, capfd):
    data = write(pair("abcde", "abc", **rewards(0.0, 1.0)))
    words = [f"data={data}", f"url={grader.url}", "model=m", "by=grade", "scale=9"]
    assert rl.judge.main([*words, f"out={tmp_path}/out"]) == 0
    reported = json.loads(capfd.readouterr().out)
    (row,) = rows(tmp_path / "out")
    # Grades 5 and 3 with 0.75 each, 1 with the rest: means of 4 and 2.5 of 9.
    assert row["chosen_grade"] == pytest.approx(2 * 3 / 8 - 1)
    assert row["rejected_grade"] == pytest.approx(2 * 1.5 / 8 - 1)
    # 5 is above both, with 0.75; 1 equals 1, with 0.25 each.
    assert row["label"] == pytest.approx(0.75 + 0.25 * 0.25 / 2)
    assert reported["agreement"] == 0.0
    assert "consistent" not in reported


def test_a_local_model_judges(tmp_path, write, capfd):
    tokenizer = train_tokenizer([Conversation((Exchange("1 or 2?", "2"),))], 300)
    recipe = TinyRecipe(
        hidden_size=32, intermediate_size=32, num_layers=1, num_heads=2, context_length=2048
    )
    save_checkpoint(tmp_path / "judge", new_model(tokenizer, recipe, seed=0), tokenizer)
    data = write(*(pair("a" * n, "b", **rewards(1.0, 0.0)) for n in range(1, 5)))
    words = [f"data={data}", f"model={tmp_path}/judge"]
    for folder in ("a", "b"):
        assert rl.judge.main([*words, f"out={tmp_path}/{folder}"]) == 0
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    reported = json.loads(capfd.readouterr().out.splitlines()[0])
    assert (reported["pairs"], reported["verifiable"]) == (4, 4)
    assert 0.5 <= reported["confidence"] < 1
    assert rl.judge.main([*words, f"out={tmp_path}/a"]) == 1
    assert f"out ({tmp_path}/a) holds pairs.jsonl already" in capfd.readouterr().err

    template = tmp_path / "refuses.jinja"
    template.write_text("{{ raise_exception('not by this template') }}")
    assert rl.judge.main([*words, f"chat.template={template}", f"out={tmp_path}/c"]) == 1
    assert "not by this template" in capfd.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "c").exists()


def test_a_server_has_a_template_of_its_own(write, tmp_path, capfd):
    words = [f"data={write(pair('a', 'b'))}", "url=http://127.0.0.1:1/v1", "model=m"]
    assert rl.judge.main([*words, "chat.prefill=<think>"]) == 1
    assert "chat must be left out with url" in capfd.readouterr().err


def test_messages_of_a_mistyped_role_are_refused(write, tmp_path, capfd):
    prompt = [{"role": "user", "content": "x"}, {"role": "assistent", "content": "y"}]
    data = write(pair("a", "b") | {"prompt": prompt})
    assert rl.judge.main([f"data={data}", "model=m", f"out={tmp_path}/out"]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert "line 1: expected" in line and "Did you mean 'assistant'?" in line


def test_few_pairs_without_a_verdict_are_counted_and_many_end_it(grader, write, tmp_path, capfd):
    one_of_four = [pair("a", "b", prompt) for prompt in ("refuse", "x", "y", "z")]
    words = [f"url={grader.url}", "model=m", "retries=0"]
    data = write(*one_of_four)
    assert rl.judge.main([*words, f"data={data}", f"out={tmp_path}/a"]) == 0
    reported = json.loads(capfd.readouterr().out)
    assert (reported["pairs"], reported["failures"]) == (3, 1)
    data = write(*one_of_four[:3])
    assert rl.judge.main([*words, f"data={data}", f"out={tmp_path}/b"]) == 1
    stdout, stderr = capfd.readouterr()
    assert stdout == ""
    assert stderr.startswith("error: the judge gave no verdict on 1 of 3 pairs: the judge 'm' at ")
    assert "refuses (status 400): no" in stderr
    assert not (tmp_path / "b" / "pairs.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["data=/no/file"], "data (/no/file) must be a file of JSON lines, "),
        (["url=ftp://x"], "url (ftp://x) must begin with http://"),
        (["key=NO_SUCH_KEY"], "key (NO_SUCH_KEY) must be an environment variable that is set"),
        (["scale=1"], "scale (1) must be >= 2"),
        (["timeout_s=0"], "timeout_s (0.0) must be > 0"),
        (["by=vote"], "by ('vote') must be one of pair, grade"),
    ],
)
def test_a_mistake_is_one_line(write, tmp_path, monkeypatch, capfd, words, line):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    data = write(pair("a", "b"))
    assert rl.judge.main([f"data={data}", "model=no/model", f"out={tmp_path}/out", *words]) == 1
    stdout, stderr = capfd.readouterr()
    assert stdout == ""
    assert stderr.startswith(f"error: {line}")


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "x", "chosen": "a"},
        {"prompt": "x", "chosen": "a", "rejected": []},
        {"prompt": "x", "chosen": "a", "rejected": 3},
        {"prompt": "x", "chosen": "a", "rejected": "b", "chosen_reward": float("nan")},
        [],
    ],
)
def test_a_broken_line_is_named(write, tmp_path, capfd, row):
    data = write(pair("a", "b"), row)
    assert rl.judge.main([f"data={data}", "model=no/model", f"out={tmp_path}/out"]) == 1
    assert capfd.readouterr().err.startswith(f"error: {data}, line 2: expected ")
