"""Episodes that other processes play: the same ones, whatever happens to the processes."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal

import pytest

from agents.completion import SamplingParams
from rl.errors import RunFailure, UsageError
from rl.rollout.vine import VineConfig

TASKS = list(range(6))


def plain(groups):
    """Episodes without their timings."""
    records = [t.to_json() for group in groups for t in group.trajectories]
    for record in records:
        for turn in record["turns"]:
            turn.pop("generate_s", None)
            turn.pop("env_s", None)
    return records


async def test_collectors_play_the_episodes_of_one_process(collectors):
    async with collectors(size=3, servers=2) as setup:
        here = await setup.here().collect(TASKS, 4, (7, 1))
        there = setup.there()
        ended = []
        there.context.on_played = lambda task, member, trajectory: ended.append((task, member))
        assert plain(await there.collect(TASKS, 4, (7, 1))) == plain(here)
        assert sorted(ended) == [(task, member) for task in TASKS for member in range(4)]
        other = await setup.there().collect(TASKS, 4, (7, 2))
        assert plain(other) != plain(here)


async def test_each_collector_plays_and_fills_its_share_of_a_server(collectors):
    async with collectors(size=2, seconds=0.05) as setup:
        (script,) = setup.scripts
        script.max_num_seqs = 4
        await setup.policy.load_weights({}, 2)  # The servers' facts are read at their start only.
        for managed in setup.policy._servers:
            managed.client.max_num_seqs = 4
            managed.on_change()
        playing = asyncio.create_task(setup.there().collect(TASKS, 4, (7, 1)))
        seen = set()
        while not playing.done():
            await asyncio.sleep(0.02)
            seen |= {n for n, h in setup.pool._handles.items() if h.num_playing}
        assert seen == {0, 1}
        # Four that it computes, and as many that wait at the server.
        assert script.most_running == 8


async def test_values_of_turns_are_those_of_one_process(collectors):
    vine = VineConfig(rollouts=2)
    async with collectors() as setup:
        here = await setup.here(vine).collect([0, 1], 2, (7, 1))
        there = setup.there(vine)
        ended = []
        there.context.on_played = lambda task, member, trajectory: ended.append((task, member))
        played = await there.collect([0, 1], 2, (7, 1))
        assert plain(played) == plain(here)
        values = [turn.value for group in played for t in group.trajectories for turn in t.turns]
        assert None not in values
        assert sorted(ended) == [(0, 0), (0, 1), (1, 0), (1, 1)]


async def test_the_episodes_of_a_killed_collector_are_played_by_another(collectors, caplog):
    async with collectors(seconds=0.1) as setup:
        here = await setup.here().collect(TASKS, 4, (7, 1))
        there = setup.there()
        ended = []
        there.context.on_played = lambda task, member, trajectory: ended.append((task, member))
        playing = asyncio.create_task(there.collect(TASKS, 4, (7, 1)))
        await asyncio.sleep(0.25)
        killed = setup.processes[0]
        os.kill(killed.pid, signal.SIGKILL)
        assert plain(await playing) == plain(here)
        assert sorted(ended) == [(task, member) for task in TASKS for member in range(4)]
        assert "collector 0 ended with exit code -9; its episodes are played again" in caplog.text
        async with asyncio.timeout(60):
            while len(setup.processes) < 2:
                await asyncio.sleep(0.05)
        assert killed.pid != setup.processes[0].pid
        again = await setup.there().collect(TASKS, 4, (7, 1))
        assert plain(again) == plain(here)


async def test_a_collector_that_cannot_be_understood_is_replaced(collectors, monkeypatch, caplog):
    async with collectors(seconds=0.1) as setup:
        here = await setup.here().collect(TASKS, 2, (7, 1))
        loads, wrong = pickle.loads, []

        def once(data):
            call = loads(data)
            if call[0] == "ended" and not wrong:
                wrong.append(call)
                raise AttributeError("there is no such class")
            return call

        monkeypatch.setattr("rl.collectors.handle.pickle.loads", once)
        assert plain(await setup.there().collect(TASKS, 2, (7, 1))) == plain(here)
        assert "sent what cannot be read: AttributeError('there is no such class')" in caplog.text


async def test_a_hung_collector_is_ended_and_replaced(collectors, monkeypatch, caplog):
    monkeypatch.setattr("rl.collectors.pool.SILENT_S", 3.0)
    monkeypatch.setattr("rl.collectors.pool._CHECK_S", 0.5)
    async with collectors(seconds=0.1) as setup:
        here = await setup.here().collect(TASKS, 4, (7, 1))
        playing = asyncio.create_task(setup.there().collect(TASKS, 4, (7, 1)))
        await asyncio.sleep(0.25)
        os.kill(setup.processes[1].pid, signal.SIGSTOP)
        async with asyncio.timeout(60):
            assert plain(await playing) == plain(here)
        assert "collector 1 said nothing for 3 s, and is ended" in caplog.text


async def test_an_episode_that_ends_its_process_fails_and_the_others_count(collectors):
    async with collectors("env.deadly=3") as setup:
        groups = await setup.there().collect(TASKS, 1, (7, 1))
        (failed,) = groups[3].trajectories
        assert failed.failure.startswith("CollectorFailure: collector")
        assert "ended with exit code 3 (attempt 4)" in failed.failure
        assert [len(group.finished) for group in groups] == [1, 1, 1, 0, 1, 1]


async def test_a_failure_of_the_environment_is_that_of_one_process(collectors):
    async with collectors("env.failing=2") as setup:
        groups = await setup.there().collect(TASKS, 1, (7, 1))
        assert groups[2].trajectories[0].failure == "EnvFailure: it is out of order"


async def test_collectors_that_end_again_and_again_end_the_run(collectors, monkeypatch):
    monkeypatch.setattr("rl.collectors.pool.MAX_LOSSES_IN_A_ROW", 2)
    async with collectors("env.deadly=3", size=1) as setup:
        expected = "collectors were lost 3 times while no episode ended: collector 0 ended with"
        with pytest.raises(RunFailure, match=expected):
            await setup.there().collect_group(3, 1, (7, 1))


async def test_a_cancelled_collection_ends_its_requests(collectors):
    async with collectors(seconds=30.0) as setup:
        (script,) = setup.scripts
        playing = asyncio.create_task(setup.there().collect(TASKS, 2, (7, 1)))
        async with asyncio.timeout(60):
            while script.running < 12:
                await asyncio.sleep(0.02)
        playing.cancel()
        async with asyncio.timeout(60):
            while script.running:
                await asyncio.sleep(0.02)
        assert all(handle.num_playing == 0 for handle in setup.pool._handles.values())


async def test_a_server_that_fails_is_checked_and_its_requests_are_repeated(collectors):
    async with collectors(servers=2, seconds=0.05) as setup:
        here = await setup.here().collect(TASKS, 2, (7, 1))
        setup.policy.take_metrics()
        setup.scripts[0].fails = 1
        assert plain(await setup.there().collect(TASKS, 2, (7, 1))) == plain(here)
        await asyncio.sleep(1.2)  # The next report.
        metrics = setup.policy.take_metrics()
        assert metrics["policy/reissued"] >= 1
        assert setup.policy._servers[0].generation == 2, "it was checked, and is ready again"


async def test_new_weights_reach_running_episodes(collectors):
    async with collectors(seconds=0.2) as setup:
        playing = asyncio.create_task(setup.there().collect([0], 2, (7, 1)))
        await asyncio.sleep(0.3)
        await setup.policy.load_weights({}, 2)
        (group,) = await playing
        for trajectory in group.trajectories:
            (segment,) = trajectory.segments
            versions = [v for v in segment.versions if v >= 0]
            assert (versions[0], versions[-1]) == (1, 2)


async def test_servers_without_versions_get_weights_while_no_request_runs(collectors, monkeypatch):
    async with collectors(seconds=0.2) as setup:
        (managed,) = setup.policy._servers
        (script,) = setup.scripts
        playing = asyncio.create_task(setup.there().collect([0, 1], 2, (7, 1)))
        await asyncio.sleep(0.3)
        running = []

        async def watched(client, weights, version):
            running.append(script.running)
            await asyncio.sleep(0.3)
            running.append(script.running)
            return await load(client, weights, version)

        kind, load = type(managed.client), type(managed.client).load
        monkeypatch.setattr(kind, "load", watched)
        monkeypatch.setattr(kind, "reports_versions", False)
        await setup.policy.load_weights({}, 2)
        assert running == [0, 0]
        groups = await playing
        assert not any(t.failure for group in groups for t in group.trajectories)


async def test_requests_go_on_after_a_load_that_was_cancelled(collectors, monkeypatch):
    async with collectors(seconds=0.5) as setup:
        (managed,) = setup.policy._servers
        monkeypatch.setattr(type(managed.client), "reports_versions", False)
        playing = asyncio.create_task(setup.there().collect([0, 1], 2, (7, 1)))
        await asyncio.sleep(0.2)
        loading = asyncio.create_task(setup.policy.load_weights({}, 2))
        await asyncio.sleep(0.1)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        async with asyncio.timeout(60):
            groups = await playing
        assert not any(t.failure for group in groups for t in group.trajectories)


async def test_an_environment_that_cannot_be_opened_is_one_line(collectors):
    with pytest.raises(UsageError, match="the index is missing: build it"):
        async with collectors(env="Refusing"):
            pass


async def test_collectors_report_their_time_and_what_waits(collectors):
    async with collectors("env.wait_s=0.8", "env.max_turns=4", seconds=0.5) as setup:
        activities = setup.playing.activities
        activities.take()
        playing = asyncio.create_task(setup.there().collect(TASKS, 2, (7, 1)))
        async with asyncio.timeout(60):
            # Each server knows of the requests that collectors sent, and so when it hangs.
            while not setup.policy._servers[0].num_running:
                await asyncio.sleep(0.02)
            while len({wait.name[-len("(collector 0)") :] for wait in activities.waits()}) < 2:
                await asyncio.sleep(0.02)
        assert {wait.lane for wait in activities.waits()} == {"rollout"}
        assert activities.num_restartable() > 0
        await playing
        taken = activities.take()
        for lane in ("rollout", "policy"):
            states = {k: v for k, v in taken.items() if k.startswith(f"time/{lane}/")}
            assert sum(states.values()) == pytest.approx(taken["time/wall"], abs=1e-6)
        assert taken["time/rollout/environment"] > taken["time/rollout/generate"] > 0
        assert taken["time/vllm-0/generate"] > 0


async def test_waiting_episodes_restart_when_they_are_given_up(collectors):
    async with collectors(seconds=30.0) as setup:
        (script,) = setup.scripts
        playing = asyncio.create_task(setup.there().collect([0], 2, (7, 1)))
        async with asyncio.timeout(60):
            while not setup.playing.activities.num_restartable():
                await asyncio.sleep(0.1)
        script.seconds = 0.0
        setup.playing.activities.restart_all()
        async with asyncio.timeout(60):
            (group,) = await playing
        assert [t.attempts for t in group.trajectories] == [2, 2]


async def test_what_is_sampled_is_part_of_the_order(collectors):
    async with collectors() as setup:
        short = await setup.there(sampling=SamplingParams(max_tokens=2)).collect([0], 2, (7, 1))
        assert max(turn.num_tokens for t in short[0].trajectories for turn in t.turns) <= 2
