"""The scheduler, with a forward pass that stores tokens instead of keys and values."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.completion import SamplingParams
from agents.local.engine import Engine
from agents.local.request import Request
from agents.local.slots import CacheLimits

VOCAB = 50


def next_token(history, salt):
    """What the fake model answers to a sequence: it depends on every token of it."""
    value = salt
    for token in history:
        value = (value * 31 + token + 7) % 1_000_003
    return value % VOCAB


class FakeForward:
    """Rows of tokens; a wrong row, position, length or copy changes what it answers."""

    kind = "fake"
    salt = 0

    def __init__(self, shares_rows=True):
        self.shares_rows = shares_rows
        self.rows = []
        self.capacity = 0
        self.largest = 0
        """Positions of all rows together, at most."""
        self.max_padded = 0
        self.batches = []

    def reserve(self, num_rows, capacity):
        assert (num_rows, capacity) != (len(self.rows), self.capacity)
        self.rows = [row[:capacity] for row in self.rows[:num_rows]]
        self.rows += [[] for _ in range(num_rows - len(self.rows))]
        self.capacity = capacity
        self.largest = max(self.largest, num_rows * capacity)

    def swap(self, a, b, length):
        assert a != b
        self.rows[a], self.rows[b] = self.rows[b][:length], self.rows[a][:length]

    def copy(self, source, target, length):
        assert self.shares_rows
        assert len(self.rows[source]) >= length
        self.rows[target] = self.rows[source][:length]

    def clear(self, row):
        self.rows[row] = []

    def refresh(self):
        self.rows = [[] for _ in self.rows]

    def run(self, batch):
        num_decode = len(batch.decode_ids)
        assert len(batch.starts) == num_decode + len(batch.chunk_sizes)
        self.batches.append((num_decode, batch.chunk_ids.shape))
        self.max_padded = max(self.max_padded, batch.chunk_ids.size)
        logits = torch.zeros(num_decode, VOCAB)
        for row, start in enumerate(batch.starts):
            if row < num_decode:
                new = [int(batch.decode_ids[row])]
            else:
                size = batch.chunk_sizes[row - num_decode]
                new = batch.chunk_ids[row - num_decode, :size].tolist()
                assert size >= 1
                assert start + batch.chunk_ids.shape[1] <= self.capacity
            assert len(self.rows[row]) >= start
            if not self.shares_rows:
                assert len(self.rows[row]) == start, "this cache cannot be shortened"
            self.rows[row] = [*self.rows[row][:start], *new]
            assert len(self.rows[row]) <= self.capacity
            if row < num_decode:
                logits[row, next_token(self.rows[row], self.salt)] = 100.0
        return logits


def make_engine(num_rows=4, prefill_tokens=64, shares_rows=True, context_window=500, **limits):
    forward = FakeForward(shares_rows)
    weight = torch.zeros(1)
    engine = Engine(
        SimpleNamespace(parameters=lambda: [weight]),
        forward,
        None,
        cache=CacheLimits(num_rows, **limits),
        context_window=context_window,
        prefill_tokens=prefill_tokens,
        seed=0,
    )
    return engine, forward


def request(prompt, max_tokens=5, session=None):
    return Request(list(prompt), SamplingParams(max_tokens=max_tokens, temperature=0.0), session)


def expected(prompt, count, salt=0):
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history, salt))
    return history[len(prompt) :]


def run(engine, limit=10_000):
    finished = []
    for _ in range(limit):
        if not engine.busy:
            return finished
        finished += engine.step()
    raise AssertionError("the engine does not come to an end")


def test_more_requests_than_rows_are_all_answered_right():
    engine, forward = make_engine(num_rows=3)
    requests = [request(range(i, 2 * i + 1), max_tokens=1 + i % 7) for i in range(30)]
    for r in requests:
        engine.submit(r)
    assert {id(r) for r in run(engine)} == {id(r) for r in requests}
    for r in requests:
        assert r.token_ids == expected(r.prompt_ids, r.sampling.max_tokens)
    assert all(decoding <= 3 for decoding, _ in forward.batches)


def test_rows_are_kept_busy():
    """Continuous batching: 4 rows, one long and many short requests, no row waits for the long."""
    engine, _ = make_engine(num_rows=4)
    engine.submit(request([1], max_tokens=100))
    for i in range(60):
        engine.submit(request([2, i % VOCAB], max_tokens=5))
    run(engine)
    stats = engine.stats()
    assert stats.num_generated_tokens == 400
    assert stats.mean_occupancy > 0.75  # lock-step batches of four would take 0.27


def test_a_group_s_prompt_is_computed_once():
    engine, forward = make_engine(num_rows=8)
    prompt = list(range(40))
    for _ in range(8):
        engine.submit(request(prompt))
    run(engine)
    stats = engine.stats()
    # The members take all but the last token from the first one, and decode from that.
    assert stats.num_prefill_tokens == 40 + 7
    assert stats.num_saved_tokens == 7 * 39
    assert [shape for _, shape in forward.batches if shape[0]] == [(1, 39)]


def test_a_prefix_shared_by_different_prompts_is_computed_once():
    engine, _ = make_engine(num_rows=4)
    system = list(range(30))
    engine.submit(request([*system, 1, 2, 3]))
    run(engine)
    second = request([*system, 9, 8, 7, 6])
    engine.submit(second)
    run(engine)
    assert engine.stats().num_saved_tokens == 30
    assert second.token_ids == expected(second.prompt_ids, 5)


def test_short_common_prefixes_are_not_waited_for():
    engine, forward = make_engine(num_rows=4)
    for i in range(4):
        engine.submit(request([1, 2, 3, 4, 5, 6, 7, 10 + i, 3]))
    engine.step()
    assert forward.batches[0] == (0, (4, 8))


def test_a_session_computes_only_what_is_new():
    engine, _ = make_engine()
    first = request(range(20), 10, "a")
    engine.submit(first)
    run(engine)
    before = engine.stats()
    second = request([*range(20), *first.token_ids, 1, 2, 3], 4, "a")
    engine.submit(second)
    run(engine)
    # In the cache: 20 + 10 tokens but the last, which was sampled and never computed.
    assert engine.stats().num_saved_tokens - before.num_saved_tokens == 29
    assert engine.stats().num_prefill_tokens - before.num_prefill_tokens == 4
    assert second.token_ids == expected(second.prompt_ids, 4)


def test_a_session_that_rewrote_its_context_keeps_the_common_part():
    engine, _ = make_engine()
    engine.submit(request(range(20), 10, "a"))
    run(engine)
    edited = request([*range(12), 40, 41], 6, "a")
    engine.submit(edited)
    run(engine)
    assert engine.stats().num_saved_tokens == 12
    assert edited.token_ids == expected(edited.prompt_ids, 6)


def test_the_session_idle_for_longest_loses_its_row():
    engine, _ = make_engine(num_rows=2)
    turns = {}
    for name in "ab":
        turns[name] = request([ord(name) % VOCAB] * 20, 3, name)
        engine.submit(turns[name])
        run(engine)
    engine.submit(request([7] * 20, 3, "c"))  # takes the row of a
    run(engine)

    def saved_by_next_turn(name):
        before = engine.stats().num_saved_tokens
        engine.submit(request([*turns[name].prompt_ids, *turns[name].token_ids, 1], 1, name))
        run(engine)
        return engine.stats().num_saved_tokens - before

    assert saved_by_next_turn("b") == 22
    assert saved_by_next_turn("a") == 0


def test_ending_a_session_that_lost_its_row_does_no_harm_to_the_one_that_has_it():
    engine, _ = make_engine(num_rows=2)
    turns = {name: request([ord(name) % VOCAB] * 20, 3, name) for name in "abcd"}
    for name in "abc":
        engine.submit(turns[name])
        run(engine)
    engine.end("a")  # its row is c's by now
    engine.submit(turns["d"])  # takes that of b, the older one
    run(engine)
    engine.submit(request([*turns["c"].prompt_ids, *turns["c"].token_ids, 1], 1, "c"))
    run(engine)
    assert engine.stats().num_saved_tokens == 22


def test_the_row_of_an_ended_session_is_taken_first():
    engine, _ = make_engine(num_rows=2)
    turns = {}
    for name in "ab":
        turns[name] = request([ord(name) % VOCAB] * 20, 3, name)
        engine.submit(turns[name])
        run(engine)
    engine.end("b")
    engine.submit(request([7] * 20, 3, "c"))
    run(engine)
    engine.submit(request([*turns["a"].prompt_ids, *turns["a"].token_ids, 1], 1, "a"))
    run(engine)
    assert engine.stats().num_saved_tokens == 22


def test_long_prompts_are_computed_in_chunks_beside_the_decoding_rows():
    engine, forward = make_engine(num_rows=4, prefill_tokens=16)
    engine.submit(request([3, 4], 40))
    engine.submit(request(range(100), 5))
    engine.submit(request(range(1, 60), 5))
    finished = run(engine)
    assert forward.max_padded <= 16
    assert all(decoding >= 1 for decoding, _ in forward.batches[1:])
    assert all(r.token_ids == expected(r.prompt_ids, len(r.token_ids)) for r in finished)


def test_a_cancelled_request_gives_its_row_back():
    engine, _ = make_engine(num_rows=1)
    long, next_one, queued = request([1], 400), request([2], 3), request([3], 3)
    for r in (long, next_one, queued):
        engine.submit(r)
    engine.step()
    engine.step()
    engine.cancel(long)
    engine.cancel(queued)
    engine.cancel(queued)
    assert run(engine) == [next_one]
    assert next_one.token_ids == expected([2], 3)
    assert len(long.token_ids) < 5


def test_members_go_on_when_the_one_they_wait_for_is_cancelled():
    engine, _ = make_engine(num_rows=4, prefill_tokens=8)
    group = [request(range(40)) for _ in range(3)]
    for r in group:
        engine.submit(r)
    engine.step()
    engine.cancel(group[0])
    assert len(run(engine)) == 2
    assert group[2].token_ids == expected(range(40), 5)
    assert engine.stats().num_saved_tokens >= 39


def test_capacity_grows_with_the_longest_sequence_only():
    engine, forward = make_engine()
    engine.submit(request([1, 2], 3))
    run(engine)
    assert forward.capacity == 32
    engine.submit(request([1] * 100, 30))
    run(engine)
    assert forward.capacity == 160
    engine.submit(request([1] * 260, 30))
    run(engine)
    assert forward.capacity == 320


@pytest.mark.parametrize("shares_rows", [True, False])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_schedule_gives_each_request_its_own_answer(shares_rows, data):
    """Random arrivals, shared prefixes, sessions, cancellations and weight changes."""
    seed = data.draw(st.integers(0, 10**6))
    rng = random.Random(seed)
    num_rows = data.draw(st.integers(1, 5))
    engine, forward = make_engine(num_rows, rng.choice([4, 16, 64]), shares_rows)
    prefixes = [[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 25))] for _ in range(3)]
    live: dict[str, Request] = {}
    finished: list[Request] = []
    salts = {}
    names = itertools.count()
    for _ in range(data.draw(st.integers(5, 60))):
        action = rng.random()
        if action < 0.35:
            session = rng.choice([None, str(next(names))])
            tail = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 6))]
            new = request(rng.choice(prefixes) + tail, rng.randrange(1, 12), session)
            engine.submit(new)
            live[str(id(new))] = new
        elif action < 0.5 and finished:
            former = rng.choice(finished)
            context = [*former.prompt_ids, *former.token_ids, rng.randrange(VOCAB)]
            new = request(context, rng.randrange(1, 8), former.session)
            engine.submit(new)
            live[str(id(new))] = new
        elif action < 0.58 and live:
            engine.cancel(live.pop(rng.choice(sorted(live))))
        elif action < 0.62:
            forward.salt += 1
            engine.weights_changed(engine.version + 1)
            salts[engine.version] = forward.salt
        elif action < 0.68 and finished and finished[-1].session:
            engine.end(finished[-1].session)
        else:
            for done in engine.step():
                del live[str(id(done))]
                finished.append(done)
    remaining = run(engine)
    assert {id(r) for r in remaining} == {id(r) for r in live.values()}
    for done in finished + remaining:
        history = list(done.prompt_ids)
        assert len(done.token_ids) == done.sampling.max_tokens
        for token, version in zip(done.token_ids, done.versions, strict=True):
            assert token == next_token(history, salts.get(version, 0))
            history.append(token)


def test_the_table_finds_common_prefixes():
    from agents.local.slots import SlotTable

    table = SlotTable(4)
    assert table.common_prefix(np.array([1, 2])).tolist() == [0, 0, 0, 0]
    assert table.resize(4, 8) == []
    table.fill(0, [1, 2, 3], 2)
    table.fill(1, [1, 9, 3, 4], 4)
    table.fill(2, [0, 0, 0, 0, 0, 0, 0, 0], 8)
    assert table.common_prefix(np.array([1, 2, 3, 0, 0])).tolist() == [3, 1, 0, 0]
    assert table.common_prefix(np.array([0] * 20)).tolist() == [0, 0, 8, 0]


@pytest.mark.parametrize("shares_rows", [True, False])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_rows_never_have_more_positions_together_than_allowed(shares_rows, data):
    most = data.draw(st.integers(120, 400))
    engine, forward = make_engine(
        6, data.draw(st.sampled_from([8, 64])), shares_rows, 120, max_positions=most
    )
    rng = random.Random(data.draw(st.integers(0, 1000)))
    contexts = {
        name: [rng.randrange(VOCAB) for _ in range(rng.randint(1, 60))] for name in "abcdef"
    }
    for _ in range(3):
        turns = {
            name: request(context, rng.randint(1, 30), rng.choice([name, None]))
            for name, context in contexts.items()
            if len(context) < 110
        }
        for turn in turns.values():
            engine.submit(turn)
        assert len(run(engine)) == len(turns)
        for name, turn in turns.items():
            assert turn.token_ids == expected(turn.prompt_ids, len(turn.token_ids))
            new = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 10))]
            contexts[name] = [*turn.prompt_ids, *turn.token_ids, *new]
    assert forward.largest <= most


def test_requests_wait_until_the_cache_has_room_for_their_longest_completion():
    engine, forward = make_engine(4, max_positions=200)
    for first in range(4):
        engine.submit(request([first] * 20, 80))  # 100 positions at most
    finished = run(engine)
    assert [r.token_ids for r in finished] == [expected(r.prompt_ids, 80) for r in finished]
    assert max(decoding for decoding, _ in forward.batches) == 2
    assert forward.largest <= 200


def test_short_requests_get_their_rows_back_after_a_long_one():
    engine, forward = make_engine(4, max_positions=200)
    engine.submit(request([1] * 20, 170))
    run(engine)
    assert len(forward.rows) == 1
    for first in range(4):
        engine.submit(request([first] * 20, 30))
    run(engine)
    assert len(forward.rows) == 4


def test_the_row_used_last_is_kept_when_rows_are_dropped():
    engine, _ = make_engine(3, max_positions=300)
    turns = {}
    for name in "abc":
        turns[name] = request([ord(name) % VOCAB] * 20, 3, name)
        engine.submit(turns[name])
        run(engine)
    # Rows of 100 positions leave room for three, of 150 for two: one for this request.
    engine.submit(request([9] * 20, 130))
    run(engine)
    assert engine.stats().num_saved_tokens == 0
    engine.submit(request([*turns["c"].prompt_ids, *turns["c"].token_ids, 1], 1, "c"))
    run(engine)
    assert engine.stats().num_saved_tokens == 22


def test_a_cache_is_freed_when_no_episode_needs_it():
    engine, forward = make_engine(is_freed=True)
    forward.reset = lambda: forward.rows.clear()
    for name in "ab":
        engine.submit(request([ord(name) % VOCAB] * 20, 3, name))
    run(engine)
    engine.end("a")
    assert forward.rows
    engine.end("b")
    assert not forward.rows
    forward.capacity = 0
    engine.submit(request([3, 4], 5))
    assert run(engine)[0].token_ids == expected([3, 4], 5)
