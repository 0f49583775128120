"""A process and its descendants, killed by the parent or by the guard."""

from __future__ import annotations

import subprocess
import sys
import time

from processes import alive

from agents.serving import process_tree
from agents.serving.process_tree import Tree

PARENT = """
import subprocess
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
child.wait()
"""


def start():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    return parent, int(parent.stdout.readline())


def wait_for_end(pid):
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def test_killing_a_tree_kills_all_descendants():
    with start()[0] as parent:
        found = Tree.of(parent.pid)
        members = found.members()
        assert members[0].pid == parent.pid
        assert len(members) == 2
        assert found.kill() == members
        assert wait_for_end(members[1].pid)
        parent.wait(10)
    assert not found.exists
    assert found.kill() == []


def test_a_reused_process_id_is_another_process():
    with start()[0] as parent:
        found = Tree.of(parent.pid)
        former = Tree(found.pid, found.born - 1)
        assert not former.exists
        assert former.kill() == []
        assert found.exists
        found.kill()


def test_the_guard_kills_the_tree_when_its_input_ends():
    words = [sys.executable, "-I", "-S", process_tree.__file__]
    parent, child = start()
    with parent, subprocess.Popen(words, stdin=subprocess.PIPE, text=True) as guard:
        found = Tree.of(parent.pid)
        guard.stdin.write(f"{found.pid} {found.born}\n")
        guard.stdin.flush()
        time.sleep(0.2)
        assert found.exists
        guard.stdin.close()
        assert guard.wait(10) == 0
        parent.wait(10)
        assert wait_for_end(child)
