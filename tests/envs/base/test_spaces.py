"""Texts in Gymnasium's vectors: what asynchronous ones show is what synchronous ones show."""

from __future__ import annotations

import copy

import gymnasium
import pytest
from gymnasium.vector.utils import (
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)

import envs
from envs.base.spaces import SHARED_BYTES, Unicode

SEARCH = "<think> </think> <search> drink of Vabo </search>"


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_asynchronous_vectors_play_as_synchronous_ones(shared):
    assert "search-qa-v0" in envs.ids()
    plain = gymnasium.make_vec("turnwise/search-qa-v0", num_envs=2, vectorization_mode="sync")
    # Its loop thread runs before the other's processes are forked.
    plain.reset(seed=0)
    plain.step((SEARCH, SEARCH))
    forked = gymnasium.make_vec(
        "turnwise/search-qa-v0",
        num_envs=2,
        vectorization_mode="async",
        vector_kwargs={"shared_memory": shared},
    )
    try:
        forked.reset_async(seed=3)
        first, _ = forked.reset_wait(timeout=120)
        assert (first, plain.reset(seed=3)[0]) == (plain.reset(seed=3)[0],) * 2
        for actions in ((SEARCH, SEARCH), (SEARCH, "done")):
            forked.step_async(actions)
            shown, reward, ended, cut, _ = forked.step_wait(timeout=120)
            wanted = plain.step(actions)
            assert shown == wanted[0] and (reward == wanted[1]).all()
            assert (ended == wanted[2]).all() and (cut == wanted[3]).all()
    finally:
        forked.close(terminate=True)
        plain.close()


def test_texts_in_shared_memory():
    space = Unicode()
    memory = create_shared_memory(space, n=3)
    texts = read_from_shared_memory(space, memory, n=3)
    assert tuple(texts) == ("", "", "")
    written = ("Zürich \N{SNOWMAN}\0", "\ud800", "x" * 5000)
    for place, text in enumerate(written):
        write_to_shared_memory(space, place, text, memory)
    assert copy.deepcopy(texts) == written
    assert (texts[1], texts[-1], texts[:2], len(texts)) == ("\ud800", written[2], written[:2], 3)
    write_to_shared_memory(space, 2, "short", memory)
    assert texts[2] == "short"
    with pytest.raises(ValueError, match="shared_memory"):
        write_to_shared_memory(space, 0, "x" * SHARED_BYTES, memory)
    assert texts[0] == written[0]
