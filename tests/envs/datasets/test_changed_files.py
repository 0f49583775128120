"""A file that changed is read again in the same process, except by a run that is under way."""

from __future__ import annotations

import json
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from harbor_tasks import write_tasks

import envs
from envs.adapters.trl import TrlEnv
from envs.adapters.verl import compute_score, verl_rows
from rl.external.env import AgentEnv, AgentOptions
from rl.run.process.activity import Activities
from rl.runtime.playing import open_services
from rl.settings.parsing.command_line import parse
from rl.settings.train import TrainConfig
from tools.references import files_held

HOTPOT = {"answer": "Paris", "supporting_facts": [["A", 0]], "context": [["A", ["Paris."]]]}
ZEBRA = {"answer": "(1) Zoey is a knave"}
ROWS = {
    "math": [{"question": q, "answer": 5} for q in ("2 + 3?", "3 + 2?")],
    "code-sandbox": [
        {"task_id": 1, "text": q, "test_list": ["assert f(1) == 1", "assert f(2) == 2"]}
        for q in ("Copy.", "Keep.")
    ],
    "search-qa": [{"question": q, **HOTPOT} for q in ("Where?", "Which?")],
    "reference-qa": [{"question": q, "reference": "No."} for q in ("Can it?", "Has it?")],
    "countdown": [{"nums": [44, 19, 35], "target": target} for target in (98, 28)],
    "sudoku": [{"puzzle": p} for p in ("1034340201434320", "1204340201434320")],
    "knights-knaves": [{"question": f"Zoey says {q}.", **ZEBRA} for q in ("no", "so")],
    "mastermind": [{"code": code} for code in ("123", "321")],
}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("env_id", ROWS)
@pytest.mark.parametrize("place", ["rows.jsonl", "folder/rows.jsonl", "mix"])
def test_rows_that_changed_are_read_again(env_id, place, tmp_path):
    first, second = ROWS[env_id]
    file = tmp_path / place.replace("mix", "rows.jsonl")
    file.parent.mkdir(exist_ok=True)
    source = write(file, first)
    options = {"tasks": str(file.parent) if "/" in place else source, "split": "all"}

    def made():
        if place == "mix":
            return envs.make("mix", of=f'{env_id}(tasks="{source}")', split="all")
        return envs.make(env_id, **options)

    before = made()
    again = made()
    write(file, second)  # of the same size, and within one tick of the clock
    after = made()
    assert len(before.tasks) == len(after.tasks) == 1
    if place != "mix":
        assert before.tasks is again.tasks, "it is read only once"
        assert before.tasks[0] != after.tasks[0]
    else:
        assert before._envs[0].tasks[0] != after._envs[0].tasks[0]


def test_files_that_are_added_or_gone_change_a_folder(tmp_path):
    write(tmp_path / "a.jsonl", *ROWS["countdown"])
    counts = []
    for change in (lambda: None, lambda: write(tmp_path / "b.jsonl", ROWS["countdown"][0])):
        change()
        counts.append(len(envs.make("countdown", tasks=str(tmp_path), split="all").tasks))
    (tmp_path / "a.jsonl").unlink()
    counts.append(len(envs.make("countdown", tasks=str(tmp_path), split="all").tasks))
    assert counts == [2, 3, 1]
    (tmp_path / "b.jsonl").unlink()
    with pytest.raises(ValueError, match="no file in this folder"):
        envs.make("countdown", tasks=str(tmp_path), split="all")


def test_a_large_file_is_compared_by_its_times_and_size(tmp_path, monkeypatch):
    monkeypatch.setattr("tools.references._SMALL", 0)
    found = []
    for row in ROWS["countdown"]:
        # As an editor saves: a new file takes the place of the old one.
        Path(write(tmp_path / "new", row)).replace(tmp_path / "rows.jsonl")
        source = str(tmp_path / "rows.jsonl")
        found += [envs.make("countdown", tasks=source, split="all").tasks for _ in range(2)]
    assert found[0] is found[1]
    assert found[2] is found[3]
    assert found[0][0] != found[2][0]


def test_harbors_instruction_settings_and_folders(tmp_path):
    write_tasks(tmp_path / "tasks")

    def tasks():
        return envs.make("harbor", tasks=tmp_path / "tasks", split="all", backend="sandbox").tasks

    first = tasks()
    folder = first[1].folder
    (folder / "instruction.md").write_text("Do nothing.")
    toml = folder / "task.toml"
    toml.write_text(toml.read_text().replace("60.0", "61.0"))
    second = tasks()
    assert second[1].instruction == "Do nothing."
    assert second[1].config != first[1].config
    shutil.rmtree(folder)
    assert len(tasks()) == len(first) - 1


def test_adapters_and_agents_read_their_rows_again(tmp_path):
    file, code = tmp_path / "rows.jsonl", tmp_path / "own_tasks.py"

    class Env(TrlEnv):
        environment = Trl
        rows = str(file)

    found = []
    for number in "12":
        write(file, {"prompt": number, "answer": int(number)})
        code.write_text(f"def tasks(split):\n    return [{{'n': {number}}}]\n")
        kind = Env(Env.Options(split="all")).tasks[0].columns["prompt"]
        function = AgentEnv(AgentOptions(tasks=f"{code}:tasks")).tasks[0]["n"]
        rows = AgentEnv(AgentOptions(tasks=str(file), split="all")).tasks[0]["answer"]
        # verl's reward of a response to the row's question
        options = {"tasks": str(file), "split": "all", "columns": "question=prompt answer=answer"}
        (row,) = verl_rows("math", 1, **options)
        paid = compute_score("math", rf"\boxed{{{number}}}", None, row["extra_info"])
        found.append((kind, function, rows, paid))
    assert found == [("1", 1, 1, 1.0), ("2", 2, 2, 1.0)]


class Trl:
    """An environment of TRL."""

    def reset(self, **columns):
        """Start."""


async def test_a_run_keeps_the_tasks_that_it_began_with(tmp_path):
    source = write(tmp_path / "train.jsonl", ROWS["countdown"][0])
    config = parse(
        TrainConfig,
        ["env=countdown", f"env.tasks={source}", "model=m"],
        command="train",
        presets={},
    )

    def target():
        return envs.make_from("countdown-v0", config.env.options).tasks[0].target

    async with AsyncExitStack() as stack:
        await open_services(config, stack, Activities())
        assert target() == 98
        write(tmp_path / "train.jsonl", ROWS["countdown"][1])
        with files_held():
            assert target() == 98
        assert target() == 98
    assert target() == 28
