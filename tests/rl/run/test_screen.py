"""Plain lines without a terminal, a live table on one."""

from __future__ import annotations

import io
import subprocess
import sys
import time

import pytest

from rl.run.screen import Display, Screen, sparkline

METRICS = {
    "reward": 0.25,
    "tokens_per_second": 1234.5,
    "step_time": 1.5,
    "time/wall": 1.5,
    "time/rollout/generate": 1.0,
    "time/learner/sampling": 1.0,
    "time/learner/learn": 0.5,
    "time/learner/save": 0.0,
    "entropy": 0.75,
}


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def test_a_line_per_step_without_a_terminal():
    stream = io.StringIO()
    with Display("title", 9, stream) as display:
        display.report("run folder: [bold]x[/bold]")
        display.step(1, METRICS)
        display.step(2, METRICS | {"eval/success": 0.5})
    assert stream.getvalue().splitlines() == [
        "run folder: [bold]x[/bold]",
        "step 1/9  reward 0.250  1234 tok/s  1.50 s (sampling 1.00, learn 0.50)",
        "step 2/9  reward 0.250  validation 0.500  1234 tok/s  1.50 s (sampling 1.00, learn 0.50)",
    ]


def test_long_lines_are_not_wrapped():
    stream = io.StringIO()
    Display("title", 9, stream).report("word " * 100)
    assert stream.getvalue() == "word " * 100 + "\n"


def test_a_table_on_a_terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    stream = io.StringIO()
    with Display("my title", 9, stream) as display:
        display.step(1, METRICS | {"reward": 0.0})
        display.step(2, METRICS | {"reward": 1.0, "eval/success": 0.5})
        display.report("a line that stays")
    shown = stream.getvalue()
    assert "my title" in shown
    assert "2/9" in shown
    assert "1.000  ▁█" in shown
    assert "0.500 at step 2" in shown
    assert "1234 sampled tokens/s" in shown
    assert "a line that stays" in shown
    assert "step 2/9  reward" not in shown, "the table replaces the plain lines"


def test_a_sparkline_goes_from_least_to_greatest_of_the_last_values():
    assert sparkline([9.0, 0.0, 0.5, 1.0], 3) == "▁▄█"
    assert sparkline([2.0, 2.0], 5) == "▁▁"


def test_the_interval_of_the_reward_stands_beside_it():
    stream = io.StringIO()
    Display("title", 9, stream).step(1, METRICS | {"reward_low": 0.125, "reward_high": 0.375})
    assert "step 1/9  reward 0.250 [0.125, 0.375]  1234 tok/s" in stream.getvalue()


def test_the_third_step_in_a_row_without_a_gradient_shows_what_to_try():
    stream = io.StringIO()
    display = Display("title", 9, stream)
    for step in range(1, 5):
        display.step(step, METRICS | {"no_gradient/cut": 1.0})
    display.step(5, METRICS)
    lines = stream.getvalue().splitlines()
    said = "no gradient: the answers were cut at the token limit"
    assert [said in line for line in lines] == [True, True, True, False, True, False]
    assert lines[3] == (
        "warning: no gradient from rewards in the last 3 of 3 steps: the answers were cut at the "
        "token limit (3). What to try: raise sampling.max_tokens or context_length"
    )


def test_a_terminal_shows_how_long_there_was_no_gradient(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    stream = io.StringIO()
    with Display("title", 9, stream) as display:
        display.step(1, METRICS | {"no_gradient/equal": 1.0})
        scored = {name: x for name, x in METRICS.items() if name != "entropy"}
        display.step(2, scored | {"no_gradient/equal": 1.0})
    assert "nan" not in stream.getvalue()
    assert "none in the last 2 step(s): all rewards of each task were equal" in stream.getvalue()


def test_a_terminal_shows_a_bar_until_all_is_done(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    stream = io.StringIO()
    with Screen(stream) as screen:
        screen.count("warm start steps", 3, 8)
        screen.report("a line that stays")
    shown = stream.getvalue()
    assert "warm start steps" in shown
    assert "3/8" in shown
    assert "━" in shown
    after = io.StringIO()
    with Screen(after) as screen:
        screen.count("warm start steps", 8, 8)
        screen.report("a line that stays")
    assert "warm start steps" not in after.getvalue()


def test_bars_stand_below_the_table_of_a_run(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    stream = io.StringIO()
    with Display("title", 9, stream) as display:
        display.step(1, METRICS)
        display.count("validation episodes", 64, 128)
        display.report("a line that stays")
    shown = stream.getvalue()
    assert shown.index("sampled tokens/s") < shown.index("64/128")


def test_without_a_terminal_a_line_says_now_and_then_how_far_it_is(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    screen = Screen(stream)
    for done in range(31):
        screen.count("test episodes", done, 30)
        now[0] += 1.0
    left = {10: ", about 20 s left", 20: ", about 10 s left", 30: ""}
    lines = [f"test episodes {done}/30{text}" for done, text in left.items()]
    assert stream.getvalue().splitlines() == lines


def test_without_a_terminal_a_count_that_waits_for_its_first_is_shown_ever_more_rarely(monkeypatch):
    every_s = 0.05
    monkeypatch.setattr("rl.run.screen.PLAIN_EVERY_S", every_s)
    times = []

    class Lines(io.StringIO):
        def write(self, text):
            times.extend([time.monotonic()] * text.count("\n"))
            return super().write(text)

    stream = Lines()
    with Screen(stream) as screen:
        assert stream.getvalue() == ""
        begun = time.monotonic()
        screen.count("test episodes", 0, 30)
        while len(times) < 4 and time.monotonic() < begun + 30:
            time.sleep(every_s / 5)
    assert set(stream.getvalue().splitlines()) == {"test episodes 0/30"}
    pauses = [after - before for before, after in zip([begun, *times], times, strict=False)]
    assert all(
        pause >= factor * every_s for pause, factor in zip(pauses, (1, 2, 4, 8), strict=False)
    )
    lines = len(times)
    time.sleep(20 * every_s)
    assert len(times) == lines, "a closed screen shows nothing"


@pytest.mark.parametrize("command", ["rl.train", "rl.eval", "rl.sft"])
def test_the_first_line_does_not_wait_for_torch(tmp_path, command):
    code = f"""
import os, sys
from pathlib import Path

class First:
    def write(self, text):
        Path({str(tmp_path / "first")!r}).write_text(f"{{'torch' in sys.modules}} {{text}}")
        os._exit(0)

    def flush(self): pass
    def isatty(self): return False

sys.stderr = First()
import importlib
command = importlib.import_module({command!r})
command.main(["env=code-sandbox", "model=/some/model", "out={tmp_path}/out"])
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=tmp_path)
    assert (tmp_path / "first").read_text().startswith("False ")
