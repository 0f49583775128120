"""The viewer's keys in Chromium, and what a page keeps while a run trains."""

from __future__ import annotations

import json

import pytest
from viewer_page import CHROMIUM, TEXT, needs_chromium, page_of
from viewer_runs import write_run

from benchmarks.viewer.browser import open_browser
from rl.viewer.export import write_export
from rl.viewer.runs import Runs

pytestmark = needs_chromium


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "b", seed=1)
    made = Runs(tmp_path / "runs")
    yield made
    made.close()


async def test_arrows_walk_through_the_tokens(runs):
    async with page_of(runs) as (browser, url):
        await browser.go(f"{url}#/run/a/episode/step-000002/4?show=tokens")
        await browser.until("document.querySelectorAll('.t').length > 20")
        for key, position in (("ArrowRight", "0"), ("ArrowRight", "1"), ("ArrowLeft", "0")):
            await browser.press(key)
            shown = "[...document.querySelectorAll('.detail dd')].map((x) => x.textContent)[2]"
            assert await browser.evaluate(shown) == position
        assert await browser.evaluate("document.querySelectorAll('.t.chosen').length") == 1
        assert browser.problems == []


async def test_brackets_stop_at_the_ends_of_a_file(runs):
    async with page_of(runs) as (browser, url):
        await browser.go(f"{url}#/run/a/episode/step-000002/5")
        await browser.until(f"{TEXT}.includes('member 1 of 2')")
        await browser.press("]")
        await browser.press("[")
        await browser.until("location.hash === '#/run/a/episode/step-000002/4'")
        await browser.go(f"{url}#/run/a/episode/step-000002/0")
        await browser.until(f"{TEXT}.includes('Question 0 of step 2')")
        await browser.press("[")
        await browser.press("]")
        await browser.until("location.hash === '#/run/a/episode/step-000002/1'")
        assert browser.problems == []


async def test_brackets_stop_at_the_ends_of_an_exported_page(runs, tmp_path):
    path = tmp_path / "out.html"
    assert write_export(runs, "a", path, 2) == 2
    async with open_browser(CHROMIUM) as browser:
        await browser.go(f"{path.as_uri()}#/run/a/episodes")
        await browser.until("document.querySelectorAll('.rows a.row').length === 2")
        for key in ("j", "Enter"):
            await browser.press(key)
        await browser.until(f"{TEXT}.includes('member 1 of 2')")
        last = await browser.evaluate("location.hash")
        await browser.press("]")
        await browser.press("g")
        await browser.until(f"{TEXT}.includes('Mean reward 0.50')")
        assert (await browser.evaluate("location.hash")).startswith(last)


async def test_enter_opens_a_task_that_has_the_focus(runs):
    async with page_of(runs) as (browser, url):
        await browser.go(f"{url}#/run/a/compare/b")
        await browser.until("document.querySelectorAll('tr[tabindex]').length > 2")
        second = "document.querySelectorAll('tr[tabindex]')[1]"
        task = await browser.evaluate(f"{second}.cells[0].textContent")
        await browser.evaluate(f"{second}.focus()")
        await browser.press("Enter")
        await browser.until(f"document.querySelector('h3').textContent === 'Task {task}'")


async def test_a_new_step_keeps_the_chosen_run_and_the_unfolded_effects(runs):
    metrics = runs.root / "b" / "metrics.jsonl"

    def append(*steps):
        record = {"num_groups": 3, "completions/clipped_ratio": 0.9, "frac_reward_zero_std": 0.9}
        with metrics.open("a") as file:
            for step in steps:
                line = {"step": step, "frac_zero_advantage": 0.9} | record
                file.write(json.dumps(line) + "\n")

    append(*range(4, 14))
    async with page_of(runs) as (browser, url):
        await browser.go(f"{url}#/")
        await browser.until("document.querySelectorAll('#main tbody tr').length === 2")
        await browser.press("j")
        chosen = await browser.evaluate("document.querySelector('tr.chosen a').textContent")
        append(14)
        await browser.until(f"{TEXT}.includes('14/3')")
        assert await browser.evaluate("document.querySelector('tr.chosen a').textContent") == chosen
        await browser.go(f"{url}#/run/b")
        await browser.until("document.querySelectorAll('.effects').length === 1")
        await browser.evaluate("document.querySelector('.effects').open = true")
        append(15)
        await browser.until(f"{TEXT}.includes('15 of 3')")
        assert await browser.evaluate("document.querySelector('.effects').open") is True
        assert browser.problems == []
