"""Ranks of other machines connect to a run: all of them, in time, and no other program."""

import os
import socket
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection

import pytest

from rl.learner.ranks.joining import RankListener, join
from rl.learner.seam import LearnerLost


@pytest.fixture
def listener():
    opened = RankListener("127.0.0.1", 0, b"a secret of the run")
    yield opened
    opened.close()


def joining(listener, rank, results, key=None):
    def run():
        try:
            results[rank] = join(listener.address, key or listener.key, rank)
        except (AuthenticationError, EOFError, OSError) as error:
            results[rank] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_ranks_are_ordered_whatever_the_order_of_their_arrival(listener):
    joined = {}
    for rank in (2, 0, 1):
        joining(listener, rank, joined)
    ranks = listener.accept(3, 20.0)
    assert [one.rank for one in ranks] == [0, 1, 2]
    assert all((one.address, one.pid) == ("127.0.0.1", os.getpid()) for one in ranks)
    assert all(one.shares_files and 0 < one.port < 2**16 for one in ranks)
    for rank, one in enumerate(ranks):
        one.connection.send_bytes(b"to %d" % rank)
    assert [joined[rank].recv_bytes() for rank in range(3)] == [b"to 0", b"to 1", b"to 2"]


def test_a_stranger_is_turned_away_and_a_silent_one_delays_no_rank(listener):
    silent = socket.create_connection(listener.address)
    joined = {}
    stranger = joining(listener, 0, joined, key=b"guessed")
    accepted = []
    waiting = threading.Thread(
        target=lambda: accepted.extend(listener.accept(1, 20.0)), daemon=True
    )
    waiting.start()
    stranger.join(10)
    assert isinstance(joined[0], AuthenticationError | EOFError | OSError)
    assert not accepted, "a wrong key is no rank"
    joining(listener, 0, joined)
    waiting.join(10)
    assert len(accepted) == 1 and isinstance(joined[0], Connection)
    silent.close()


def test_the_end_of_a_connection_reaches_a_thread_that_reads(listener):
    joined = {}
    joining(listener, 0, joined)
    [one] = listener.accept(1, 20.0)
    ended = threading.Event()

    def read():
        try:
            one.connection.recv_bytes()
        except (EOFError, OSError):
            ended.set()

    threading.Thread(target=read, daemon=True).start()
    one.end_connection()
    assert ended.wait(10)
    with pytest.raises((EOFError, OSError)):
        joined[0].recv_bytes()


def test_ranks_that_do_not_come_are_named_at_the_deadline(listener):
    joined = {}
    joining(listener, 1, joined)
    with pytest.raises(LearnerLost, match=r"^rank 0, 2 did not connect within 1 s$"):
        listener.accept(3, 1.0)
    with pytest.raises((EOFError, OSError)):
        joined[1].recv_bytes()  # The rank that came ends as well.
