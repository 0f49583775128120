"""Runs that are broken on purpose: the first finding names the cause. A healthy run has none."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from viewer_runs import groups_of

from agents.completion import Completion, FinishReason
from rl.credit.algorithms import ALGORITHMS
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from rl.rollout.trajectory import Segment, Trajectory, TrajectoryGroup, Turn
from rl.rollout.trajectory_files import write_learner_columns, write_trajectories
from rl.run.folder import read_jsonl
from rl.run.metrics.episodes import rollout_metrics, staleness_metrics
from rl.run.metrics.no_gradient import PREFIX, cause_of
from rl.train import main
from rl.viewer.finding import KEYS, ChatFacts, Played, RunData
from rl.viewer.findings import findings, read_played
from rl.viewer.runs import as_problem

ENDS = (1, 2, 3, 4, 5)
"""Tokens that end an answer."""
CONFIG = {"group_size": 4, "staleness": 0, "eval": {"tasks": 100}, "algo": {"name": "grpo"}}


class Sampler:
    """Plays episodes of two turns with a model of 23 tokens; even tokens are rewarded."""

    def __init__(self, model, limit=40, reward=None, text="even", heat=1.0, claimed=None):
        self.model, self.limit, self.text = model, limit, text
        self.heat, self.claimed = heat, claimed or heat
        self.reward = reward or (lambda ids: sum(i % 2 == 0 for i in ids) / len(ids))
        self.generator = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def answer(self, prompt, version):
        ids, logprobs = [], []
        while len(ids) < self.limit and not (ids and ids[-1] in ENDS):
            logits = self.model(input_ids=torch.tensor([prompt + ids])).logits[0, -1]
            chances = (logits / self.heat).softmax(-1)
            ids.append(int(torch.multinomial(chances, 1, generator=self.generator)))
            log_p = (logits / self.claimed).log_softmax(-1)
            logprobs.append(min(0.0, log_p[ids[-1]].item()))
        reason = FinishReason.STOP_TOKEN if ids[-1] in ENDS else FinishReason.LENGTH
        return Completion(tuple(ids), tuple(logprobs), (version,) * len(ids), reason)

    def episode(self, task, member, version):
        segment, turns = Segment(), []
        for turn in range(2):
            segment.append_context([6 + (task + turn + i) % 17 for i in range(3)], turn)
            done = self.answer([*segment.token_ids], version)
            segment.append_completion(done, turn)
            reward = {"even": self.reward(done.token_ids)}
            turns.append(Turn(self.text, "next", done.finish_reason, len(done.token_ids), reward))
        return Trajectory(
            "toy", {}, task, 0, member, [segment], turns, terminated=True, outcome=0.5
        )

    def step(self, version):
        return [
            TrajectoryGroup([self.episode(2 * version + task, m, version) for m in range(4)])
            for task in range(2)
        ]


def run_of(model, play, steps=4, lr=3e-3):
    """The data of a run of ``steps`` updates; ``play`` gives the groups of a version."""
    learner = Updater(model, ALGORITHMS["grpo"], OptimizerConfig(lr=lr, warmup_steps=0))
    records, played = [], []
    for step in range(1, steps + 1):
        groups = play(step - 1)
        metrics = rollout_metrics(groups) | learner.update(groups, version=step - 1)
        episodes = [t for group in groups for t in group.finished]
        metrics |= staleness_metrics(episodes, step - 1)
        cause = cause_of(metrics, [outcome for group in groups for outcome in group.outcomes])
        records.append({"step": step} | metrics | ({PREFIX + cause: 1.0} if cause else {}))
        columns = {} if learner.record is None else asdict(learner.record)
        played.append(Played(f"step-{step:06d}", step, episodes, columns))
    return RunData(records, played[-2:], CONFIG)


def first(run):
    found = findings(run)
    assert len({f.key for f in found}) == len(found)
    assert all(f.title.endswith(".") and f.advice.endswith(".") for f in found)
    return found[0]


def test_a_healthy_run_has_no_finding(make_model):
    model = make_model(layers=1)
    run = run_of(model, Sampler(model).step)
    assert [f.key for f in findings(run)] == []


def test_tied_rewards(make_model):
    model = make_model(layers=1)
    finding = first(run_of(model, Sampler(model, reward=lambda ids: 0.0).step))
    assert (finding.key, finding.severity) == ("tied_rewards", "high")
    assert finding.title.startswith("4 of 4 steps had no gradient from rewards: ")
    assert finding.detail.endswith(" No step had a gradient.")
    assert finding.steps == (1, 2, 3, 4)
    assert finding.episodes == {"kind": "train", "step": "1-4"}


def with_sampling(run, **settings):
    return replace(run, config={**run.config, "sampling": {"temperature": 1.0, **settings}})


COLD = 1e-6
"""A temperature at which the small random model of these tests gives one token all the chance."""


@pytest.mark.parametrize(
    ("settings", "cause", "advice"),
    [
        ({"temperature": 0.01}, "sampling.temperature is 0.01", "sampling.temperature=1"),
        ({"temperature": 0}, "sampling.temperature is 0", "sampling.temperature=1"),
        ({"top_k": 1}, "sampling.top_k is 1", "sampling.top_k=0"),
        (
            {"temperature": 0.1, "top_p": 0.05},
            "sampling.temperature is 0.1, sampling.top_p is 0.05",
            "sampling.temperature=1 sampling.top_p=1",
        ),
    ],
)
def test_identical_episodes_of_a_group_are_named_with_the_setting(
    make_model, settings, cause, advice
):
    model = make_model(layers=1)
    run = with_sampling(run_of(model, Sampler(model, heat=COLD).step), **settings)
    found = findings(run)
    assert (found[0].key, found[0].severity) == ("identical", "high")
    assert found[0].title == f"The 4 episodes of a group are the same (4 of 4 groups): {cause}."
    assert found[0].advice == f"{advice}."
    assert as_problem(found[0])["show"] == {"show": "group"}
    assert found[0].episodes == tuple((p.name, i) for p in run.played for i in (0, 4))
    (tied,) = (f for f in found if f.key == "tied_rewards")
    assert "group_size" not in tied.advice


@pytest.mark.parametrize(
    ("claimed", "cause"),
    [
        (1.0, "the policy does not sample"),
        (COLD, "the policy gives each token the probability 1"),
    ],
)
def test_a_policy_that_does_not_sample(make_model, claimed, cause):
    model = make_model(layers=1)
    run = run_of(model, Sampler(model, heat=COLD, claimed=claimed).step)
    finding = first(with_sampling(run))
    assert (finding.key, finding.severity) == ("identical", "high")
    assert finding.title.endswith(f" (4 of 4 groups): {cause}.")


def test_short_answers_in_common_are_no_identical_episodes():
    """Members that agree by chance: the policy gives the one token that they share 0.98."""
    episodes = [alike(member, [7], [-0.02]) for _ in range(8) for member in range(8)]
    played = [Played("step-000001", 1, episodes)]
    assert findings(with_sampling(RunData([], played, CONFIG))) == []
    # A few tokens of probability 1 are such a common answer too, and so are solved tasks.
    for answer, outcome in (([7], 0.0), ([7] * 20, 1.0)):
        episodes = [
            alike(member, answer, [0.0] * len(answer), outcome=outcome) for member in range(8)
        ]
        assert findings(with_sampling(RunData([], [Played("step-000001", 1, episodes)]))) == []


def test_a_group_of_one_and_episodes_without_tokens_are_not_identical():
    cold = {"temperature": 0.01}
    alone = [alike(0, [7] * 9, [-0.1] * 9) for _ in range(16)]
    empty = [Trajectory("toy", {}, 0, 0, member, truncated=True) for member in range(16)]
    for episodes in (alone, empty):
        run = with_sampling(RunData([], [Played("step-000001", 1, episodes)]), **cold)
        assert findings(run) == []


def alike(member, ids, logprobs, outcome=0.0):
    """An episode of one answer."""
    segment = Segment()
    segment.append_context([6, 6], 0)
    segment.append_completion(Completion(ids, logprobs, [0] * len(ids), FinishReason.STOP_TOKEN), 0)
    turns = [Turn("7", "", FinishReason.STOP_TOKEN, len(ids), {"right": outcome})]
    return Trajectory("toy", {}, 0, 0, member, [segment], turns, terminated=True, outcome=outcome)


@pytest.mark.parametrize(
    ("causes", "reason"),
    [
        (["none_succeeded"] * 4, "all rewards were equal: no episode succeeded"),
        (["all_succeeded"] * 4, "all rewards were equal: every episode succeeded"),
        (
            ["none_succeeded", "equal", "none_succeeded", "none_succeeded"],
            "the rewards of each group were equal: each group succeeded or failed as a whole",
        ),
        (
            ["none_succeeded", "all_succeeded"],
            "the rewards of each group were equal: each group succeeded or failed as a whole",
        ),
    ],
)
def test_no_episode_succeeded_is_said_only_if_none_did(causes, reason):
    records = [r | {PREFIX + c: 1.0} for r, c in zip(steps(len(causes)), causes, strict=True)]
    count = len(causes)
    title = first(RunData(records)).title
    assert title == f"{count} of {count} steps had no gradient from rewards: {reason}."


def test_cut_answers(make_model):
    model = make_model(layers=1)
    run = run_of(model, Sampler(model, limit=2).step)
    run = replace(run, config=run.config | {"sampling": {"max_tokens": 2}})
    finding = first(run)
    turns = [turn for p in run.played for t in p.trajectories for turn in t.turns]
    full = sum(turn.num_tokens == 2 for turn in turns)
    assert full > 16
    numbers = f"sampling.max_tokens is 2; {full} of 32 answers have 2 tokens. "
    assert finding.detail.startswith(numbers)
    assert (finding.key, finding.severity) == ("answers_cut", "high")
    assert "were cut at the token limit" in finding.title
    episodes = {played.name: played.trajectories for played in run.played}
    assert finding.episodes
    assert all(episodes[name][line].cut_for_length for name, line in finding.episodes)


def shifted(segment, by):
    """A copy whose mask and sampler's columns stand ``by`` places further right."""
    names = ("loss_mask", "sampling_logprobs", "versions")
    moved = {name: np.roll(np.asarray(getattr(segment, name)), by).tolist() for name in names}
    starts = np.flatnonzero(np.diff([0, *moved["loss_mask"]]) == 1)
    turns = [int(place >= starts[1]) for place in range(len(segment))]
    return Segment([*segment.token_ids], **moved, turn_ids=turns)


@pytest.mark.parametrize(("by", "side"), [(-1, "after"), (1, "before")])
def test_a_mask_off_by_one(make_model, by, side):
    model = make_model(layers=1)
    sampler = Sampler(model)

    def play(version):
        groups = sampler.step(version)
        for trajectory in (t for group in groups for t in group.trajectories):
            trajectory.segments[0].append_context([4], 1)  # the template's end of a message
            trajectory.segments = [shifted(trajectory.segments[0], by)]
        return groups

    finding = first(run_of(model, play))
    assert (finding.key, finding.severity) == ("mask", "high")
    assert finding.title.startswith("The loss mask is off by one")
    assert f"token {side} it" in finding.title


def test_a_mask_that_trains_a_token_of_the_prompt(make_model):
    model = make_model(layers=1)
    sampler = Sampler(model)

    def play(version):
        groups = sampler.step(version)
        for trajectory in (t for group in groups for t in group.trajectories):
            (segment,) = trajectory.segments
            mask = np.asarray(segment.loss_mask)
            for start in np.flatnonzero(np.diff(mask) == 1).tolist():
                segment.loss_mask[start], segment.versions[start] = 1, version
                segment.sampling_logprobs[start] = -0.001
            for turn in trajectory.turns:
                turn.num_tokens += 1
        return groups

    finding = first(run_of(model, play))
    assert (finding.key, finding.severity) == ("mask", "high")
    assert finding.title.startswith("The first trained token of each turn differs by ")


def test_trained_observations_are_a_mask_problem_unless_the_settings_ask_for_them(make_model):
    model = make_model(layers=1)
    run = run_of(model, Sampler(model).step, steps=2)
    for played in run.played:
        (column, *others) = played.columns.values()
        for numbers in (column, *others):
            numbers[np.isnan(numbers)] = -1.0
    finding = first(run)
    assert (finding.key, finding.severity) == ("mask", "high")
    assert finding.title.endswith("% of the trained tokens were written by the environment.")
    asked = CONFIG | {"algo": {"name": "grpo", "row": {"mask_observations": False}}}
    assert "mask" not in {f.key for f in findings(RunData(run.records, run.played, asked))}


@pytest.mark.parametrize(("by", "side"), [(-1, "before"), (1, "after")])
def test_a_learner_that_trains_beside_the_sampled_tokens(by, side):
    """The files have the right mask; the learner's numbers stand one place beside it."""
    episodes = [t for group in groups_of(1) for t in group.trajectories]
    for trajectory in episodes:
        trajectory.segments[0].append_context([4], 1)
    masks = [np.roll(np.asarray(t.segments[0].loss_mask), by) for t in episodes]
    numbers = np.where(np.concatenate(masks), -1.0, np.nan).astype(np.float32)
    columns = {"advantages": numbers, "logprobs": numbers}
    finding = first(RunData([], [Played("step-000001", 1, episodes, columns)], CONFIG))
    assert (finding.key, finding.severity, finding.colour) == ("mask", "high", "advantage")
    assert finding.title == (
        f"The loss mask is off by one: the learner trained the token {side} each sampled one."
    )
    assert finding.episodes == tuple(("step-000001", line) for line in range(6))


def test_a_template_with_marks_that_the_model_does_not_know():
    episodes = [t for group in groups_of(1) for t in group.trajectories]
    played = [Played("step-000001", 1, episodes)]
    wrong = ChatFacts(replaced=True, unknown_marks=("<|im_start|>", "<|im_end|>"))
    finding = first(RunData([], played, CONFIG, wrong))
    assert (finding.key, finding.severity) == ("template", "high")
    assert "<|im_start|>, <|im_end|> are no tokens of the model" in finding.title
    solved = RunData([{"step": 9, "eval/success": 0.8}], played, CONFIG, wrong)
    assert first(solved).severity == "medium"
    for fine in (ChatFacts(False, ("<|im_start|>",)), ChatFacts(True, ()), None):
        assert findings(RunData([], played, CONFIG, fine)) == []


@pytest.mark.parametrize(
    "text", ["4<|im_end|>\n<|im_start|>user\nMore", "yes</s>[INST] and? [/INST]", "4\nUser:\nAnd?"]
)
def test_a_wrong_template(make_model, text):
    model = make_model(layers=1)
    finding = first(run_of(model, Sampler(model, limit=4, text=text).step, steps=3))
    assert (finding.key, finding.severity) == ("template", "high")
    assert finding.title.startswith("100% of the answers contain marks of a chat template")


def test_answers_that_never_end_hint_at_the_template(make_model):
    model = make_model(layers=1)
    sampler = Sampler(model, limit=1)
    sampler.reward = lambda ids: ids[0] % 2
    run = run_of(model, sampler.step, steps=3)
    for turn in (t for p in run.played for e in p.trajectories for t in e.turns):
        turn.finish_reason = "length"
    assert [f.key for f in findings(run)][:2] == ["answers_cut", "template"]


def test_a_stale_sampler(make_model):
    model = make_model(layers=1)
    sampler = Sampler(copy.deepcopy(model))

    def play(version):
        return [
            TrajectoryGroup([sampler.episode(2 * version + task, m, 0) for m in range(4)])
            for task in range(2)
        ]

    finding = first(run_of(model, play))
    assert (finding.key, finding.severity) == ("stale_sampler", "high")
    assert "up to 3 updates behind the learner" in finding.title
    assert finding.steps == (2, 3, 4)


def test_a_stale_sampler_that_claims_the_current_version(make_model):
    model = make_model(layers=1)
    sampler = Sampler(copy.deepcopy(model))
    finding = first(run_of(model, sampler.step, steps=6, lr=0.03))
    assert (finding.key, finding.severity) == ("mismatch", "high")
    assert "move away from the learner's" in finding.title


# ---- metrics alone -------------------------------------------------------------------------------


def steps(count, **columns):
    """Records of steps; each column is a number or a function of the step."""
    return [
        {"step": n, "num_groups": 8, "frac_reward_zero_std": 0.2}
        | {k.replace("__", "/"): v(n) if callable(v) else v for k, v in columns.items()}
        for n in range(1, count + 1)
    ]


def held_out(*successes):
    return [{"step": 10 * n, "eval/success": s} for n, s in enumerate(successes)]


def test_success_that_falls_while_the_reward_rises():
    records = steps(40, reward=lambda n: n / 40) + held_out(0.3, 0.7, 0.5, 0.4, 0.3)
    finding = first(RunData(records, config=CONFIG))
    assert (finding.key, finding.severity, finding.steps) == ("apart", "high", (10, 40))
    assert "fell from 0.70 (step 10) to 0.30" in finding.title
    rising = RunData(steps(40, reward=lambda n: n / 40) + held_out(0.3, 0.5, 0.6, 0.6, 0.55))
    assert findings(rising) == [], "a fall within chance"


def test_rewards_that_rise_without_any_success():
    records = steps(12, reward=lambda n: n / 24) + held_out(0.0, 0.0, 0.0)
    finding = first(RunData(records, config=CONFIG))
    assert (finding.key, finding.severity, finding.steps) == ("no_success", "high", (0, 20))
    assert finding.title.endswith("while the training reward went from 0.10 to 0.44.")
    assert finding.episodes["sort"] == "reward"
    for fine in (held_out(0.0, 0.0), held_out(0.0, 0.02, 0.0)):
        assert findings(RunData(steps(12, reward=0.2) + fine, config=CONFIG)) == []
    tied = steps(12, reward=0.0, frac_reward_zero_std=1.0) + held_out(0.0, 0.0, 0.0)
    assert "no_success" not in {f.key for f in findings(RunData(tied, config=CONFIG))}


def test_a_test_that_became_worse():
    tests = [
        {"step": 0, "test/success": 0.6, "test/success_low": 0.5, "test/success_high": 0.7},
        {"step": 9, "test/success": 0.3, "test/success_low": 0.2, "test/success_high": 0.4},
    ]
    assert first(RunData(steps(9) + tests)).key == "worse"
    assert findings(RunData(steps(9) + tests[::-1])) == []


def test_failures_are_counted_by_kind():
    records = steps(3, failures=4.0, failures__SandboxFailure=3.0, failures__EpisodeTimeout=1.0)
    finding = first(RunData(records, config=CONFIG))
    assert (finding.key, finding.severity) == ("failures", "medium")
    assert "12 episodes (12%) of the last 3 steps failed: SandboxFailure (9), E" in finding.title
    assert finding.episodes["failure"] == "SandboxFailure"


def test_an_entropy_that_collapses_counts_until_the_tasks_are_solved():
    records = steps(20, entropy=lambda n: math.exp(-n / 2), frac_reward_zero_std=0.9)
    assert first(RunData(records)).key == "entropy"
    solved = RunData([*records, {"step": 20, "eval/success": 0.97}])
    assert {f.severity for f in findings(solved)} == {"low"}, "equal rewards, as expected"


def test_stale_tokens_within_the_bound_count_by_their_weight():
    shares = {"staleness__effective_share__0": 1.0, "staleness__effective_share__2": 0.3}
    records = steps(8, staleness__oldest=2.0, **shares)
    found = findings(RunData(records, config=CONFIG | {"staleness": 2}))
    assert [(f.key, f.severity) for f in found] == [("stale_sampler", "medium")]
    assert first(RunData(records, config=CONFIG)).severity == "high"


def test_answers_that_the_environment_cannot_read():
    records = steps(8, scores__research_format=0.02, tools__failure_frequency=0.1)
    assert first(RunData(records)).title == "research_format is 0.02 over the last 8 steps."
    records = steps(8, tools__failure_frequency=0.8)
    assert first(RunData(records)).title.startswith("80% of the tool calls")


def test_equal_rewards_matter_only_where_advantages_come_from_the_group():
    """With a value model (PPO), tokens have advantages although a group's rewards are equal."""
    records = steps(8, frac_reward_zero_std=1.0, frac_zero_advantage=0.02)
    assert findings(RunData(records)) == []
    records = steps(8, frac_reward_zero_std=0.9, frac_zero_advantage=0.9)
    assert first(RunData(records)).key == "tied_rewards"


def test_a_few_steps_without_a_gradient_are_a_remark():
    records = steps(100)
    records[7]["no_gradient/equal"] = 1.0
    assert first(RunData(records)).severity == "low"
    records[8]["no_gradient/equal"] = records[9]["no_gradient/equal"] = 1.0
    records[-1]["no_gradient/equal"] = records[-2]["no_gradient/equal"] = 1.0
    assert first(RunData(records)).severity == "medium"


def test_an_entropy_that_was_always_zero_did_not_collapse():
    assert findings(RunData(steps(8, entropy=0.0))) == []


def test_an_effect_names_the_finding_that_explains_it():
    cut = {"completions__clipped_ratio": 0.9}
    run = RunData(steps(8, frac_reward_zero_std=0.9, frac_zero_advantage=0.9, **cut))
    assert [(f.key, f.cause) for f in findings(run)] == [
        ("answers_cut", ""),
        ("tied_rewards", "answers_cut"),
    ]
    stale = steps(8, staleness__oldest=2.0, sampling__k3=0.3)
    found = findings(RunData(stale, config=CONFIG))
    assert [(f.key, f.cause) for f in found] == [
        ("stale_sampler", ""),
        ("mismatch", "stale_sampler"),
    ]
    assert as_problem(found[1])["cause"] == "stale_sampler"
    unread = findings(RunData(steps(8, scores__format=0.0, **cut)))
    assert [(f.key, f.cause) for f in unread] == [("answers_cut", ""), ("format", "answers_cut")]


def test_cut_answers_do_not_explain_what_happens_without_them():
    """Equal rewards in early steps without a cut, and all answers cut in the later steps."""

    def found(cut_from, share=1.0, **metrics):
        cut = {"completions__clipped_ratio": lambda n: share if n >= cut_from else 0.0}
        records = steps(20, **cut, **metrics)
        for n, record in enumerate(records):
            record[f"no_gradient/{'cut' if n >= cut_from else 'none_succeeded'}"] = 1.0
        return {f.key: f.cause for f in findings(RunData(records))}

    assert found(10) == {"answers_cut": "", "tied_rewards": ""}
    assert found(0, scores__format=0.0) == {"answers_cut": "", "format": "answers_cut"}
    # Of ten answers one has the format, yet only three were cut.
    unread = found(0, 0.3, scores__format=0.05)
    assert unread == {"answers_cut": "", "format": ""}


def test_a_less_severe_finding_explains_no_other():
    records = steps(8, completions__clipped_ratio=0.25)
    for record in records:
        record["no_gradient/equal"] = 1.0
    found = {f.key: (f.severity, f.cause) for f in findings(RunData(records))}
    assert found == {"tied_rewards": ("high", ""), "answers_cut": ("medium", "")}


@pytest.mark.parametrize(("reward", "severity"), [(0.2, "medium"), (lambda n: n / 20, "low")])
def test_tool_calls_that_vanish(reward, severity):
    calls = {"tools__call_frequency": lambda n: 2.0 if n < 8 else 0.05}
    found = findings(RunData(steps(16, reward=reward, **calls)))
    assert [(f.key, f.severity) for f in found] == [("tool_calls", severity)]
    assert found[0].title.startswith(
        "Tool calls vanished: 0.05 per episode in the last 4 steps, 2 "
    )
    for few in (lambda n: 0.4 if n < 8 else 0.0, lambda n: 2.0 if n < 8 else 0.3):
        assert findings(RunData(steps(16, tools__call_frequency=few))) == []
    assert findings(RunData(steps(7, **calls))) == []


def test_scores_that_only_contain_the_word_format():
    records = steps(8, scores__information_gain=0.0, scores__format_errors=0.0)
    assert findings(RunData(records)) == []


def test_every_key_has_its_row_in_the_docs(request):
    page = (request.config.rootpath / "docs" / "runs.md").read_text()
    assert [key for key in KEYS if f"| `{key}` |" not in page] == []


def test_a_run_without_any_record_has_no_finding():
    assert findings(RunData([])) == []


# ---- files of a run ------------------------------------------------------------------------------


def test_the_newest_steps_are_read_with_the_learners_numbers(tmp_path, make_model):
    model = make_model(layers=1)
    groups = Sampler(model).step(0)
    size = sum(len(t.segments[0]) for group in groups for t in group.trajectories)
    for step in (1, 2, 3):
        path = tmp_path / f"step-{step:06d}.jsonl.gz"
        write_trajectories(path, groups)
    write_learner_columns(path, groups, {"advantages": np.zeros(size, np.float32)})
    read = read_played(tmp_path)
    assert [(p.name, p.step, len(p.trajectories)) for p in read] == [
        ("step-000002", 2, 8),
        ("step-000003", 3, 8),
    ]
    assert [sorted(p.columns) for p in read] == [[], ["advantages"]]


@pytest.mark.parametrize(("limit", "key"), [(3, None), (1, "answers_cut")])
def test_a_run_of_rl_train(words, tmp_path, without_charts, limit, key):
    out = tmp_path / "run"
    assert main(words(out, env__max_turns=2, sampling__max_tokens=limit)) == 0
    config = json.loads((out / "config.json").read_text())
    records, played = read_jsonl(out / "metrics.jsonl"), read_played(out / "trajectories")
    high = [f.key for f in findings(RunData(records, played, config)) if f.severity == "high"]
    assert high[:1] == ([key] if key else [])
