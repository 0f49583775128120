"""Runs that imitate texts beside their episodes, and what algorithms ask of rewards."""

from __future__ import annotations

import json

import pytest

from rl.run.folder import read_jsonl
from rl.train import main


def test_a_run_imitates_texts_beside_its_episodes(words, tmp_path):
    """Texts that no episode contains are learned; a resumed run continues with the texts."""
    out, data = tmp_path / "run", tmp_path / "texts.jsonl"
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "ok"}]
    data.write_text(json.dumps({"messages": said}) + "\n")
    settings = {"algo__ptx_coef": 1.0, "texts__data": data, "texts__batch_size": 2}
    assert main(words(out, steps=4, **settings)) == 0
    assert main(words(out, steps=12, resume="auto", **settings)) == 0
    losses = [r["ptx_loss"] for r in read_jsonl(out / "metrics.jsonl") if "reward" in r]
    assert len(losses) == 12 and losses[-1] < 0.5 * losses[0]


@pytest.mark.quick
def test_rewards_below_zero_are_no_share_of_successes(words, tmp_path, capfd):
    out = tmp_path / "run"
    code = main(words(out, algo="maxrl", shaping="overlong(max_length=2, cache=1)"))
    assert code == 1
    assert (
        "algo.advantage=group-outcome divides by a mean: rewards must be >= 0"
        in (capfd.readouterr().err.splitlines()[-1])
    )
