"""code-sandbox-v0 on generated tasks, with real sandboxes and with recorded verdicts."""

import asyncio

import pytest

import envs
from envs import EnvFailure
from envs.code import env as env_module
from envs.code.env import CodeSandboxEnv, CodeSandboxOptions
from envs.code.generated import GeneratedTasks
from envs.code.task import CodeTask
from tools.sandbox import CallTest, Outcome, OutcomeKind, SandboxFailure, Verdict

RIGHT = "def f(xs): return sum([x + 1 for x in xs])"


@pytest.fixture(scope="module")
def env():
    """Two turns; its sandbox serves every test of this module."""
    made = envs.make("code-sandbox-v0", max_turns=2)
    yield made
    made.close()


class ScriptedSandbox:
    """Passes the tests whose indices in the call are given, call by call; records the calls."""

    def __init__(self, *passes):
        self.passes = list(passes)
        self.calls = []

    async def grade(self, source, tests, entry_point=None):
        self.calls.append((source, tests, entry_point))
        passed = self.passes.pop(0)
        if isinstance(passed, Exception):
            raise passed
        kinds = {True: OutcomeKind.PASSED, False: OutcomeKind.WRONG, None: OutcomeKind.ERROR}
        outcomes = tuple(Outcome(kinds[p], "message") for p in passed)
        return Verdict(all(passed), outcomes, 0.0, "none", "scripted", "nothing")


def scripted(sandbox, **options):
    env = envs.make("code-sandbox-v0", services={"sandbox": sandbox}, **options)
    env.reset(seed=0, options={"task": 0})
    return env


ALL_PUBLIC, NO_PUBLIC = [True] * 3, [False] * 3
ALL_HIDDEN, HALF_HIDDEN = [True] * 8, [True, False] * 4


def test_a_right_program_ends_the_episode_with_the_whole_reward(env):
    env.reset(options={"task": 5})
    result = env.step(GeneratedTasks("train")[5].reference)
    assert (result.reward, result.terminated, result.truncated) == (1.0, True, False)
    assert result.info["scores"] == {"public_passed": 1.0, "hidden_passed": 1.0, "passed": 1.0}
    assert result.observation == ""


def test_a_wrong_program_is_shown_the_first_public_test_and_may_be_repaired(env):
    task = GeneratedTasks("train")[5]
    env.reset(options={"task": 5})
    result = env.step("def f(xs): return 'nonsense'")
    argument, expected = task.public[0].args[0], task.public[0].expected
    assert result.observation == f"f({argument}) returned 'nonsense', expected {expected}"
    assert (result.reward, result.terminated) == (0.0, False)
    assert result.info["scores"] == {"public_passed": 0.0, "passed": 0.0}
    result = env.step(f"```python\n{task.reference}\n```")
    assert (result.reward, result.terminated) == (1.0, True)


def test_the_last_wrong_program_ends_the_episode_without_reward(env):
    env.reset(options={"task": 5})
    env.step("def f(xs): return 0 / 0")
    result = env.step("def g(xs): return 0")
    assert (result.reward, result.terminated, result.truncated) == (0.0, True, False)
    assert result.info["scores"]["passed"] == 0.0


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("def f(xs) return 1", "SyntaxError"),
        ("def g(xs): return 1", "NameError: no function 'f'"),
        ("def f(xs): return undefined", "NameError: name 'undefined' is not defined (line 1)"),
        ("import os; os._exit(0)", "ended the process"),
        ("", "NameError: no function 'f'"),
        ("def f(xs): return 10 ** 5000", "returned a number too long to show"),
        ("\ud800", "UnicodeEncodeError"),
    ],
)
def test_an_unusable_program_gets_a_message(env, program, message):
    env.reset(options={"task": 1})
    assert message in env.step(program).observation


def test_a_program_that_takes_too_long_gets_a_message():
    env = envs.make("code-sandbox-v0", max_turns=2, wall_s=0.5)
    env.reset(options={"task": 1})
    assert "ran out of time" in env.step("def f(xs):\n    while True: pass").observation
    env.close()


@pytest.mark.parametrize("hide", ["none", "constant"])
def test_gold_passes_two_hundred_tasks(env, hide):
    async def run():
        async with CodeSandboxEnv.open_services(CodeSandboxOptions()) as services:
            places = asyncio.Semaphore(8)

            async def play(index):
                async with places:
                    one = envs.make("code-sandbox-v0", services, max_turns=2, hide=hide)
                    observation, _ = await one.areset(options={"task": index})
                    gold = one.gold_policy()
                    result = await one.astep(gold(observation))
                    if not result.terminated:
                        result = await one.astep(gold(result.observation))
                    return result.info["turn"], result.reward

            return await asyncio.gather(*(play(index) for index in range(200)))

    played = asyncio.run(run())
    assert [reward for _, reward in played] == [1.0] * 200
    turns = [turn for turn, _ in played]
    # With nothing withheld one turn is enough; else only a lucky guess of one in eight is.
    assert (turns.count(1) == 200) if hide == "none" else (5 < turns.count(1) < 60)


def test_the_contract_of_environments_holds():
    for options in ({}, {"max_turns": 3, "hide": "constant"}):
        env = envs.make("code-sandbox-v0", **options)
        assert envs.check_env(env, num_tasks=2, num_gold_tasks=10).env_id == "code-sandbox-v0"
        env.close()


def test_hidden_tests_run_in_a_process_of_their_own_and_show_nothing(env):
    # It remembers every argument it is called with and shows all of them.
    spy = "seen = []\ndef f(xs):\n    seen.append(list(xs))\n    return seen"
    task = GeneratedTasks("train")[9]
    env.reset(options={"task": 9})
    observation = env.step(spy).observation
    hidden = [test.args[0] for test in task.hidden if test.args[0]]
    public = [test.args[0] for test in task.public]
    assert not any(str(xs) in observation for xs in hidden if xs not in public)
    end = env.step(spy)
    assert end.observation == "" and not any(str(xs) in str(end.info) for xs in hidden)


def test_nothing_of_the_hidden_tests_reaches_the_public_grade():
    sandbox = ScriptedSandbox(NO_PUBLIC, ALL_PUBLIC + ALL_HIDDEN)
    env = scripted(sandbox, max_turns=2)
    task = env.tasks[0]
    env.step("first")
    env.step("second")
    assert sandbox.calls == [
        ("first", task.public, "f"),
        # The last turn has no observation, so one process is enough.
        ("second", task.public + task.hidden, "f"),
    ]


def test_one_turn_is_one_grade():
    sandbox = ScriptedSandbox(ALL_PUBLIC + ALL_HIDDEN)
    result = scripted(sandbox).step(RIGHT)
    assert (result.reward, result.terminated, len(sandbox.calls)) == (1.0, True, 1)


def test_passing_the_public_tests_alone_earns_nothing():
    result = scripted(ScriptedSandbox(ALL_PUBLIC, HALF_HIDDEN), max_turns=2).step(RIGHT)
    assert (result.reward, result.terminated) == (0.0, True)
    assert result.info["scores"] == {"public_passed": 1.0, "hidden_passed": 0.5, "passed": 0.0}


def test_passing_the_hidden_tests_alone_earns_nothing():
    result = scripted(ScriptedSandbox([True, False, True, *ALL_HIDDEN])).step(RIGHT)
    assert result.reward == 0.0 and result.info["scores"]["hidden_passed"] == 1.0


def test_a_fraction_of_the_hidden_tests_can_be_the_reward():
    env = scripted(ScriptedSandbox(NO_PUBLIC + HALF_HIDDEN), hidden_tests="fraction")
    assert env.step(RIGHT).reward == 0.5


def test_a_public_test_is_no_part_of_the_fraction():
    """MBPP shows its first test and grades by all: who returns its answer earns nothing."""
    shown, *unseen = tests = [CallTest((n,), n * n) for n in range(3)]
    task = CodeTask("prompt", "f", (shown,), tuple(tests))
    outcomes = [Outcome(OutcomeKind.PASSED), Outcome(OutcomeKind.WRONG), Outcome(OutcomeKind.ERROR)]
    assert env_module._unseen(task, outcomes) == outcomes[1:]
    alone = CodeTask("prompt", "f", (shown,), (shown,))
    assert env_module._unseen(alone, outcomes[:1]) == outcomes[:1]
    assert len(unseen) == 2


@pytest.mark.parametrize(
    ("outcomes", "paid"),
    [
        (NO_PUBLIC + [False] * 8, 0.25),
        ([None] * 11, 0.0),
        ([None] * 10 + [False], 0.25),
        (ALL_PUBLIC + [None] * 8, 0.0),
    ],
)
def test_format_is_paid_at_the_end_if_a_hidden_test_was_answered(outcomes, paid):
    result = scripted(ScriptedSandbox(outcomes), format_reward=0.25).step(RIGHT)
    assert result.info["rewards"] == {"hidden_tests": 0.0, "format": paid, "turn_cost": 0.0}


def test_each_turn_after_the_first_costs():
    sandbox = ScriptedSandbox(NO_PUBLIC, NO_PUBLIC, ALL_PUBLIC, ALL_HIDDEN)
    env = scripted(sandbox, max_turns=4, turn_cost=0.1)
    results = [env.step(text) for text in "abc"]
    assert [result.reward for result in results] == pytest.approx([0.0, -0.1, 0.9])
    assert results[2].info["rewards"] == pytest.approx(
        {"hidden_tests": 1.0, "format": 0.0, "turn_cost": -0.1}
    )
    assert env.reward_range == pytest.approx((-0.3, 1.0))


def test_the_turn_after_a_guess_is_free():
    sandbox = ScriptedSandbox(NO_PUBLIC, NO_PUBLIC, ALL_PUBLIC, ALL_HIDDEN)
    env = scripted(sandbox, max_turns=4, turn_cost=0.1, hide="constant")
    rewards = [env.step(text).reward for text in "abc"]
    assert rewards == pytest.approx([0.0, 0.0, 0.9])
    assert env.reward_range == pytest.approx((-0.2, 1.0))


def test_blank_feedback_says_the_same_whatever_went_wrong():
    observations = set()
    for outcomes in (NO_PUBLIC, [True, False, True], [None] * 3):
        env = scripted(ScriptedSandbox(outcomes), max_turns=2, feedback="blank")
        observations.add(env.step("a").observation)
    assert observations == {"f(?) returned ?, expected ?"}


def test_a_failure_of_the_sandbox_is_no_reward():
    env = scripted(ScriptedSandbox(SandboxFailure("lost")))
    with pytest.raises(EnvFailure, match="lost") as failure:
        env.step(RIGHT)
    assert failure.value.retryable


def test_a_fork_in_mid_episode_goes_its_own_way(env):
    task = GeneratedTasks("train")[5]
    env.reset(options={"task": 5})
    env.step("def f(xs): return 'nonsense'")
    fork = env.fork()
    assert fork.step("def f(xs): return 'worse'").reward == 0.0
    assert env.step(task.reference).reward == 1.0
    fork.close()


def test_a_group_starts_with_the_same_task(env):
    members = env.group(3)
    starts = [member.reset(seed=4) for member in members]
    assert starts[0] == starts[1] == starts[2]
    for member in members:
        member.close()


def test_equal_programs_of_a_group_run_once():
    async def run():
        async with CodeSandboxEnv.open_services(CodeSandboxOptions()) as services:
            members = [envs.make("code-sandbox-v0", services) for _ in range(6)]
            for member in members:
                await member.areset(options={"task": 2})
            results = await asyncio.gather(*(member.astep(RIGHT) for member in members))
            assert len({result.reward for result in results}) == 1
            return services["sandbox"].num_asked, services["sandbox"].num_run

    assert asyncio.run(run()) == (6, 1)


def test_rewards_bounds_follow_the_options():
    env = scripted(ScriptedSandbox(), format_reward=0.2, turn_cost=0.05, max_turns=3)
    assert env.reward_range == pytest.approx((-0.1, 1.2))
    assert env.reward_floor == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hide": "all"}, r"hide \('all'\) must be one of none, constant"),
        ({"feedback": "no"}, r"feedback \('no'\) must be one of tests, blank"),
        ({"hidden_tests": "some"}, r"hidden_tests \('some'\) must be one of all, fraction"),
        ({"turn_cost": -1.0}, r"turn_cost \(-1.0\) must be >= 0"),
        ({"format_reward": -0.1}, r"format_reward \(-0.1\) must be >= 0"),
        ({"hide": "constant"}, r"needs max_turns \(1\) >= 2: the first attempt has to guess"),
        ({"hide": "constant", "tasks": "x.jsonl", "max_turns": 2}, "is for generated tasks"),
        ({"wall_s": 0.0}, r"wall_s \(0.0\) must be in"),
        ({"memory_mb": 1}, r"memory_mb \(1\) must be a whole number in"),
    ],
)
def test_an_option_out_of_range_is_refused_when_it_is_given(options, message):
    with pytest.raises(ValueError, match=message):
        CodeSandboxOptions(**options)


def test_an_unknown_backend_is_refused_when_the_sandbox_is_opened():
    env = envs.make("code-sandbox-v0", sandbox="chroot")
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"backend \('chroot'\) must be one of"):
        env.step(RIGHT)


async def test_a_program_that_counts_its_calls_is_found_by_a_fresh_process_for_each_test():
    source = "count = 0\ndef f(x):\n    global count\n    count += 1\n    return x * (count == 1)"
    tests = tuple(CallTest((n,), n) for n in (1, 2, 3))
    for fresh, passed in ((False, 1), (True, 3)):
        options = CodeSandboxOptions(fresh_process=fresh)
        async with CodeSandboxEnv.open_services(options) as services:
            verdict = await services["sandbox"].grade(source, tests, "f")
        assert verdict.num_passed == passed
