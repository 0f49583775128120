"""``python -m rl.plan``: a plan from a run's folder, and its errors."""

from __future__ import annotations

import json

import numpy as np
import pytest

from agents.completion import Completion, FinishReason
from agents.segment import Segment
from rl.plan import main
from rl.planning.recorded import learned_tokens, played_groups, read_recorded
from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn
from rl.rollout.trajectory_files import write_trajectories

PROMPT, ANSWER, REPLY = 20, 8, 5


def episode(task, member, first=0, turns=2):
    """An episode of turns of 8 sampled tokens; replies of 5 tokens stand between them."""
    segment, made = Segment(), []
    for number in range(turns):
        length = REPLY if number else PROMPT
        context = [first + task] * length
        segment.append_context(context, number)
        ids = [100 + member] * ANSWER
        completion = Completion(ids, [-0.5] * ANSWER, [0] * ANSWER, FinishReason.STOP_TOKEN)
        segment.append_completion(completion, number)
        made.append(Turn("a", "", "stop_token", ANSWER, {"r": 1.0}, generate_s=0.5, env_s=0.25))
    return Trajectory("toy-v0", {}, task, task, member, [segment], made, terminated=True)


def record(step, **changes):
    """A line of metrics.jsonl: 1.5 s of rollouts, 0.4 s of learning."""
    times = {
        "time/wall": 2.1,
        "time/learner/sampling": 1.5,
        "time/learner/learn": 0.4,
        "time/learner/sync": 0.04,
        "time/learner/write": 0.16,
        "time/policy/generate": 1.0,
        "time/rollout/generate": 1.0,
    }
    return {"step": step, "num_tokens": 64.0, "unscored_tokens": 16.0, **times, **changes}


def make_run(path, steps=3, **settings):
    """A run of two tasks and two members per task."""
    (path / "trajectories").mkdir(parents=True)
    words = {"prompts": 2, "group_size": 2, "packing": True, "sampling": {"slots": 4}, **settings}
    (path / "config.json").write_text(json.dumps(words))
    facts = {"device": "cpu", "num_parameters": 1000}
    (path / "versions.json").write_text(json.dumps(facts))
    records = [record(step) for step in range(1, steps + 1)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    groups = [TrajectoryGroup([episode(task, member) for member in range(2)]) for task in range(2)]
    for step in range(1, steps + 1):
        write_trajectories(path / "trajectories" / f"step-{step:06d}.jsonl.gz", groups)
    return path


def test_a_run_is_read_as_turns_that_compute_each_prompt_once(tmp_path):
    recorded = read_recorded(str(make_run(tmp_path / "run")))
    assert (recorded.prompts, recorded.group_size, recorded.slots) == (2, 2, 4)
    assert (recorded.num_parameters, recorded.device, recorded.staleness) == (1000, "cpu", 0)
    # The first of three steps warms up.
    assert len(recorded.steps) == 2
    step = recorded.steps[0]
    first, second = step.groups[0]
    assert [turn[:4] for turn in first] == [(20, 20, 8, 0.25), (33, 5, 8, 0.25)]
    # The prompt of the second member is the first member's.
    assert [turn[:4] for turn in second] == [(20, 0, 8, 0.25), (33, 5, 8, 0.25)]
    # Two groups of 41 + 21 tokens, of which 3/4 are in episodes with a gradient.
    assert step.learned_tokens == pytest.approx(0.75 * 2 * (41 + 21))
    assert (step.longest_row, step.sampled, step.wall_s, step.other_s) == (41, 64, 2.1, 0.16)


def test_without_packing_each_member_counts_its_prompt():
    members = [episode(0, 0), episode(0, 1)]
    assert (learned_tokens(members, True), learned_tokens(members, False)) == (62, 82)


def test_failed_episodes_are_left_out_and_turns_keep_their_order():
    failed = episode(0, 1)
    failed.fail(RuntimeError("sandbox"))
    assert [len(group) for group in played_groups([episode(0, 0), failed, episode(1, 0)])] == [1, 1]
    # Two roles with a segment each: the first acts in turns 0 and 2.
    a, b = episode(0, 0, turns=1).segments[0], episode(0, 0, turns=1).segments[0]
    a.append_context([7] * REPLY, 2)
    a.append_completion(Completion([1], [-0.5], [0], FinishReason.STOP_TOKEN), 2)
    b.turn_ids[:] = np.full(len(b), 1)
    both = episode(0, 0, turns=1)
    both.segments = [a, b]
    both.turns = [Turn("", "", "stop_token", 8, env_s=float(n)) for n in range(3)]
    ((turns,),) = played_groups([both])
    assert [(turn.sampled, turn.env_s) for turn in turns] == [(8, 0.0), (8, 1.0), (1, 2.0)]


def test_the_table_shows_each_size_its_bottleneck_and_advice(tmp_path, capsys):
    assert main([str(make_run(tmp_path / "run")), "gpus=1,8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("run: 2.1 s a step measured, 2.")
    assert lines[1].startswith("prediction: each GPU is as fast as the run's cpu")
    assert lines[3].split()[:4] == ["GPUs", "samplers", "learner", "tasks"]
    assert [line.split()[0] for line in lines[4:6]] == ["1", "8"]
    assert lines[7].startswith("1 GPUs: generate. ")
    assert lines[8].startswith("8 GPUs: ")


def test_json_has_the_fit_the_costs_and_a_plan_for_each_size(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    words = ["gpus=8,64", "model=4B", "staleness=1", "grow=true", "collectors=2", "--json"]
    assert main([str(run), *words]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["fit"]["measured_s"] == 2.1
    assert abs(made["fit"]["error"]) < 0.15
    assert made["costs"]["parameters"] == 4e9
    small, large = made["plans"]
    assert (small["prompts"], large["prompts"]) == (2, 16)
    assert small["samplers"] + small["learner_gpus"] == 8
    assert small["takes_turns"] is False
    assert set(small["parts_s"]) == {"generate", "environment", "controller", "learn", "sync"}


def test_longer_answers_take_longer(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    seconds = []
    for longer in ("1", "10"):
        assert main([str(run), "gpus=8", f"longer={longer}", "--json"]) == 0
        seconds.append(json.loads(capsys.readouterr().out)["plans"][0]["parts_s"]["generate"])
    assert seconds[1] == pytest.approx(10 * seconds[0], rel=0.05)


def test_an_incomplete_last_line_and_evaluations_are_left_out(tmp_path):
    run = make_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 3, "eval/success": 0.5}) + "\n" + '{"step": 4, "ti')
    assert len(read_recorded(str(run)).steps) == 2


def without_ledger(run):
    (run / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')


def without_episodes(run):
    for file in (run / "trajectories").iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (without_ledger, [], "has no step with a ledger (time/wall in metrics.jsonl)"),
        (without_episodes, [], "has no episodes of its 3 steps in trajectories/"),
        (None, ["gpus=0"], "gpus ((0,)) must be one or more numbers >= 1"),
        (None, ["gpu=h10"], "unknown gpu 'h10'. Did you mean 'h100'?"),
        (None, ["model=5B"], "unknown model '5B'. One of: 0.6B, 1.7B, 4B"),
        (None, ["gpus=1", "staleness=1"], "gpus=1 is too few: the learner needs 1"),
        (None, ["gpus=4", "model=32B"], "gpus=4 is too few: the learner needs 8"),
        (None, ["longer=0"], "longer (0.0) must be above 0"),
    ],
)
def test_an_error_is_one_line(tmp_path, capsys, change, words, message):
    run = make_run(tmp_path / "run")
    if change is not None:
        change(run)
    assert main([str(run), *words]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert message in shown.err


def test_a_folder_that_is_no_run_is_refused(tmp_path, capsys):
    assert main([str(tmp_path / "nothing")]) == 1
    assert "there is no such folder" in capsys.readouterr().err
    assert main([str(tmp_path)]) == 1
    assert "holds no run" in capsys.readouterr().err


def test_a_run_that_was_played_ahead_is_refused(tmp_path, capsys):
    run = make_run(tmp_path / "run", staleness=2)
    assert main([str(run)]) == 1
    assert "give a run with staleness=0" in capsys.readouterr().err
    # Beside a synchronous run of the same machine it can be planned.
    other = make_run(tmp_path / "other")
    assert main([f"{run},{other}", "gpus=8"]) == 0
