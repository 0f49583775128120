"""Findings from the lines of a run's metrics.jsonl. Each rule gives the findings of one cause."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from math import sqrt
from statistics import fmean
from typing import Any

from rl.run.metrics.no_gradient import (
    CUT,
    EQUAL,
    FAILED,
    HIGHEST,
    LOWEST,
    OTHER,
    REASONS,
    REMEDIES,
    NoGradient,
    cause_in,
    causes_in,
    no_gradient_of,
)
from rl.viewer.finding import (
    WINDOW,
    Finding,
    RunData,
    Severity,
    last_steps,
    numbers,
    of_steps,
    percent,
    plural,
    steps_of,
)

_LEAST_STEPS = 4
"""Number of steps from which a trend is read."""
_CALLED = 0.5
"""Tool calls per episode from which a policy is said to use tools."""
_SOLVED = 0.9
"""Success from which equal rewards and a small entropy are expected."""
_RARE = 0.05
"""Steps without a gradient up to this share of all steps are a remark."""
_TIES_COUNT = 0.3
"""Share of the tokens without an advantage from which equal rewards are their cause. Advantages
from values or from the whole batch do not need differences within a group."""
_TIES = {LOWEST, HIGHEST, EQUAL}
_AS_A_WHOLE = "the rewards of each group were equal: each group succeeded or failed as a whole"
"""The reason of steps with equal rewards, some of whose episodes succeeded."""
_HELD, _HELD_MOST = 0.2, 0.5
"""Shares of the time in which an environment holds all other episodes: from the first one it is a
remark, and from the second one most of the run is a wait."""
_SHARE = "staleness/effective_share/"


def metric_findings(run: RunData) -> list[Finding]:
    """The findings from a run's metrics alone, in no order."""
    rules = (_no_gradient, _tied, _cut, _failures, _stale, _mismatch, _held_out, _no_success)
    rest = (_entropy, _tool_calls, _format, _held)
    return [finding for rule in (*rules, *rest) for finding in rule(run)]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _no_gradient(run: RunData) -> Iterator[Finding]:
    """Steps whose rewards gave no gradient, by cause."""
    summary = no_gradient_of(causes_in(run.records))
    keys = {CUT: "answers_cut", FAILED: "failures", OTHER: "no_gradient"}
    found: dict[str, str] = {}
    for cause in summary.causes:
        found.setdefault(keys.get(cause, "tied_rewards"), cause)
    for key, cause in found.items():
        own = [r for r in run.steps if (c := cause_in(r)) and keys.get(c, "tied_rewards") == key]
        share = len(own) / summary.steps
        severity: Severity = "low" if share < _RARE else "medium"
        if share >= 0.5 or summary.last >= 3:
            severity = "high"
        if cause == HIGHEST and severity == "high":
            severity = "medium"  # The tasks are solved.
        reason, remedy = REASONS[cause], REMEDIES[cause]
        causes = {cause_in(record) for record in own}
        if causes <= _TIES and causes not in ({LOWEST}, {HIGHEST}):
            reason, remedy = _AS_A_WHOLE, REMEDIES[EQUAL]
        only = summary.steps == 1
        which = "The only step" if only else f"{len(own)} of {summary.steps} steps"
        them = "this step, so it" if len(own) == 1 else "these steps, so they"
        yield Finding(
            key,
            severity,
            f"{which} had no gradient from rewards: {reason}.",
            f"Every advantage or the whole gradient was 0 in {them} taught nothing. "
            + _last_gradient(summary),
            _sentence(remedy),
            steps_of(own),
            of_steps(steps_of(own), **({"ending": "failed"} if cause == FAILED else {})),
        )


def _last_gradient(summary: NoGradient) -> str:
    """When a step had a gradient for the last time."""
    if summary.last == summary.steps:
        return "No step had a gradient."
    if not summary.last:
        return "The last step had a gradient."
    return f"The last step with a gradient was {plural(summary.last, 'step')} before the end."


def _tied(run: RunData) -> Iterator[Finding]:
    """Groups with equal rewards, in steps in which other groups had a gradient."""
    recent = [r for r in run.recent if cause_in(r) is None]
    shares = numbers(recent, "frac_reward_zero_std")
    if not shares or (share := fmean(shares)) < 0.7:
        return
    zero = numbers(recent, "frac_zero_advantage")
    if zero and fmean(zero) < _TIES_COUNT:
        return
    solved = run.success is not None and run.success >= _SOLVED
    yield Finding(
        "tied_rewards",
        "low" if solved else "medium",
        f"{percent(share)} of the groups of {last_steps(len(shares))} had equal rewards.",
        "All advantages of such a group are 0: its episodes cost time and teach nothing.",
        "Raise group_size, draw tasks whose rewards differ (curriculum.max_draws=4), or choose "
        "tasks that the model solves sometimes.",
        steps_of(recent),
        of_steps(steps_of(recent)),
    )


def _cut(run: RunData) -> Iterator[Finding]:
    """Answers that the token limit cut."""
    shares = numbers(run.recent, "completions/clipped_ratio")
    if not shares or (share := fmean(shares)) < 0.2:
        return
    yield Finding(
        "answers_cut",
        "high" if share >= 0.5 else "medium",
        f"{percent(share)} of the answers of {last_steps(len(shares))} were cut at the token "
        "limit.",
        "A cut answer lacks its end, so it seldom succeeds, and its reward says little about what "
        "the model wrote.",
        "Raise sampling.max_tokens or context_length. If the model never ends an answer, check the "
        "chat template.",
        steps_of(run.recent),
        of_steps(steps_of(run.recent)),
    )


def _failures(run: RunData) -> Iterator[Finding]:
    """Episodes that failed for reasons other than the policy."""
    recent = run.recent
    kinds: Counter[str] = Counter()
    for record in recent:
        for name, count in record.items():
            if name.startswith("failures/"):
                kinds[name.removeprefix("failures/")] += int(count)
    count = int(sum(numbers(recent, "failures")))
    if not count:
        return
    played = sum(numbers(recent, "num_groups")) * int(run.config.get("group_size", 1))
    share = min(1.0, count / max(1.0, played))
    listed = ", ".join(f"{kind} ({number})" for kind, number in kinds.most_common())
    common = {"failure": kinds.most_common(1)[0][0]} if kinds else {}
    yield Finding(
        "failures",
        "high" if share >= 0.2 else "medium" if share >= 0.02 else "low",
        f"{plural(count, 'episode')} ({percent(share)}) of {last_steps(len(recent))} failed: "
        f"{listed}.",
        "A failed episode has no reward and enters no baseline. Its cause is the infrastructure, "
        "the environment's code or a tool, not the model.",
        "Read the error in a failed episode. Failures of one task or one tool point to its code; "
        "timeouts to env.step_timeout_s, episode_timeout_s or a busy machine.",
        steps_of(recent),
        of_steps(steps_of(recent), ending="failed", **common),
    )


def _stale(run: RunData) -> Iterator[Finding]:
    """Tokens from weights that are older than the settings allow, or too old to learn from."""
    recent, allowed = run.recent, int(run.config.get("staleness", 0))
    older = [r for r in recent if r.get("staleness/oldest", 0) > allowed]
    if older:
        oldest = int(max(numbers(older, "staleness/oldest")))
        some = "" if len(recent) == 1 else f"{len(older)} of "
        share = some + last_steps(len(recent))
        yield Finding(
            "stale_sampler",
            "high",
            f"The sampler was up to {plural(oldest, 'update')} behind the learner; "
            f"staleness={allowed} allows {allowed}.",
            f"This holds for {share}. The update learns from tokens that the current weights did "
            "not sample.",
            "Check that each update arrives at the policy: policy.load_s, the logs of its servers, "
            "and a policy plug-in's load_weights and versions.",
            steps_of(older),
            of_steps(steps_of(older)),
        )
        return
    ages = {name for record in recent for name in record if name.startswith(_SHARE)}
    used = {name.removeprefix(_SHARE): fmean(numbers(recent, name)) for name in ages}
    age = min(used, key=lambda age: used[age], default="0")
    if used and used[age] < 0.5 and int(age):
        yield Finding(
            "stale_sampler",
            "medium",
            f"Tokens that were {plural(int(age), 'update')} old counted as only "
            f"{percent(used[age])} of their number.",
            "The learner's probabilities of these tokens differ so much from the sampler's that a "
            "few tokens make most of the update (effective sample size).",
            "Lower staleness or optimizer.lr.",
            steps_of(recent),
            of_steps(steps_of(recent)),
        )


def _mismatch(run: RunData) -> Iterator[Finding]:
    """Probabilities of the sampler that differ from the learner's."""
    have = [record for record in run.steps if record.get("sampling/k3") is not None]
    if not have:
        return
    quarter = have[-max(1, min(WINDOW, len(have) // 4)) :]
    now, first = fmean(numbers(quarter, "sampling/k3")), float(have[0]["sampling/k3"])
    grows = len(have) >= _LEAST_STEPS and now >= 10 * first and now >= 0.005
    if not grows and now < 0.02:
        return
    yield Finding(
        "mismatch",
        "high" if now >= (0.05 if grows else 0.1) else "medium",
        f"The sampler's probabilities move away from the learner's, as if it kept old weights: the "
        f"divergence is {now:.3g} nats per token, {first:.2g} at the first step."
        if grows
        else "The sampler's probabilities differ from the learner's: the divergence is "
        f"{now:.3g} nats per token.",
        "Both should have the same weights, so that rounding alone separates them (below 0.005 "
        "nats, also for bfloat16). Advantages are then given to tokens that the learner finds "
        "unlikely.",
        "Updates do not arrive at the sampler, or staleness is too large. Check policy.load_s, the "
        "logs of the policy's servers, and a policy plug-in's load_weights."
        if grows
        else "Sampler and learner differ in precision, sampling settings, template or loss mask: "
        "see the ratios of tokens. algo.correction.kind=tis bounds the harm.",
        steps_of(quarter),
        of_steps(steps_of(quarter), sort="step"),
    )


def _held_out(run: RunData) -> Iterator[Finding]:
    """Success on held-out tasks that falls while the training reward rises, or fell by the end."""
    tests = [record for record in run.records if "test/success" in record]
    if len(tests) > 1 and tests[-1].get("test/success_high", 1) < tests[0].get("test/success", 0):
        before, after = tests[0]["test/success"], tests[-1]["test/success"]
        yield Finding(
            "worse",
            "high",
            f"Success on test tasks fell from {before:.2f} to {after:.2f}.",
            "The 95% interval after training lies below the success before it.",
            "Look at the training episodes with the highest rewards: do they solve the task? Lower "
            "optimizer.lr, or add a divergence (algo.kl.coef).",
            steps_of(tests),
            {"kind": "test after"},
        )
    held = [record for record in run.records if "eval/success" in record]
    if len(held) < 3:
        return
    best = max(held, key=lambda record: record["eval/success"])
    top, last = best["eval/success"], held[-1]["eval/success"]
    tasks = _tasks(run.config)
    error = sqrt(2 * max(top * (1 - top), 1 / tasks) / tasks)
    rewards = [(r["step"], r["reward"]) for r in run.steps if "reward" in r]
    then = [x for step, x in rewards if abs(step - best["step"]) <= 2] or [
        x for _, x in rewards[:3]
    ]
    now = [x for _, x in rewards[-5:]]
    # The best of several validations is high by chance as well: three errors, not two.
    if not now or top - last <= 3 * error or fmean(now) <= fmean(then):
        return
    yield Finding(
        "apart",
        "high" if top - last >= 0.1 else "medium",
        f"Success on validation tasks fell from {top:.2f} (step {best['step']}) to {last:.2f}, "
        f"while the training reward rose from {fmean(then):.2f} to {fmean(now):.2f}.",
        f"The fall is more than three standard errors of {plural(tasks, 'task')}. The model learns "
        "something that pays in training only: it memorises tasks or exploits the reward.",
        "Look at training episodes with high rewards, and at validation episodes that fail. Use "
        "more tasks, a stricter reward, fewer steps, or algo.kl.coef. checkpoints/best has the "
        "best weights.",
        (int(best["step"]), int(held[-1]["step"])),
        {"kind": "validation", "step": str(held[-1]["step"]), "sort": "reward", "order": "asc"},
    )


def _no_success(run: RunData) -> Iterator[Finding]:
    """Rewards that differ, and held-out tasks of which none is ever solved."""
    held = [r for r in run.records if "eval/success" in r]
    rewards = numbers(run.steps, "reward")
    if len(held) < 3 or len(rewards) < _LEAST_STEPS or any(r["eval/success"] for r in held):
        return
    ties = numbers(run.recent, "frac_reward_zero_std")
    if ties and fmean(ties) == 1:
        return  # Nothing is learned at all, which is another finding.
    first, now = fmean(rewards[:_LEAST_STEPS]), fmean(rewards[-_LEAST_STEPS:])
    yield Finding(
        "no_success",
        "high",
        f"No task was solved in {len(held)} validations of {plural(_tasks(run.config), 'task')}, "
        f"while the training reward went from {first:.2f} to {now:.2f}.",
        "The reward pays for something else than success, such as a format or a part of the "
        "task, and the model learns that.",
        "Read the training episodes with the highest rewards. Ask whether the model can solve "
        "these tasks at all (rl.eval with episodes=16 shows pass@16); take easier tasks or a "
        "stronger model, or imitate solutions first (python -m rl.sft).",
        (int(held[0]["step"]), int(held[-1]["step"])),
        of_steps(steps_of(run.recent), sort="reward", order="desc"),
    )


def _tasks(config: Mapping[str, Any]) -> int:
    evaluation = config.get("eval")
    return int(evaluation.get("tasks", 64)) if isinstance(evaluation, Mapping) else 64


def _entropy(run: RunData) -> Iterator[Finding]:
    """Entropy that fell to almost nothing before the tasks were solved."""
    entropies = numbers(run.steps, "entropy")
    if len(entropies) < _LEAST_STEPS or (run.success or 0) >= _SOLVED:
        return
    first, now = fmean(entropies[:2]), fmean(entropies[-3:])
    if now >= 0.1 * first or now > 0.05:
        return
    tied = numbers(run.recent, "frac_reward_zero_std")
    stuck = bool(tied) and fmean(tied) >= 0.8
    yield Finding(
        "entropy",
        "high" if stuck else "medium",
        f"The entropy collapsed from {first:.2g} to {now:.2g} nats per token.",
        "The model gives the same answer each time, so that a group's rewards are equal and new "
        "answers are not tried.",
        "Raise sampling.temperature or algo.entropy_coef, widen the upper clip bound (algo=dapo), "
        "or lower optimizer.lr.",
        steps_of(run.recent),
        of_steps(steps_of(run.recent)),
    )


def _tool_calls(run: RunData) -> Iterator[Finding]:
    """Tool calls that the policy gave up."""
    calls = numbers(run.steps, "tools/call_frequency")
    if len(calls) < 2 * _LEAST_STEPS:
        return
    first, now = fmean(calls[:_LEAST_STEPS]), fmean(calls[-_LEAST_STEPS:])
    if first < _CALLED or now >= 0.1 * first:
        return
    rewards = numbers(run.steps, "reward")
    rose = bool(rewards) and fmean(rewards[-_LEAST_STEPS:]) > fmean(rewards[:_LEAST_STEPS])
    yield Finding(
        "tool_calls",
        "low" if rose else "medium",
        f"Tool calls vanished: {now:.2g} per episode in the last {_LEAST_STEPS} steps, {first:.2g} "
        f"in the first {_LEAST_STEPS}.",
        "The reward rose meanwhile: the model may solve the tasks without tools."
        if rose
        else "The reward did not rise meanwhile. Calls that fail or are cut teach a model to "
        "answer at once.",
        "Compare an early episode with a late one. Check how many calls fail and how many answers "
        "are cut; lower optimizer.lr, or reward a call that is used.",
        steps_of(run.recent),
        of_steps(steps_of(run.recent)),
    )


def _format(run: RunData) -> Iterator[Finding]:
    """Answers or tool calls that the environment could not read."""
    recent = run.recent
    names = sorted({name for r in recent for name in r if name.startswith("scores/")})
    for name in (name for name in names if re.split("[/_]", name)[-1] == "format"):
        if (share := fmean(numbers(recent, name))) < 0.1:
            yield Finding(
                "format",
                "medium",
                f"{name.removeprefix('scores/')} is {share:.2f} over {last_steps(len(recent))}.",
                "The environment reads almost none of the answers, whatever they say.",
                "Compare an answer with the format that the prompt asks for. Check the chat "
                "template, or learn the format first (python -m rl.sft).",
                steps_of(recent),
                of_steps(steps_of(recent)),
            )
    failed = numbers(recent, "tools/failure_frequency")
    if failed and (share := fmean(failed)) >= 0.5:
        yield Finding(
            "format",
            "medium",
            f"{percent(share)} of the tool calls of {last_steps(len(failed))} failed.",
            "A call fails if it is malformed, names no tool, or has wrong arguments.",
            "Read the errors of the calls. Check env.syntax, and that the prompt shows the syntax "
            "that the model knows.",
            steps_of(recent),
            of_steps(steps_of(recent)),
        )


def _held(run: RunData) -> Iterator[Finding]:
    """Code of an environment that holds the event loop, so that no other episode goes on."""
    timed = [r for r in run.recent if r.get("time/wall", 0) > 0]
    held, wall = (sum(numbers(timed, f"time/{name}")) for name in ("policy/held", "wall"))
    if not timed or (share := held / wall) < _HELD:
        return
    time = "the last step" if len(timed) == 1 else f"the time of {last_steps(len(timed))}"
    yield Finding(
        "held",
        "medium" if share >= _HELD_MOST else "low",
        f"For {percent(share)} of {time}, the environment's own code held all other episodes.",
        f"Code of the environment or of a tool blocked or computed without await for {held:.3g} of "
        f"{wall:.3g} s. Answers of the model waited meanwhile.",
        "In the environment, make it async and await there, or set blocking = True in its class; "
        "give a tool @tool(blocking=True). The log of the run names file and line.",
        steps_of(timed),
        of_steps(steps_of(timed), sort="seconds", order="desc"),
    )
