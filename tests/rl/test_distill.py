"""``rl.distill`` from its command line to what other commands make of its files."""

from __future__ import annotations

import json

import pytest

import rl.distill
import rl.pipeline
import rl.sft
from agents.renderer import Renderer
from rl.data.comparisons import read_comparisons
from rl.data.conversations import read_conversations
from rl.distillation.selection import Sample
from rl.distillation.writer import DistillWriter, Rules
from rl.runtime.model import load_tokenizer

COMMON = ("env=toy-copy", "sampling.max_tokens=3", "sampling.slots=24", "sampling.temperature=2")


def reported(capfd):
    stdout, stderr = capfd.readouterr()
    return json.loads(stdout), stderr


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.quick
def test_right_answers_are_written_and_a_student_learns_them(toy_model, tmp_path, capfd):
    out = tmp_path / "right"
    words = [*COMMON, f"model={toy_model}", "tasks=24", "episodes=6", "prompts=7"]
    assert rl.distill.main([*words, "pairs=right-wrong", f"out={out}"]) == 0
    result, stderr = reported(capfd)
    assert json.loads((out / "result.json").read_text()) == result
    assert (result["tasks"], result["episodes"], result["failures"]) == (24, 144, 0)
    assert 24 < result["right"] == result["kept"] < 144
    assert "tasks 24/24" in stderr
    lines = rows(out / "conversations.jsonl")
    assert len(lines) == result["kept"]
    assert len({line["task"] for line in lines}) == result["tasks_kept"] <= 24
    for line in lines:
        shown, said = line["messages"]
        assert said["content"] == shown["content"] == str(line["task"] % 3)
        assert line["reward"] == 1.0
    renderer = Renderer(load_tokenizer(str(toy_model)))
    read = read_conversations(str(out / "conversations.jsonl"))
    segments = [conversation.to_segment(renderer) for conversation in read]
    assert sum(sum(s.loss_mask) for s in segments) / len(segments) == pytest.approx(
        result["kept_length"]
    )
    pairs = rows(out / "pairs.jsonl")
    assert len(pairs) == result["num_pairs"] > 0
    for pair in pairs:
        (shown,), (right,), (wrong,) = pair["prompt"], pair["chosen"], pair["rejected"]
        assert right["content"] == shown["content"] != wrong["content"]
        assert (pair["chosen_reward"], pair["rejected_reward"]) == (1.0, 0.0)
        assert (right["role"], wrong["role"], shown["role"]) == ("assistant", "assistant", "user")

    words = [*COMMON[:3], f"model={toy_model}", f"data={out}/conversations.jsonl", "steps=40"]
    words += ["optimizer.lr=3e-3", "test_tasks=24", f"out={tmp_path}/student"]
    assert rl.sft.main(words) == 0
    student, stderr = reported(capfd)
    assert student["after"] > 0.95 > 0.8 > student["before"]
    assert "another tokenizer" not in stderr


def test_the_same_seed_writes_the_same_files_and_nothing_is_overwritten(toy_model, tmp_path, capfd):
    words = [*COMMON, f"model={toy_model}", "tasks=9", "episodes=4", "keep=shortest"]
    words += ["pairs=long2short", "deterministic=true"]
    texts = []
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        out = tmp_path / folder
        assert rl.distill.main([*words, f"seed={seed}", f"out={out}"]) == 0
        texts.append([(out / f"{name}.jsonl").read_text() for name in ("conversations", "pairs")])
    assert texts[0] == texts[1] != texts[2]
    tasks = [row["task"] for row in rows(tmp_path / "a" / "conversations.jsonl")]
    assert len(tasks) == len(set(tasks)), "one of each task"
    capfd.readouterr()
    assert rl.distill.main([*words, f"out={tmp_path}/a"]) == 1
    stdout, stderr = capfd.readouterr()
    assert stdout == ""
    assert stderr == (
        f"error: out ({tmp_path}/a) holds conversations.jsonl already: choose another out=...\n"
    )


def test_a_ranking_is_of_all_episodes_of_a_task(toy_model, tmp_path, capfd):
    out = tmp_path / "ranked"
    words = [*COMMON, f"model={toy_model}", "tasks=9", "episodes=4", "keep=best", "pairs=ranking"]
    assert rl.distill.main([*words, f"out={out}"]) == 0
    result, _ = reported(capfd)
    lines = rows(out / "pairs.jsonl")
    assert 0 < len(lines) <= 9
    for line in lines:
        (shown,) = line["prompt"]
        said = [message["content"] for (message,) in line["completions"]]
        assert line["scores"] == [float(content == shown["content"]) for content in said]
        assert len(said) == 4 and len(set(line["scores"])) == 2
    right = [sum(line["scores"]) for line in lines]
    assert result["num_pairs"] == sum(n * (4 - n) for n in right)
    read = read_comparisons(str(out / "pairs.jsonl"))
    assert sum(len(comparison.pairs) for comparison in read) == result["num_pairs"]
    renderer = Renderer(load_tokenizer(str(toy_model)))
    assert all(len(comparison.tokenized(renderer).segments) == 4 for comparison in read)


def test_conditions_leave_episodes_out_of_every_file(toy_model, tmp_path, capfd):
    words = [*COMMON, f"model={toy_model}", "tasks=9", "episodes=4", "pairs=right-wrong"]
    assert rl.distill.main([*words, "longest=2", f"out={tmp_path}/a"]) == 0
    result, _ = reported(capfd)
    assert result["kept"] + result.get("dropped/longest=2", 0) == result["right"]
    assert result["kept_length"] <= 2
    # A digit has no letters, and with none the share of English words is 0.
    assert rl.distill.main([*words, "only=language >= 0.5", f"out={tmp_path}/b"]) == 1
    why = "met no condition (only=..., longest=...)\n"
    assert capfd.readouterr().err.endswith(f"right episodes {why}")
    assert not (tmp_path / "b" / "conversations.jsonl").exists()


@pytest.mark.parametrize(
    ("keep", "why"),
    [
        ("right", "none of 2 episodes was right; use a better model"),
        ("best", "none of 2 episodes met the conditions (only=..., longest=...)"),
    ],
)
def test_why_nothing_is_left_is_not_always_the_model(keep, why):
    """keep=best takes wrong episodes too."""
    writer = DistillWriter(Rules(keep=keep), renderer=None)
    writer.samples += [Sample(0.0, False, 3), Sample(0.0, False, 4)]
    assert rl.distill._reason_for_none(writer).startswith(why)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["tasks=0"], "tasks (0) must be >= 1"),
        (["longest=-1"], "longest (-1) must be >= 0"),
        (["right_from=0"], "right_from (0.0) must be above 0 and at most 1"),
        (["right_from=nan"], "right_from (nan) must be above 0 and at most 1"),
        (["keep=longest"], "keep ('longest') must be one of right, best, shortest"),
        (["keep=best", "per_task=2"], "per_task (2) needs keep=right: drop per_task"),
        (
            ["pairs=ranking", "pairs_per_task=2"],
            "pairs_per_task (2) must be 0 with pairs=ranking, which ranks all episodes",
        ),
        (["pairs=ranking", "episodes=1"], "episodes (1) must be two or more with pairs=ranking"),
        (["only=x"], "only (x) must be conditions such as language >= 0.9"),
    ],
)
def test_a_mistake_is_one_line(toy_model, tmp_path, capfd, words, line):
    assert rl.distill.main([*COMMON, f"model={toy_model}", f"out={tmp_path}/x", *words]) == 1
    stdout, stderr = capfd.readouterr()
    assert stdout == ""
    assert stderr.startswith(f"error: {line}")
    assert not (tmp_path / "x").exists()


def test_a_stage_of_a_pipeline(toy_model, tmp_path, capfd):
    file = tmp_path / "line.toml"
    file.write_text(
        f"""
        [settings]
        env = "toy-copy"
        model = "{toy_model}"
        sampling.max_tokens = 3
        [[stage]]
        name = "long"
        run = "distill"
        tasks = 6
        pairs = "long2short"
        [[stage]]
        name = "short"
        run = "sft"
        data = "{{long}}"
        steps = 2
        test_tasks = 0
        [[stage]]
        name = "both"
        run = "merge"
        models = ["{toy_model}", "{{short}}"]
        """
    )
    words = [str(file), f"out={tmp_path}/line"]
    assert rl.pipeline.main(words) == 0
    made = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert made["long"] == str(tmp_path / "line" / "1-long" / "conversations.jsonl")
    assert (tmp_path / "line" / "1-long" / "pairs.jsonl").exists()
    assert load_tokenizer(made["both"]).get_vocab()
    assert rl.pipeline.main(words) == 0
    assert capfd.readouterr().err.count("already done") == 3
