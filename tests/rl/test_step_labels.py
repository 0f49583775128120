"""``rl.step_labels`` from its command line to labels that a process reward model learns from."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

import rl.runtime.runtime
import rl.step_labels
from agents.completion import Completion, FinishReason, SamplingParams
from agents.policy import PolicyFailure
from agents.renderer import Renderer
from envs.math.env import MathOptions
from envs.math.verification.verifier import MathVerifier
from rl.data.steps import read_solutions, read_steps
from rl.run.process.activity import Activities

ROWS = [
    {"prompt": "2 + 3?", "completions": ["Add.", "So it is", r"\boxed{5}"], "answer": 5},
    {"prompt": "2 + 4?", "completions": ["Wrong way.", r"\boxed{7}"], "answer": "6", "id": "b"},
    {
        "prompt": [{"role": "user", "content": "One half?"}],
        "completions": [r"\boxed{0.5}"],
        "answer": r"\frac{1}{2}",
    },
]


class Scripted:
    """Goes on from "Add." rightly in one of four cases, from "So it is" always, else never."""

    def __init__(self, renderer):
        self.renderer, self.prompts, self.seeds = renderer, [], []
        self.fails_after = 10**9
        self.finish_reason = FinishReason.STOP_TOKEN

    async def generate(self, prompt_ids, sampling, session=None):
        if len(self.prompts) >= self.fails_after:
            raise PolicyFailure("gone", retryable=False)
        text = self.renderer._decode(list(prompt_ids))
        self.prompts.append(text)
        self.seeds.append(sampling.seed)
        assert sampling.stop_token_ids == self.renderer.end_token_ids
        tries = sum(text == other for other in self.prompts)
        right = text.endswith("So it is\n") or (text.endswith("Add.\n") and tries == 1)
        said = r"then \boxed{5}" if right else r"\boxed{8}"
        tokens = (*self.renderer.splice(said), self.renderer.end_token_ids[0])
        count = len(tokens)
        return Completion(tokens, (0.0,) * count, (0,) * count, self.finish_reason)


@pytest.fixture
def policy(toy_model, monkeypatch):
    """Commands open a runtime whose policy is scripted."""
    renderer = Renderer(AutoTokenizer.from_pretrained(toy_model))
    made = Scripted(renderer)

    @contextlib.asynccontextmanager
    async def open_runtime(config, report, logs):
        assert logs.name == "logs"
        verifier = MathVerifier(workers=1)
        env = SimpleNamespace(system_prompt="Box it.")
        yield SimpleNamespace(
            config=SimpleNamespace(
                env=SimpleNamespace(options=MathOptions()), sampling_params=SamplingParams()
            ),
            services={"verifier": verifier},
            collector=lambda split, sampling: SimpleNamespace(make_env=lambda: env),
            policy=made,
            renderer=renderer,
            activities=Activities(),
        )
        verifier.close()

    monkeypatch.setattr(rl.runtime.runtime, "open_runtime", open_runtime)
    return made


@pytest.fixture
def words(tmp_path, toy_model):
    data = tmp_path / "solutions.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    common = [f"data={data}", f"model={toy_model}", "env=math", f"out={tmp_path}/out", "at_once=1"]
    return lambda *more: [*common, "rollouts=4", *more]


def labels(tmp_path):
    lines = (tmp_path / "out/steps.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["labels"] for line in lines]


def test_a_step_is_worth_the_share_of_right_answers_that_follow(words, policy, tmp_path, capsys):
    assert rl.step_labels.main(words()) == 0
    assert labels(tmp_path) == [[0.25, 1.0, 1.0], [0.0, 0.0], [1.0]]
    reported = json.loads(capsys.readouterr().out)
    assert (reported["solutions"], reported["steps"], reported["labelled_now"]) == (3, 6, 3)
    assert reported["mean_label"] == pytest.approx(3.25 / 6)
    # What the model reads: the rules, the problem, and the solution up to a step.
    assert len(policy.prompts) == 3 * 4
    assert "Box it." in policy.prompts[0]
    assert "2 + 3?" in policy.prompts[0]
    assert len(set(policy.seeds)) == 12
    # As rl.reward_model process=true reads it; other columns stay.
    assert read_steps(str(tmp_path / "out/steps.jsonl"))[0].labels == (0.25, 1.0, 1.0)
    assert json.loads((tmp_path / "out/steps.jsonl").read_text().splitlines()[1])["id"] == "b"


def test_hard_labels_ask_for_one_right_answer(words, policy, tmp_path):
    assert rl.step_labels.main(words("estimate=hard")) == 0
    assert labels(tmp_path) == [[1.0, 1.0, 1.0], [0.0, 0.0], [1.0]]


def test_an_answer_that_was_cut_is_not_right(words, policy, tmp_path):
    policy.finish_reason = FinishReason.LENGTH
    assert rl.step_labels.main(words()) == 0
    assert labels(tmp_path) == [[0.0, 0.0, 1.0], [0.0, 0.0], [1.0]]


def test_rules_that_a_row_brings_along_are_the_only_ones(words, policy, tmp_path):
    messages = [{"role": "system", "content": "Own."}, {"role": "user", "content": "2 + 3?"}]
    row = {"prompt": messages, "completions": ["Add.", r"\boxed{5}"], "answer": 5}
    (tmp_path / "solutions.jsonl").write_text(json.dumps(row) + "\n")
    assert rl.step_labels.main(words()) == 0
    assert all("Own." in text and "Box it." not in text for text in policy.prompts)
    assert len(policy.prompts) == 4


def test_labels_stand_in_the_order_of_the_solutions(words, policy, tmp_path):
    assert rl.step_labels.main(words()) == 0
    file = tmp_path / "out/steps.jsonl"
    # As it is where the second solution was done first.
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:2]))
    assert rl.step_labels.main(words()) == 0
    assert [json.loads(line)["row"] for line in file.read_text().splitlines()] == [0, 1, 2]


def test_a_command_that_was_stopped_goes_on_where_it_was(words, policy, tmp_path, capsys):
    policy.fails_after = 9
    assert rl.step_labels.main(words()) != 0
    assert "gone" in capsys.readouterr().err
    file = tmp_path / "out/steps.jsonl"
    assert labels(tmp_path) == [[0.25, 1.0, 1.0]]
    # Killed in the middle of a line.
    file.write_text(file.read_text() + '{"row": 1, "lab')
    policy.fails_after = 10**9
    before = len(policy.prompts)
    assert rl.step_labels.main(words()) == 0
    assert len(policy.prompts) - before == 4
    assert labels(tmp_path) == [[0.25, 1.0, 1.0], [0.0, 0.0], [1.0]]
    assert json.loads(capsys.readouterr().out)["labelled_now"] == 2
    # Once more, it has nothing to do.
    assert rl.step_labels.main(words()) == 0
    assert json.loads(capsys.readouterr().out)["labelled_now"] == 0


def test_other_settings_are_refused_in_a_folder_with_labels(words, policy, capsys):
    assert rl.step_labels.main(words()) == 0
    assert rl.step_labels.main(words("estimate=hard")) == 1
    assert "made with another estimate: choose another out=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ('{"prompt": "x", "completions": ["y"]}', "'answer'"),
        ('{"prompt": "x", "completions": [], "answer": 1}', "a step is no text"),
        ('{"prompt": "x", "completions": ["y"], "answer": null}', "answer (None) is neither"),
    ],
)
def test_an_invalid_row_is_named(tmp_path, line, reported):
    path = tmp_path / "data.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match="line 1: expected") as error:
        read_solutions(str(path))
    assert reported in str(error.value)


@pytest.mark.parametrize(
    ("word", "reported"),
    [("env=toy-copy", "must be math"), ("deterministic=true", "must be False")],
)
def test_impossible_settings_are_refused(words, capsys, word, reported):
    assert rl.step_labels.main(words(word)) == 1
    assert reported in capsys.readouterr().err
