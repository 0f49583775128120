"""A command that plays an episode ends with all that it started."""

from __future__ import annotations

import asyncio
import os
import select

import pytest

from rl.external.program import CommandProgram


async def test_a_command_cancelled_while_asyncio_starts_it_ends_with_its_group(tmp_path):
    os.mkfifo(tmp_path / "held")
    # The command's second program holds this file open as long as it runs.
    held = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    try:
        program = f"exec 3> '{tmp_path}/held'; sleep 600 & echo x >&3; wait"
        command = CommandProgram(["sh", "-c", program])
        playing = asyncio.create_task(command.play({}, "http://nowhere/v1", seed=0))
        # The loop's thread waits, so the programs run before asyncio returns the process.
        while select.select([held], [], [], 0.2) != ([held], [], []):
            await asyncio.sleep(0)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert os.read(held, 9) == b"x\n"
        assert await asyncio.to_thread(select.select, [held], [], [], 30) == ([held], [], [])
        assert os.read(held, 9) == b"", "no process holds the file"
    finally:
        os.close(held)
