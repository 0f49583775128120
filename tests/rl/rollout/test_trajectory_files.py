"""Files of trajectories: what is written is read, and what cannot be read is one line."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import rl.rollout.trajectory_files
from agents.completion import Completion, FinishReason
from agents.segment import COLUMNS, Segment
from envs.episode import EnvToolCall
from envs.record import RecordedCall
from rl.errors import UsageError
from rl.rollout.async_rollouts import GroupStream, Slot, Snapshot
from rl.rollout.token_table import IDS, SIZES, from_table, to_table
from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn
from rl.rollout.trajectory_files import (
    learner_path,
    read_learner_columns,
    read_trajectories,
    remove_trajectories,
    tokens_path,
    write_learner_columns,
    write_trajectories,
)


def episode(member=0, logprob=-0.5, supports=None):
    """An episode of two roles, the first with a fork."""
    main, fork, other = Segment(role="a"), Segment(parent=0, offset=2, role="a"), Segment(role="b")
    main.append_context([5, 6], 0)
    said = Completion((8, 9), (logprob, -1.0), (2, 3), FinishReason.LENGTH, supports)
    main.append_completion(said, 0)
    fork.append_context([5, 6, 4], 1)
    fork.append_completion(Completion((3,), (-2.0,), (3,), FinishReason.LENGTH), 1)
    other.append_context([1], 2)
    turns = [Turn("x\u2028y", "o", "length", 2, role="a"), Turn("z", "", "length", 1, role="a")]
    record = Trajectory(
        "toy-v0", {"n": [1]}, 3, 11, member, [main, fork, other], turns, terminated=True
    )
    record.calls.append(RecordedCall(0, "search", {"q": "x"}, "found"))
    return record


@pytest.fixture
def path(tmp_path):
    return tmp_path / "step-000001.jsonl.gz"


def test_the_learners_numbers_are_written_for_each_token_of_the_file(path):
    groups = [TrajectoryGroup([episode(0), episode(1)]) for _ in range(3)]
    groups[1].dropped = True
    size = sum(len(segment) for t in groups[0].trajectories for segment in t.segments)
    write_trajectories(path, groups)
    advantages = np.arange(2 * size, dtype=np.float32)
    write_learner_columns(path, groups, {"advantages": advantages})
    (column,) = read_learner_columns(path, 3 * size).values()
    assert column.dtype == np.float32
    assert column[:size].tolist() == advantages[:size].tolist()
    assert np.isnan(column[size : 2 * size]).all()
    assert column[2 * size :].tolist() == advantages[size:].tolist()
    assert [p.name for p in path.parent.iterdir() if p.name.startswith(".")] == []
    again = learner_path(path).read_bytes()
    write_learner_columns(path, groups, {"advantages": advantages})
    assert learner_path(path).read_bytes() == again


def test_learners_numbers_that_do_not_belong_to_the_episodes_are_refused(path):
    groups = [TrajectoryGroup([episode(0)])]
    size = sum(len(segment) for segment in groups[0].trajectories[0].segments)
    assert read_learner_columns(path, size) == {}, "a run that did not record them"
    with pytest.raises(ValueError, match=f"entropies has 2 numbers, the episodes {size} tokens"):
        write_learner_columns(path, groups, {"entropies": np.zeros(2, np.float32)})
    write_learner_columns(path, groups, {"entropies": np.zeros(size, np.float32)})
    with pytest.raises(UsageError, match=r"step-000001.learner.npz does not belong to step-000001"):
        read_learner_columns(path, size + 1)
    whole = learner_path(path).read_bytes()
    for damaged in (b"", whole[:40], whole[:-9], b"x" * 99):
        learner_path(path).write_bytes(damaged)
        with pytest.raises(UsageError, match=r"step-000001.learner.npz cannot be read: "):
            read_learner_columns(path, size)


def test_what_is_written_is_read(path):
    float64 = -0.1
    assert float(np.float32(float64)) != float64
    supports = ([8, 1], [])
    members = [episode(0), episode(1, float64), episode(2, supports=supports)]
    failed = Trajectory("toy-v0", {}, 3, 12, 3, failure="EnvFailure: no")
    groups = [TrajectoryGroup(members), TrajectoryGroup([failed])]
    write_trajectories(path, groups)
    back = read_trajectories(path)
    assert back == [*members, failed]
    assert back[2].segments[0].supports == [[], [], [8, 1], []]
    assert back[2].segments[1].supports == []
    back[0].check()
    back[0].segments[0].append_context([1, 2, 3], 2)
    assert back[0].segments[1] == members[0].segments[1], "segments that grow keep to themselves"


def test_experts_are_written_and_read(path):
    members = [episode(member) for member in range(3)]
    drawn = np.random.default_rng(0)
    written = []
    for member, count in ((0, 3), (2, 4)):
        experts = drawn.integers(0, 8, (count, 2, 2), dtype=np.uint8)
        members[member].segments[0].experts = experts
        written.append(experts)
    write_trajectories(path, [TrajectoryGroup(members)])
    back = read_trajectories(path)
    assert back == members
    found = [segment.experts for member in back for segment in member.segments]
    assert [experts is None for experts in found] == [False, *[True] * 5, False, True, True]
    assert all(map(np.array_equal, [x for x in found if x is not None], written))
    with pytest.raises(ValueError, match="7 tokens with experts, experts 6"):
        records, table = to_table(members)
        from_table(records, table | {"experts": table["experts"][:6]})


def test_any_tool_reads_the_files(path):
    write_trajectories(path, [TrajectoryGroup([episode(), episode(1)])])
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file.read().split("\n") if line]
    assert [line["format"] for line in lines] == [2, 2]
    assert [turn["action"] for turn in lines[0]["turns"]] == ["x\u2028y", "z"]
    assert [segment["num_tokens"] for segment in lines[0]["segments"]] == [4, 4, 1]
    tokens = np.load(tokens_path(path))
    assert sorted(tokens.files) == sorted(COLUMNS)
    assert tokens["token_ids"].tolist() == [5, 6, 8, 9, 5, 6, 4, 3, 1] * 2
    types = {name: tokens[name].dtype.name for name in tokens.files}
    assert types == COLUMNS | {"loss_mask": "bool", "sampling_logprobs": "float32"}


def test_lines_of_format_1_are_read(path):
    members = [episode(), episode(1, supports=([8], [9, 1]))]
    text = "".join(json.dumps(member.to_json()) + "\n" for member in members)
    path.write_bytes(gzip.compress(text.encode()))
    assert read_trajectories(path) == members


def spoil_lines(path, change):
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    for line in lines:
        change(line)
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda p: spoil_lines(p, lambda r: r.update(format=3)), "has format 3, this turnwise "),
        (lambda p: spoil_lines(p, lambda r: r.update(new=1)), "field 'new' is unknown: a newer "),
        (lambda p: spoil_lines(p, lambda r: r.pop("segments")), "holds no episodes of a run: "),
        (lambda p: p.write_bytes(p.read_bytes()[:-20]), "cannot be read: "),
        (lambda p: p.write_bytes(b"{}"), "cannot be read: "),
        (lambda p: tokens_path(p).unlink(), "cannot be read: .*No such file"),
        (lambda p: tokens_path(p).write_bytes(tokens_path(p).read_bytes()[:-30]), ""),
        (lambda p: write_trajectories(p.with_name("b.jsonl.gz"), []) or _swap(p), "not belong"),
    ],
)
def test_files_that_cannot_be_read_are_one_line(path, spoil, reason):
    write_trajectories(path, [TrajectoryGroup([episode()])])
    spoil(path)
    with pytest.raises(UsageError, match=rf"^{re.escape(str(path))} .*{reason}") as raised:
        read_trajectories(path)
    assert "\n" not in str(raised.value)


def _swap(path):
    """Put the tokens of no episode in the place of a file's own."""
    tokens_path(path.with_name("b.jsonl.gz")).replace(tokens_path(path))


@pytest.mark.parametrize("fails", ["_write_table", "_write_lines"])
def test_a_write_that_fails_leaves_the_former_files(path, fails, monkeypatch):
    former = [episode()]
    write_trajectories(path, [TrajectoryGroup(former)])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rl.rollout.trajectory_files, fails, full)
    with pytest.raises(OSError, match="No space left"):
        write_trajectories(path, [TrajectoryGroup([episode(logprob=-0.25)])])
    assert read_trajectories(path) == former
    assert not list(path.parent.glob(".*")), "no partial file stays"


def test_lines_beside_the_tokens_of_another_write_are_one_line(path):
    write_trajectories(path, [TrajectoryGroup([episode()])])
    write_trajectories(path.with_name("b.jsonl.gz"), [])
    _swap(path)
    with pytest.raises(UsageError) as raised:
        read_trajectories(path)
    assert str(raised.value) == (
        f"{path} does not belong to the tokens in step-000001.npz, which are of another write: "
        "copy both files again from where they were written, or remove both and repeat the "
        "command that wrote them"
    )


def measured(logprob, *seconds):
    """An episode with a call of each duration."""
    played = episode(logprob=logprob)
    played.turns[0].tool_calls = [EnvToolCall("search", {}, "x", seconds=s) for s in seconds]
    return played


FORMER = [[measured(-0.5, 1.0)], [measured(-0.5)]]
EXTENDED = [measured(-0.5, 1.0), measured(-0.25, 2.0, 3.0)]
"""The earlier episodes with calls or without, and those with which a folder is extended."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize(
    ("former", "extended"),
    [
        (FORMER[0], EXTENDED),
        (FORMER[1], EXTENDED),
        (FORMER[0], [measured(-0.25), measured(-0.125)]),
        # An endpoint's episodes have no tokens, and only the lines and the calls differ.
        ([Trajectory("e", {}, 0, 0, 0, turns=FORMER[0][0].turns)],
         [Trajectory("e", {}, 0, 0, n, turns=t.turns) for n, t in enumerate(EXTENDED)]),
    ],
)  # fmt: skip
def test_a_write_that_ends_at_any_time_leaves_episodes_that_can_be_read(
    path, former, extended, error, monkeypatch
):
    calls = {name: getattr(Path, name) for name in ("open", "replace", "unlink")}
    left = [0]

    def counted(name):
        def call(file, *args, **kwargs):
            # Reading changes nothing.
            if name != "open" or args[:1] == ("wb",):
                left[0] -= 1
                if left[0] == -1:
                    raise error
            return calls[name](file, *args, **kwargs)

        return call

    def write(groups, until):
        left[0] = until
        with monkeypatch.context() as patched:
            for name in calls:
                patched.setattr(Path, name, counted(name))
            try:
                write_trajectories(path, [TrajectoryGroup(groups)])
            except error:
                return False
        return True

    def shown(trajectories):
        return [[c.seconds for c in t.tool_calls] for t in trajectories], trajectories

    seen = []
    for first in range(20):
        remove_trajectories(path)
        assert not list(path.parent.iterdir())
        write_trajectories(path, [TrajectoryGroup(former)])
        if write(extended, first):
            break
        seen.append(shown(read_trajectories(path)))
        assert seen[-1] in (shown(former), shown(extended)), first
        # The next write may be cut off as well.
        for second in range(20):
            if write(former, second):
                break
            assert shown(read_trajectories(path)) in (shown(former), shown(extended)), second
        assert shown(read_trajectories(path)) == shown(former)
        assert not list(path.parent.glob(".*"))
    assert shown(extended) in seen and shown(former) in seen


def test_a_file_without_lines_has_no_episodes(path):
    path.write_bytes(gzip.compress(b""))
    assert read_trajectories(path) == []


@pytest.mark.parametrize(
    ("column", "change", "reason"),
    [
        (SIZES, lambda x: x[:-1], "the records have 4 tokens with a support, support_sizes 3"),
        (SIZES, lambda x: x + 1, "support_sizes has the sum 6, support_ids has 2 ids"),
        (IDS, lambda x: x[:-1], "support_sizes has the sum 2, support_ids has 1 ids"),
    ],
)
def test_supports_that_do_not_fit_the_records_are_refused(column, change, reason):
    records, table = to_table([episode(supports=([8, 1], []))])
    table[column] = change(table[column])
    with pytest.raises(ValueError, match=rf"^{reason}$"):
        from_table(records, table)


def stream():
    async def play(number, draw, task):
        raise AssertionError("nothing is played")

    return GroupStream(play, lambda n: [], lambda t, g: None, prompts=1, staleness=1)


def test_a_stream_keeps_its_episodes_in_a_checkpoint(tmp_path):
    groups = [TrajectoryGroup([episode(), episode(1, -0.1)]), TrajectoryGroup([episode(2)])]
    slots = [Slot(4, [7], 2, [groups[0]], done=True), Slot(5, [8, 9], 2, [groups[1]])]
    state = Snapshot(6, slots).state_dict()
    torch.save(state, tmp_path / "state.pt")
    restored = stream()
    restored.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True), 2)
    assert restored.snapshot() == Snapshot(6, slots)


def test_a_stream_reads_the_states_of_earlier_versions():
    group = TrajectoryGroup([episode(), episode(1)])
    slot = Slot(4, [7], 2, [group], done=True)
    played = [[t.to_json() for t in group.trajectories]]
    ahead = {"number": 4, "tasks": [7], "begun_at": 2, "played": played, "done": True}
    restored = stream()
    restored.load_state_dict({"begun": 5, "ahead": [ahead]}, 2)
    assert restored.snapshot() == Snapshot(5, [slot])


def test_a_table_of_a_million_tokens_holds_no_python_number_for_each():
    segment = Segment([1] * 1000, [0] * 1000, [0.0] * 1000, [-1] * 1000, [0] * 1000)
    records, table = to_table([Trajectory("e", {}, 0, 0, 0, [segment] * 1000)])
    assert {column.nbytes // 10**6 for column in table.values()} == {4, 1}
    assert len(json.dumps(records)) < 100 * 1000
