"""``python -m envs``: what it prints, and how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import envs
from envs.command import listing
from envs.command.main import main
from envs.command.options import read_options
from envs.env import EnvOptions, TextEnv
from tools.registry import PluginImportError


class PlainEnv(TextEnv[int, int]):
    """Always wrong,
    whatever is said.

    And more.
    """

    reward_range = (-1.0, 2.5)

    def __init__(self, options, services=None):
        super().__init__(options, range(9), services)

    def begin(self, task):
        return "?"

    def turn(self, action):
        return envs.finish({"a": 7.0})


envs.register("command-plain-v0", PlainEnv)


def run(capsys, *words):
    """Exit code, what was printed, and the errors."""
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_list_names_every_environment_and_folds_families(capsys):
    code, text, _ = run(capsys, "list")
    rows = {line.split()[0]: line for line in text.splitlines()}
    assert code == 0
    assert rows["mastermind-v0"].endswith("  finds a secret code by guessing")
    assert rows["command-plain-v0"].endswith("  Always wrong, whatever is said.")
    assert rows["code-sandbox-v0"].endswith("; needs a sandbox")
    assert "(104 environments)" in rows["reasoning-gym/NAME-v0"]
    everything = run(capsys, "list", "--all")[1]
    assert [line.split()[0] for line in everything.splitlines()] == envs.ids()


def test_what_a_card_leaves_out_follows_from_the_class():
    card = listing.card_of(PlainEnv)
    assert (card.agent, card.turns) == ("Always wrong, whatever is said.", "1")
    assert (card.reward, card.needs) == ("-1 to 2.5", "")


def test_one_that_fails_to_import_is_listed_as_that(capsys, monkeypatch):
    def fails(env_id):
        raise PluginImportError("environment 'x', advertised by y, fails to import:\nboom")

    monkeypatch.setattr(listing.envs, "env_type", fails)
    code, text, _ = run(capsys, "list")
    assert code == 0
    assert text.count("fails to import: boom") == len(text.splitlines()) > 6


def test_the_table_holds_what_is_built_in_and_no_plug_in(capsys, monkeypatch):
    monkeypatch.setattr(listing, "owner", lambda env_id: "y" if "sudoku" in env_id else "")
    lines = run(capsys, "list", "--markdown")[1].splitlines()
    assert lines[:2] == ["| id | the agent | turns | reward | needs |", "|---|---|---|---|---|"]
    assert "| `mastermind-v0` | finds a secret code by guessing | 10 | " in "\n".join(lines)
    assert not any("sudoku-v0" in line and "reasoning" not in line for line in lines)


def test_list_imports_nothing_heavy():
    program = (
        "import sys; from envs.command.main import main; main(['list']);"
        "print(sorted({'torch', 'reasoning_gym', 'math_verify', 'sympy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(envs.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_info_shows_options_rewards_scores_and_an_episode(capsys):
    code, text, _ = run(capsys, "info", "mastermind")
    assert code == 0
    assert text.startswith("mastermind-v0\n\nSecret codes")
    for line in (
        "reward range: 0 to 1",
        "reward floor: 0, the most that an empty or random text earns",
        "success: solved",
        "rewards: solved",
        "scores: solved, information",
        "  < The code has 3 digits from 1 to 5. 10 guesses left.",
        "  it earns 1",
        "  pegs=3",
        "      Number of digits of the code, from 2 to 6.",
    ):
        assert f"\n{line}\n" in text, line
    assert "\n  > <guess> " in text


def test_info_plays_with_the_options_that_it_is_given(capsys):
    code, text, _ = run(
        capsys, "info", "math", "level=3", "topic=algebra", "tools=calculator", "max_turns=2"
    )
    assert code == 0
    assert "\n  : To call calculator, write <calculator> expression </calculator>" in text
    assert "Expand" in text.split("an episode of the gold policy:")[1]


def test_info_of_one_without_a_gold_policy_says_so(capsys):
    code, text, _ = run(capsys, "info", "command-plain")
    assert code == 0
    assert "an episode: none of the gold policy (PlainEnv has no gold_policy: write one)" in text
    assert "reward range: -1 to 2.5" in text


def test_info_of_one_that_needs_options_says_which(capsys):
    code, text, _ = run(capsys, "info", "reasoning-gym/countdown")
    assert code == 0
    assert "an episode: needs options (trust_answers (False) must be True" in text


def test_check_says_what_holds(capsys):
    code, text, _ = run(capsys, "check", "countdown", "numbers=3", "--tasks", "2")
    assert code == 0
    kept = "countdown-v0 keeps the contract (tasks 0, 500000; the gold policy on 100): free loop, "
    assert text.startswith(kept)


def test_check_says_everything_that_is_broken_and_exits_with_1(capsys):
    code, text, errors = run(capsys, "check", "command-plain", "--tasks=1")
    assert (code, text) == (1, "")
    first, *findings = errors.splitlines()
    assert first == "command-plain-v0 breaks the contract of environments:"
    assert len(findings) > 2 and all(line.startswith("- ") for line in findings)


RAISING = """
import contextlib, sys
import envs
import raising_helper

def solve(observation):
    return "even"

class Tasks:
    def __len__(self):
        return 9
    def __getitem__(self, index):
        return index

class Parity(envs.TextEnv):
    def __init__(self, options, services=None):
        super().__init__(options, Tasks(), services)
    def begin(self, task):
        self.state = task
        return "even?"
    async def turn(self, action):
        await self.service("s")
        return envs.finish({"right": 1.0})
    def gold_policy(self):
        return solve
    def best_return(self, task_index):
        return 1.0
    def snapshot(self):
        return super().snapshot()
    @property
    def reward_range(self):
        return (0.0, 1.0)
    @classmethod
    @contextlib.asynccontextmanager
    async def open_services(cls, options):
        yield {"s": 1}
    def close(self):
        super().close()
"""


@pytest.mark.parametrize(
    ("before", "faulty", "whose"),
    [
        ("super().__init__(options, Tasks()", "super().__init__(options, {}['k']", "__init__"),
        ("return 9", "return {}['k']", "Tasks.__len__, called by Parity.__init__"),
        ("return index", "return {}['k']", "Tasks.__getitem__"),
        ("self.state = task", "self.state = {}['k']", "Parity.begin"),
        ("return envs.finish", "{}['k']", "Parity.turn"),
        ("self.state = task", "raising_helper.parse()", "parse, called by Parity.begin"),
        ("return solve", "return {}['k']", "Parity.gold_policy"),
        ("return solve", "return lambda text: {}['k']", "Parity.gold_policy"),
        ('return "even"', "return {}['k']", "solve of gold_policy"),
        ("return 1.0", "return {}['k']", "Parity.best_return"),
        ("return super().snapshot()", "return {}['k']", "Parity.snapshot"),
        ("return (0.0, 1.0)", "return {}['k']", "Parity.reward_range"),
        ('yield {"s": 1}', "{}['k']; yield", "Parity.open_services, called by Parity.turn"),
        ("super().close()", "{}['k']", "Parity.close"),
        ("return envs.finish", "sys.exit('k')", "Parity.turn"),
        ("return envs.finish", "raise TimeoutError('k')", "Parity.turn"),
        ("self.state = task", "int('k')", "Parity.begin"),
        ("super().__init__(options, Tasks()", "int('k'", "Parity.__init__"),
    ],
)
def test_check_names_function_file_and_line_of_what_raised(
    capsys, tmp_path, monkeypatch, before, faulty, whose
):
    helper = "def parse():\n    return {}['k']\n"
    (tmp_path / "raising_helper.py").write_text(helper)
    monkeypatch.delitem(sys.modules, "raising_helper", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    at = next(i for i, text in enumerate(RAISING.splitlines(), 1) if before in text)
    assert RAISING.count(before) == 1
    file = tmp_path / "parity.py"
    file.write_text(RAISING.replace(before, faulty))
    place = (tmp_path / "raising_helper.py", 2) if "parse" in whose else (file, at)
    code, text, errors = run(capsys, "check", str(file), "--tasks=1")
    assert (code, text) == (1, "")
    found = [line for line in errors.splitlines() if "raised" in line]
    assert any(
        f"{whose} ({place[0]}, line {place[1]})" in line and "k" in line for line in found
    ), errors


def test_check_quotes_the_statement_of_a_check_that_a_wrong_value_breaks(capsys, tmp_path):
    file = tmp_path / "parity.py"
    file.write_text(RAISING.replace("import raising_helper", "").replace("(0.0, 1.0)", "None"))
    _, _, errors = run(capsys, "check", str(file), "--tasks=1")
    assert "in '(low, high), bottom = probe.env.reward_range" in errors


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["info", "mastermnd"], "unknown environment 'mastermnd'. Did you mean 'mastermind-v0'?"),
        (["check", "sudoku", "sise=4"], "there is no option 'sise'. Did you mean 'size'? Known: "),
        (["info", "sudoku", "size=5"], "size (5) must be"),
        (["check", "sudoku", "size"], "'size' is not of the form option=value"),
        (["check", "sudoku", "size=four"], "size (four) must be of type int"),
        (["check", "sudoku", "size=5"], "size (5) must be"),
        (["check", "sudoku", "instructions=maybe"], "instructions (maybe) must be true or false"),
        (["check", "sudoku", "--tasks=0"], "num_tasks (0) must be >= 1"),
        (["check", "sudoku", "--tasks=few"], "argument --tasks: invalid int value: 'few'"),
        (["check"], "the following arguments are required: name"),
        (["chek"], "invalid choice: 'chek'"),
        ([], "the following arguments are required: command"),
        (["new", "Dice"], "'Dice' must be a name of a-z, 0-9 and -"),
        (["new", "class"], "no word of Python's"),
        (["new", "a" * 25], "of at most 24 letters"),
        (["new", "math"], "there is an environment math-v0 already"),
        (["new", "envs"], "there is a package envs already"),
    ],
)
def test_a_mistake_is_one_line_and_exits_with_2(capsys, words, says):
    code, text, errors = run(capsys, *words)
    assert (code, text) == (2, "")
    (line,) = errors.splitlines()
    assert line.startswith("error: ")
    assert says in line


def test_new_writes_a_package_once(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, text, _ = run(capsys, "new", "dice-sums")
    assert (code, str(tmp_path / "dice-sums") in text) == (0, True)
    written = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert written == [
        "dice-sums/README.md",
        "dice-sums/dice_sums/__init__.py",
        "dice-sums/dice_sums/env.py",
        "dice-sums/dice_sums/reward.py",
        "dice-sums/dice_sums/tool.py",
        "dice-sums/pyproject.toml",
        "dice-sums/tests/test_dice_sums.py",
    ]
    for path in written:
        assert "$" not in (tmp_path / path).read_text()
    code, _, errors = run(capsys, "new", "dice-sums")
    assert code == 2
    assert "is there already: choose another name" in errors


@pytest.mark.parametrize("name", ["a", "a-name-of-24-letters-abc"])
def test_what_is_written_is_clean_whatever_its_name(capsys, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "new", name)[0] == 0
    for words in (["check", "--select=E,W,F,I,UP,B,SIM,C4,RUF"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--no-cache", name],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout


def test_options_get_the_types_that_they_have():
    words = ["split=test", "seed=3", "step_timeout_s=2", "token_budget=exact"]
    assert read_options(EnvOptions, words) == {
        "split": "test",
        "seed": 3,
        "step_timeout_s": 2.0,
        "token_budget": "exact",
    }
