"""Accounting of mappings: anonymous shared memory, deleted files, kernel records."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import time
from pathlib import Path

import pytest

from tools.sandbox import Limits, SessionOver, Status
from tools.sandbox.inside.supervisor import mappings, usage

MIB = 1 << 20


def kernel_memory() -> int:
    return mappings.kernel_memory(mappings.read([os.getpid()], 16))


def test_an_anonymous_shared_mapping_counts_as_8_mib():
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    before = kernel_memory()
    piece = libc.mmap(None, 8 * MIB, mmap.PROT_READ, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1, 0)
    assert 7.9 * MIB < kernel_memory() - before < 8.1 * MIB  # none of it is resident
    assert libc.munmap(piece + 4096, 8 * MIB - 4096) == 0
    assert 7.9 * MIB < kernel_memory() - before < 8.1 * MIB
    assert libc.munmap(piece, 4096) == 0
    assert abs(kernel_memory() - before) < 0.1 * MIB


def test_a_shared_mapping_of_two_processes_counts_once():
    line = b"7f0-7f1 rw-s 00000000 00:01 {} /dev/zero (deleted)\n"
    one, other = line.replace(b"{}", b"71"), line.replace(b"{}", b"72")
    assert mappings.kernel_memory({1: one, 2: one}) == 8 * MIB + 2 * 512
    assert mappings.kernel_memory({1: one, 2: one + other}) == 16 * MIB + 3 * 512
    # Without a filter, a mapping may be larger and counts in full.
    large = b"10000000-20000000 rw-s 00800000 00:01 73 /dev/zero (deleted)\n"
    assert mappings.kernel_memory({1: large}) == 264 * MIB + 512


def test_too_many_mappings_to_read_in_time():
    fewer = mappings.read([os.getpid()], 16)
    with pytest.raises(mappings.TooManyError):
        mappings.read([os.getpid()] * (20 * MIB // len(fewer[os.getpid()])), 16)
    assert mappings.read([2**22 + 1], 16) == {}


def test_mapped_deleted_files_count_with_their_size_or_the_largest_size(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(bytes(3 * MIB))
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 4096)
        number = os.fstat(file.fileno()).st_ino
    texts = mappings.read([os.getpid()], 16)
    assert mappings.deleted(texts, str(tmp_path), 64 * MIB) == {}
    path.unlink()
    texts = mappings.read([os.getpid()], 16)
    real = os.stat

    def refused(path: object) -> os.stat_result:
        if "map_files" in str(path):
            raise PermissionError
        return real(path)

    monkeypatch.setattr(os, "stat", refused)
    assert mappings.deleted(texts, str(tmp_path), 64 * MIB) == {number: 64 * MIB}
    monkeypatch.undo()
    try:
        next(Path("/proc/self/map_files").iterdir()).stat()
    except PermissionError:
        expected = 64 * MIB  # as another user than root
    else:
        expected = 3 * MIB
    assert mappings.deleted(texts, str(tmp_path), 64 * MIB) == {number: expected}
    assert usage.deleted_files([os.getpid()], str(tmp_path)) == {
        number: 3 * MIB
    }  # the descriptor of mmap
    mapped.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_session_stays_within_its_limit_between_calls(either):
    limits = Limits(wall_s=30.0, memory_mb=128)
    async with either.session(limits=limits) as session:
        await session.run("import mmap\nheld = [mmap.mmap(-1, 8 << 20) for _ in range(4)]")
        assert (await session.run("len(held)")).value == "4"
        # The session may be idle before its first check, and touches no memory then.
        await session.run("held += [mmap.mmap(-1, 8 << 20) for _ in range(16)]")
        deadline = time.monotonic() + 60
        while not session.over and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        with pytest.raises(SessionOver, match="MiB in use, 128 MiB allowed"):
            await session.run("1")
    result = await either.run("import mmap\nmmap.mmap(-1, 9 << 20)")
    assert (result.status, "Cannot allocate memory" in result.stderr) == (Status.ERROR, True)
