"""Deltas of published weights: the new file comes out of the old one, bit by bit, or not at all."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from rl.cluster.deltas import Delta, applied, delta_of


def rebuilt(old: bytes, new: bytes) -> bytes | None:
    delta = delta_of(old, new)
    return None if delta is None else applied(old, delta)


@given(st.binary(max_size=64).map(lambda x: x * 8), st.data())
def test_a_few_changes_give_the_new_file(old, data):
    words = np.frombuffer(old, np.uint16).copy()
    places = data.draw(st.sets(st.integers(0, max(0, len(words) - 1)), max_size=len(words) // 5))
    for place in places if len(words) else ():
        words[place] ^= data.draw(st.integers(1, 2**16 - 1))
    new = words.tobytes()
    delta = delta_of(old, new)
    assert delta is not None
    assert len(delta.words) == (len(places) if len(words) else 0)
    assert applied(old, delta) == new


@pytest.mark.parametrize(
    "places", [[0], [65_534], [65_535], [65_536], [131_070], [399_999], [5, 250_000, 250_001]]
)
def test_changes_far_from_each_other(places):
    old = np.arange(400_000).astype(np.uint16)
    new = old.copy()
    new[places] ^= 0x8001
    delta = delta_of(old.tobytes(), new.tobytes())
    assert len(delta.words) <= len(places) + 7
    assert applied(old.tobytes(), delta) == new.tobytes()


def test_many_changes_and_other_sizes_have_no_delta():
    old = np.zeros(1000, np.uint16)
    assert delta_of(old.tobytes(), (old + 1).tobytes()) is None
    some = old.copy()
    some[:251] = 1
    assert delta_of(old.tobytes(), some.tobytes()) is None
    some[250] = 0
    assert rebuilt(old.tobytes(), some.tobytes()) == some.tobytes()
    assert delta_of(old.tobytes(), old[:-1].tobytes()) is None
    assert delta_of(b"abc", b"abd") is None


def test_another_former_version_is_noticed():
    old = np.arange(1000, dtype=np.uint16)
    new = old.copy()
    new[7] = 0
    delta = delta_of(old.tobytes(), new.tobytes())
    other = old.copy()
    other[9] = 0
    assert applied(other.tobytes(), delta) is None
    assert applied(old[:5].tobytes(), delta) is None
    assert applied(b"abc", delta) is None
    assert applied(new.tobytes(), Delta(delta.gaps, delta.words, "0")) is None


def test_a_small_step_changes_few_bfloat16_weights_and_most_float32_ones():
    generator = torch.Generator().manual_seed(0)
    weights = 0.02 * torch.randn(100_000, generator=generator)
    moved = weights + 1e-6 * torch.randn(100_000, generator=generator).sign()
    files = {
        dtype: [save({"w": x.to(dtype)}) for x in (weights, moved)]
        for dtype in (torch.bfloat16, torch.float32)
    }
    assert delta_of(*files[torch.float32]) is None
    old, new = files[torch.bfloat16]
    assert len(delta_of(old, new).words) < 0.1 * 100_000
    assert rebuilt(old, new) == new
