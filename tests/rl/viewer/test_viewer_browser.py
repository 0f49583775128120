"""The viewer's page in Chromium: its views, its keys, and a run with hostile texts."""

from __future__ import annotations

import json

import pytest
from viewer_page import CHROMIUM, TEXT, needs_chromium, page_of
from viewer_runs import episode, write_run, write_step

from benchmarks.viewer.browser import open_browser
from benchmarks.viewer.screenshots import CONTENT, write
from rl.rollout.trajectory import TrajectoryGroup
from rl.run.process.state import FAILED, RunState, write_state
from rl.viewer.export import write_export
from rl.viewer.runs import Runs

pytestmark = needs_chromium
HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "\u202egnirts\u202c \x1b[31m {{7*7}} <a href=javascript:alert(1)>x</a>\n" + "w" * 1_000_000
)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "b", seed=1)
    hostile = episode(HOSTILE, HOSTILE, 1.0, task=77)
    write_step(tmp_path / "runs" / "a", "step-000004", [TrajectoryGroup([hostile])])
    made = Runs(tmp_path / "runs")
    yield made
    made.close()


async def test_every_view_shows_its_part_without_an_error(runs):
    async with page_of(runs) as (browser, url):
        for link, shown in (
            ("", "search-qa-v0"),
            ("#/run/a", "Reward and held-out success"),
            ("#/run/a/episodes?step=2", "6 episodes"),
            ("#/run/a/episode/step-000002/4", "The friend is Bali."),
            ("#/run/a/episode/step-000002/4?show=tokens&colour=advantage", "more probable"),
            ("#/run/a/episode/step-000002/4?show=group", "Mean reward 0.50"),
            ("#/run/a/timeline", "generate"),
            ("#/run/a/compare/b", "Tasks that both played"),
            ("#/run/a/nowhere", "names no page"),
        ):
            await browser.go(url + link)
            await browser.until(f"{TEXT}.includes({shown!r})")
            assert "[object" not in await browser.evaluate(TEXT)
        assert browser.problems == []


async def test_an_effect_is_folded_under_its_cause(runs):
    record = {"num_groups": 3, "completions/clipped_ratio": 0.9, "frac_reward_zero_std": 0.9}
    with (runs.root / "b" / "metrics.jsonl").open("a") as file:
        for step in range(4, 14):
            line = {"step": step, "frac_zero_advantage": 0.9} | record
            file.write(json.dumps(line) + "\n")
    async with page_of(runs) as (browser, url):
        await browser.go(f"{url}#/")
        await browser.until("document.querySelector('.worst .high') !== null")
        await browser.go(f"{url}#/run/b")
        await browser.until("document.querySelectorAll('.effects').length === 1")
        causes = "document.querySelectorAll('.wrong > .problems > li').length"
        assert await browser.evaluate(causes) == 1
        assert await browser.evaluate("document.querySelector('.effects').open") is False
        effect = "document.querySelector('.effects li').textContent"
        assert "had equal rewards" in await browser.evaluate(effect)
        await browser.go(f"{url}#/run/a/compare/b")
        await browser.until("document.querySelectorAll('.differing tbody tr').length === 1")
        assert browser.problems == []


@pytest.fixture
def pictured(runs):
    """The runs without the hostile episode."""
    for path in (runs.root / "a" / "trajectories").glob("step-000004*"):
        path.unlink()
    return runs


async def test_pictures_of_all_views_that_the_docs_show(pictured, tmp_path, request):
    metrics = pictured.root / "b" / "metrics.jsonl"
    lines = [
        json.loads(line) | {"completions/clipped_ratio": 0.9}
        for line in metrics.read_text().splitlines()
    ]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    await write(pictured, "a", "b", tmp_path / "pictures")
    made = {path.name for path in (tmp_path / "pictures").iterdir()}
    docs = request.config.rootpath / "docs"
    assert made == {path.name for path in (docs / "viewer").glob("*.png")}
    page = (docs / "viewer.md").read_text()
    assert [name for name in made if f"(viewer/{name})" not in page] == []
    assert sum(path.stat().st_size for path in (docs / "viewer").glob("*.png")) < 900_000


async def test_a_view_without_its_content_gets_no_picture(pictured, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.viewer.screenshots._SHOWN_S", 1.0)
    monkeypatch.setitem(CONTENT, "runs", "table.nowhere")
    with pytest.raises(SystemExit, match=r"shows no element table\.nowhere, but: "):
        await write(pictured, "a", "b", tmp_path / "pictures")


async def test_a_tool_call_unfolds(runs):
    async with page_of(runs) as (browser, url):
        await browser.go(f"{url}#/run/a/episode/step-000002/4")
        await browser.until("document.querySelectorAll('details.tool').length === 1")
        await browser.until(f"{TEXT}.includes('0.13 s · 2 retries · HTTP 200')")
        await browser.evaluate("document.querySelector('details.tool summary').click()")
        await browser.until(f'{TEXT}.includes(\'"query": "Question 2 of step 2\')')


async def test_keys_walk_from_the_list_to_the_tokens_and_back(runs):
    async with page_of(runs) as (browser, url):
        await browser.go(f"{url}#/run/a/episodes")
        await browser.until("document.querySelectorAll('.rows a.row').length > 5")
        for key in "jj":
            await browser.press(key)
        await browser.press("Enter")
        await browser.until("location.hash === '#/run/a/episode/step-000003/1'")
        await browser.until(f"{TEXT}.includes('The friend is Bali.')")
        await browser.press("t")
        await browser.until("document.querySelectorAll('.t').length > 20")
        assert await browser.evaluate("document.querySelectorAll('.t.n5').length") == 17
        await browser.press("u")
        await browser.until("location.hash === '#/run/a/episodes'")
        await browser.until("document.querySelector('input[type=search]') !== null")
        await browser.press("/")
        await browser.until("document.activeElement.type === 'search'")
        assert browser.problems == []


async def test_hostile_texts_are_shown_as_texts(runs):
    async with page_of(runs) as (browser, url):
        await browser.go(f"{url}#/run/a/episode/step-000004/0")
        text = await browser.until(f"{TEXT}.includes('gnirts') && {TEXT}")
        assert "</script><script>document.title=" in text
        assert "U+202E" in text
        assert "U+001B" in text
        assert "\u202e" not in text
        assert "show all" in text
        # The long lines are cut until a reader asks for them.
        assert len(text) < 20_000
        await browser.evaluate("document.querySelector('button.more').click()")
        whole = "document.getElementById('main').textContent"
        assert await browser.evaluate(f"{whole}.length") > 1_000_000
        # One line of a megabyte is shown as blocks, because a browser lays it out for seconds.
        assert await browser.evaluate("document.querySelectorAll('.block').length") > 50
        assert "owned" not in await browser.evaluate("document.title")
        assert await browser.evaluate("document.querySelectorAll('main img').length") == 0
        for link in ("s?task=77", "/step-000004/0?show=tokens"):
            await browser.go(f"{url}#/run/a/episode{link}")
            await browser.until(f"{TEXT}.includes('img src')")
        assert browser.problems == []


async def test_a_million_invisible_characters_do_not_stop_the_page(runs):
    mixed = "\u202e\u200b" * 500_000
    many = episode("\x00" * 1_000_000, mixed, 1.0, task=78)
    write_step(runs.root / "a", "step-000005", [TrajectoryGroup([many])])
    async with page_of(runs) as (browser, url):
        await browser.go(f"{url}#/run/a/episode/step-000005/0")
        await browser.until(f"{TEXT}.includes('U+0000 ×2000')")
        await browser.evaluate("document.querySelector('.agent button.more').click()")
        await browser.evaluate(
            "[...document.querySelectorAll('button.more')].forEach((button) => button.click())"
        )
        whole = "document.getElementById('main').textContent"
        assert await browser.evaluate(f"{whole}.match(/U\\+0000 ×20000/g).length") == 50
        assert await browser.evaluate(f"{whole}.match(/\ufffd/g).length") == 50 * 19_500
        assert await browser.evaluate("document.querySelectorAll('*').length") < 26_000
        assert not await browser.evaluate(f"/[\\u0000\\u200b\\u202e]/.test({whole})")
        assert browser.problems == []


async def test_hostile_names_of_runs_settings_and_metrics_are_shown_as_texts(runs):
    name = "\u202eb\u202c<img src=x onerror=alert(1)>"
    folder = write_run(runs.root / name)
    config = json.loads((folder / "config.json").read_text())
    config["env"]["env_id"] = name
    (folder / "config.json").write_text(json.dumps(config | {name: name}))
    record = {"step": 9, "reward": 1.0, f"time/rollout/{name}": 1.0, "time/wall": 1.0, name: 1.0}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    step = [TrajectoryGroup([episode("q", "a", 1.0, failure=name)])]
    write_step(folder, "step-000009", step)
    async with page_of(runs) as (browser, url):
        link = f"run/{await browser.evaluate(f'encodeURIComponent({name!r})')}"
        places = ("", f"{link}?metrics=*", f"{link}/episodes", f"{link}/timeline")
        for place in (*places, f"{link}/compare/a", "run/a/compare", "run/a/compare/b", f"{link}x"):
            await browser.go("about:blank")
            await browser.go(f"{url}#/{place}")
            await browser.until(f"{TEXT}.includes('U+202E') || {place.startswith('run/a')!r}")
            await browser.until("document.querySelector('h1, .note') !== null")
            shown = await browser.evaluate("document.body.innerText + document.title")
            assert "\u202e" not in shown, place
            options = "[...document.querySelectorAll('option')].map((o) => o.text).join()"
            assert "\u202e" not in await browser.evaluate(options), place
            assert await browser.evaluate("document.querySelectorAll('img').length") == 0
        assert [p for p in browser.problems if "404" not in p] == []


async def test_an_exported_page_needs_no_server(runs, tmp_path):
    path = tmp_path / "out.html"
    assert write_export(runs, "a", path, 60) == 19
    async with open_browser(CHROMIUM) as browser:
        for link, shown in (
            ("", "Reward and held-out success"),
            ("#/run/a/episodes?text=do+not+KNOW&step=2", "3 episodes"),
            ("#/run/a/episode/step-000002/4?show=tokens&colour=ratio", "learner gives more"),
            ("#/run/a/episode/step-000004/0", "document.title="),
            ("#/run/a/timeline", "generate"),
        ):
            await browser.go(f"{path.as_uri()}{link}")
            await browser.until(f"{TEXT}.includes({shown!r})")
        assert "owned" not in await browser.evaluate("document.title")
        assert browser.problems == []


async def test_the_page_fits_a_telephone(runs):
    async with page_of(runs) as (browser, url):
        await browser.size(390, 800)
        for link in ("", "#/run/a", "#/run/a/episodes", "#/run/a/episode/step-000002/4"):
            await browser.go(url + link)
            await browser.until(f"{TEXT}.length > 40")
            wide = await browser.evaluate("document.documentElement.scrollWidth")
            assert wide <= 390, link


@pytest.fixture
def failed(runs):
    """A run that failed before its first step, and one in an environment with a long name."""
    ended = {"pid": 1, "born": "0", "host": "x", "began": 0.0, "written": 0.0, "progress_s": 0.0}
    ended |= {"progress": "the start", "loop_s": 0.0, "message": "EnvFailure: no such table"}
    (runs.root / "cold" / "trajectories").mkdir(parents=True)
    write_state(runs.root / "cold", RunState(state=FAILED, step=0, steps=3, **ended))
    config = {"env": {"env_id": "/x/a_rather_long_name_of_an_environment_env.py:Parity"}}
    (runs.root / "a" / "config.json").write_text(json.dumps(config))
    write_state(runs.root / "a", RunState(state=FAILED, step=3, steps=9, **ended))
    return runs


@pytest.mark.parametrize("width", [900, 1400])
async def test_the_list_of_runs_names_causes_without_a_scroll_bar(failed, width):
    cause = "[...document.querySelectorAll('td.worst')].map((cell) => cell.innerText).join('|')"
    wide = "(({scrollWidth, clientWidth}) => scrollWidth - clientWidth)"
    async with page_of(failed) as (browser, url):
        await browser.size(width, 800)
        await browser.go(url)
        await browser.until(f"{TEXT}.includes('cold')")
        causes = (await browser.evaluate(cause)).split("|")
        assert sorted(causes) == ["", "EnvFailure: no such table", "EnvFailure: no such table"]
        assert await browser.evaluate(f"{wide}(document.querySelector('.scroll'))") == 0


async def test_the_page_of_a_run_that_did_no_step_says_only_what_is_true(failed):
    async with page_of(failed) as (browser, url):
        await browser.go(f"{url}#/run/cold")
        await browser.until(f"{TEXT}.includes('no such table')")
        shown = (await browser.evaluate(TEXT)).split("\n")
        assert [line for line in shown if line.strip()] == [
            *("cold failed", "Steps", "0 of 3", "Episodes", "0", "EnvFailure: no such table"),
            *("What is wrong", "The reason is above; no step was done."),
        ]
        assert browser.problems == []
