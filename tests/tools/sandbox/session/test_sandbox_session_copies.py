"""Conformance: forks and snapshots of a session: what is separate and what is shared."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from tools.sandbox import CopyRefused, Limits, SessionOver, Status

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def session(either):
    async with either.session() as opened:
        yield opened


async def test_variables_are_independent(session):
    await session.run("xs = [1]\ndef f(): return len(xs)")
    async with await session.fork() as twin:
        await session.run("xs.append(2)")
        await twin.run("xs += [7, 8, 9]")
        assert (await session.run("xs, f()")).value == "([1, 2], 2)"
        assert (await twin.run("xs, f()")).value == "([1, 7, 8, 9], 4)"


async def test_children_of_a_copied_session_are_not_killed(session):
    """Processes are forked while the supervisor searches for processes without a branch."""
    async with await session.fork() as twin, await session.fork() as other:
        forks = (
            "import os, time\nends, until = [], time.monotonic() + 2\n"
            "while time.monotonic() < until:\n    kid = os.fork()\n"
            "    if kid == 0: os._exit(7)\n"
            "    ends.append(os.waitpid(kid, 0)[1])\n"
            "(len(ends) > 0, {os.waitstatus_to_exitcode(end) for end in ends})"
        )
        results = await asyncio.gather(
            *(each.run(forks, wall_s=60.0) for each in (session, twin, other))
        )
        assert [result.value for result in results] == ["(True, {7})"] * 3


async def test_both_run_at_the_same_time(session):
    async with await session.fork() as twin:
        meet = "import os, time\nopen('../{mine}', 'w').close()\nend = time.time() + 4\n"
        meet += "while not os.path.exists('../{other}') and time.time() < end: time.sleep(0.01)\n"
        meet += "os.path.exists('../{other}')"
        results = await asyncio.gather(
            session.run(meet.format(mine="a", other="b")),
            twin.run(meet.format(mine="b", other="a")),
        )
        assert [result.value for result in results] == ["True", "True"]


async def test_relative_files_are_copied_and_then_separate(session):
    await session.run(
        "import os\nos.makedirs('d/e')\nopen('d/e/f', 'w').write('old')\nos.symlink('d', 'link')\n"
        "os.chdir('d')"
    )
    async with await session.fork() as twin:
        assert (
            await twin.run("open('e/f').read(), os.readlink('../link')")
        ).value == "('old', 'd')"
        await twin.run("open('e/f', 'w').write('new')")
        assert (await session.run("open('e/f').read()")).value == "'old'"
        assert (await twin.run("sorted(os.listdir('..'))")).value == "['d', 'link']"
        home = "import tempfile, sys\nfolder = os.environ['HOME']\n"
        home += "os.getcwd() == folder + '/d' and folder in sys.path"
        assert (await twin.run(home)).value == "True"


async def test_random_numbers_continue_alike(session):
    await session.run("import random\nrandom.seed(5)")
    async with await session.fork() as twin:
        code = "[random.random() for _ in range(3)]"
        assert (await session.run(code)).value == (await twin.run(code)).value


async def test_a_fork_of_a_fork_and_an_end_in_any_order(session):
    await session.run("x = [0]")
    one = await session.fork()
    await one.run("x.append(1)")
    two = await one.fork()
    await one.close()
    await two.run("x.append(2)")
    three = await two.fork()
    assert (await three.run("x")).value == "[0, 1, 2]"
    await session.close()
    assert (await two.run("x.append(3); x")).value == "[0, 1, 2, 3]"
    await two.close()
    assert (await three.run("x")).value == "[0, 1, 2]"
    await three.close()


@pytest.mark.parametrize(
    ("crash", "status"),
    [
        ("import os; os._exit(3)", Status.ERROR),
        ("import os; os.kill(os.getpid(), 9)", Status.KILLED),
        ("import ctypes; ctypes.string_at(0)", Status.KILLED),
        (
            "import os, time\nfor _ in range(3):\n    if os.fork() == 0:\n"
            "        block = bytearray(b'x') * (120 << 20); time.sleep(60)\ntime.sleep(60)",
            Status.MEMORY,
        ),
    ],
)
async def test_the_end_of_one_is_not_the_end_of_the_other(session, crash, status):
    await session.run("x = 1")
    for end_of_the_copy in (True, False):
        twin = await session.fork()
        doomed, living = (twin, session) if end_of_the_copy else (session, twin)
        result = await doomed.run(crash)
        assert (result.status, result.over) == (status, True)
        assert (await living.run("x")).value == "1"
        if end_of_the_copy:
            await twin.close()
    await twin.close()


async def test_orphans_do_not_outlive_their_session(session):
    twin = await session.fork()
    orphan = (
        "import os, select, time\nr, w = os.pipe()\n"
        "if os.fork() == 0:\n    if os.fork() == 0:\n"
        "        os.write(w, str(os.getpid()).encode()); time.sleep(60)\n"
        "    select.select([r], [], [])\n    os._exit(0)\n"  # else it may die before it writes
        "os.wait(); pid = int(os.read(r, 20))\npid"
    )
    pid = (await twin.run(orphan)).value
    await asyncio.sleep(0.3)
    alive = f"import os\nos.path.exists('/proc/{pid}')" if pid else ""
    result = await session.run(
        f"import os\ntry:\n    os.kill({pid}, 0)\n    found = True\n"
        "except ProcessLookupError:\n    found = False\nfound"
    )
    assert (alive != "", result.value) == (True, "False")
    await twin.close()


async def test_each_copy_has_its_own_memory_limit(session):
    twin = await session.fork()
    hold = "block = bytearray(b'x') * (150 << 20); import time; time.sleep(0.3); len(block) >> 20"
    results = await asyncio.gather(session.run(hold), twin.run(hold))
    assert [result.value for result in results] == ["150", "150"]
    await asyncio.gather(session.run("del block"), twin.run("del block"))
    children = "import os\nfor _ in range(3):\n    if os.fork() == 0:\n        block = "
    children += "bytearray(b'x') * (100 << 20); time.sleep(60)\ntime.sleep(60)"
    calls = session.run("time.sleep(1.0); 'slept'"), twin.run(children)
    quiet, greedy = await asyncio.gather(*calls)
    assert (quiet.value, quiet.over) == ("'slept'", False)
    assert (greedy.status, greedy.over) == (Status.MEMORY, True)


async def test_interrupts_reach_one_of_them(session):
    twin = await session.fork()
    slow = asyncio.create_task(session.run("import time\ntime.sleep(1.2)\n'slept'"))
    await asyncio.sleep(0.1)
    assert (await twin.run("while True: pass", wall_s=0.3)).status is Status.TIMEOUT
    assert (await slow).value == "'slept'"
    assert (await twin.run("1")).value == "1"
    await twin.close()


async def test_a_snapshot_is_restored_any_number_of_times(session):
    await session.run("x = [1]\nopen('f', 'w').write('1')")
    async with await session.snapshot() as snapshot:
        for n in range(3):
            await session.run(f"x.append({n}); open('f', 'w').write('changed')")
            await session.restore(snapshot)
            assert (await session.run("x, open('f').read()")).value == "([1], '1')"
        await session.run("import os; os._exit(0)")
        assert session.over
        await session.restore(snapshot)
        assert (await session.run("x")).value == "[1]"
    with pytest.raises(SessionOver, match="nothing to copy"):
        await session.restore(snapshot)
    assert (await session.run("x")).value == "[1]"


async def test_a_session_that_is_over_cannot_be_copied(session):
    await session.run("import os; os._exit(0)")
    with pytest.raises(SessionOver, match="exited with code 0"):
        await session.fork()
    with pytest.raises(SessionOver):
        await session.snapshot()


async def test_a_refused_copy_does_not_end_the_session(either):
    async with either.session() as session:
        await session.run("open('big', 'wb').write(bytes(40 << 20))\nx = 1")
        if either.isolation == "namespaces":
            with pytest.raises(CopyRefused, match="No space left"):
                await session.fork()
            assert (await session.run("import os; os.listdir('..')")).value == "['session']"
        await session.run("import os; os.remove('big')")
        async with await session.fork() as twin:
            assert (await twin.run("x")).value == "1"


async def test_copies_count_as_processes(either):
    if either.isolation != "namespaces":
        pytest.skip("the kernel counts the user's other processes as well")
    async with either.session(limits=Limits(processes=4)) as session:
        twins = [await session.fork(), await session.fork()]
        with pytest.raises(CopyRefused, match=r"limits\.processes"):
            for _ in range(2):
                twins.append(await session.fork())
        assert (await session.run("1")).value == "1"
        await asyncio.gather(*(twin.close() for twin in twins))
        async with await session.fork() as twin:
            assert (await twin.run("2")).value == "2"


async def test_threads_and_children_stay_with_the_original(session):
    await session.run(
        "import subprocess, threading, time\nchild = subprocess.Popen(['sleep', '60'])\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    async with await session.fork() as twin:
        assert (await twin.run("threading.active_count()")).value == "1"
        assert (await session.run("threading.active_count(), child.poll()")).value == "(2, None)"


async def test_a_copy_in_the_middle_of_a_call_waits_for_it(session):
    run = asyncio.create_task(session.run("import time; time.sleep(0.3); x = 5"))
    await asyncio.sleep(0.05)
    async with await session.fork() as twin:
        assert (await twin.run("x")).value == "5"
    await run


async def test_many_copies_at_once(either):
    async with either.session() as session:
        await session.run("x = 1")
        twins = await asyncio.gather(*(session.fork() for _ in range(8)))
        values = await asyncio.gather(*(t.run(f"x + {n}") for n, t in enumerate(twins)))
        assert [result.value for result in values] == [str(1 + n) for n in range(8)]
        await asyncio.gather(*(twin.close() for twin in twins))


async def test_a_cancelled_fork_leaves_its_original_as_it_was(either):
    """At any moment: the next call gets its own answer, and the permit is free again."""
    async with either.session() as session:
        await session.run("x = 0")
        for number, delay in enumerate((0, 0, 0.0005, 0.001, 0.002, 0.005), 1):
            fork = asyncio.create_task(session.fork())
            await asyncio.sleep(delay)
            fork.cancel()
            (made,) = await asyncio.gather(fork, return_exceptions=True)
            if not isinstance(made, BaseException):
                await made.close()
            assert (await session.run("x += 1; x")).value == str(number)
        deadline = asyncio.get_running_loop().time() + 5
        while either.executor.session_permits.in_flight > 1:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.02)
