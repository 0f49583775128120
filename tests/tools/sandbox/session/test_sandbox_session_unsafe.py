"""Sessions of ``unsafe-local``: the same calls, interrupts and copies."""

from __future__ import annotations

import pytest

from tools.sandbox import Limits, SessionOver, Status, make_sandbox


@pytest.mark.quick
async def test_calls_interrupts_copies_and_ends():
    with pytest.warns(UserWarning, match="unconfined"):
        sandbox = make_sandbox("unsafe-local", Limits(wall_s=5.0))
    async with sandbox, sandbox.session() as session:
        await session.run("x = [1]\nopen('f', 'w').write('a')")
        async with await session.fork() as twin:
            await twin.run("x.append(2); open('f', 'w').write('b')")
            assert (await session.run("x, open('f').read()")).value == "([1], 'a')"
            assert (await twin.run("while True: pass", wall_s=0.3)).status is Status.TIMEOUT
            assert (await twin.run("x")).value == "[1, 2]"
        result = await session.run("import os; os.kill(os.getpid(), 9)")
        assert (result.over, result.signal, result.isolation) == (True, 9, "none")
        with pytest.raises(SessionOver):
            await session.run("x")
