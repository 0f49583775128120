"""Rollouts and a real sandbox: whose turn it is, and who waits when it has too much to do."""

from __future__ import annotations

import pytest

import envs
from agents.completion import SamplingParams
from agents.scripted import ScriptedPolicy
from envs.code.grader import CachedGrader
from rl.rollout.collector import Collector
from rl.rollout.context import EpisodeContext, EpisodeLimits
from rl.run.metrics.service_metrics import ServiceMetrics
from tools.owner import current_owner
from tools.sandbox import make_sandbox

EPISODES = 24


async def collect(sandbox, renderer):
    """Two turns of each episode; returns what owned the grades, and how full the queue was."""
    owners, fullness = set(), []
    grade = sandbox.grade

    async def recorded(*arguments, fresh_process):
        owners.add(current_owner())
        fullness.append(sandbox.executor.permits.waiting)
        return await grade(*arguments, fresh_process=fresh_process)

    def write(session, prompt_ids):
        fullness.append("asked while full" if sandbox.executor.permits.full else "asked")
        text = f"def f(xs): return '{session}'  # {len(prompt_ids)}"
        return [*renderer.splice(text), renderer.end_token_ids[0]]

    sandbox.grade = recorded
    services = {"sandbox": CachedGrader(sandbox)}
    metrics = ServiceMetrics({**services, "other": object()})
    await metrics.take()
    kind = envs.env_type("code-sandbox-v0")
    collector = Collector(
        EpisodeContext(
            env_id="code-sandbox-v0",
            options=kind.Options(max_turns=2),
            services=services,
            policy=ScriptedPolicy(write),
            renderer=renderer,
            sampling=SamplingParams(max_tokens=200),
            limits=EpisodeLimits(context_length=4000),
        ),
    )
    groups = await collector.collect(range(EPISODES // 4), 4, (5,))
    assert all(len(group.finished) == 4 for group in groups)
    assert all(len(t.turns) == 2 for group in groups for t in group.finished)
    return owners, fullness, await metrics.take(), await metrics.take()


@pytest.mark.quick
async def test_episodes_own_their_grades_and_wait_while_the_queue_is_full(renderer):
    async with make_sandbox("bwrap", workers=1) as sandbox:
        sandbox.executor.permits.max_waiting = 6
        owners, fullness, metrics, then = await collect(sandbox, renderer)
    assert len(owners) == EPISODES
    assert "5/0/0/0/0" in owners
    # No turn is begun while too many wait; those that had been begun are served.
    assert fullness.count("asked") == 2 * EPISODES
    assert "asked while full" not in fullness
    assert max(n for n in fullness if isinstance(n, int)) > 6
    assert metrics["sandbox/grades"] == 2 * EPISODES
    assert metrics["sandbox/runs"] == 2 * EPISODES
    assert metrics["sandbox/failures"] == metrics["sandbox/kills/timeout"] == 0
    assert metrics["sandbox/runs_per_second"] > 0
    assert 0 < metrics["sandbox/queue_wait_mean"] <= metrics["sandbox/queue_wait_p95"]
    assert not [name for name in metrics if name.startswith("other")]
    assert then["sandbox/runs"] == then["sandbox/zygotes/started"] == 0
