"""best@k of ``rl.eval`` with a reward model that ``rl.reward_model`` trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rl.eval
import rl.reward_model


def test_a_trained_reward_model_chooses_better_episodes(toy_model, tmp_path, capfd):
    rows = [
        {"prompt": right, "chosen": right, "rejected": wrong}
        for right in "012"
        for wrong in "012"
        if wrong != right
    ]
    data = tmp_path / "preferences.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows * 8))
    words = [f"model={toy_model}", f"data={data}", f"out={tmp_path}/rm", "steps=150"]
    words += ["optimizer.lr=5e-3", "batch_size=12", "held_out=0.1"]
    assert rl.reward_model.main(words) == 0
    trained = Path(json.loads(capfd.readouterr().out)["model"])
    words = ["env=toy-copy", f"model={toy_model}", "tasks=24", "episodes=4", "json=true"]
    words += ["sampling.max_tokens=3", f"reward_model={trained}", f"out={tmp_path}/out"]
    assert rl.eval.main(words) == 0
    result = json.loads(capfd.readouterr().out)
    # One of one episode is any episode.
    assert result["best@1"] == pytest.approx(result["pass@1"])
    # The model knows which answer is right: best@4 comes close to pass@4.
    assert result["pass@1"] + 0.1 < result["best@4"] <= result["pass@4"] + 1e-9
    assert result["best@4/low"] < result["best@4"] <= result["best@4/high"]
    # All episodes are there: the other choice of k plays nothing, and scores the same episodes.
    assert rl.eval.main([*words, "k=4"]) == 0
    out, err = capfd.readouterr()
    assert "already" in err
    assert json.loads(out)["best@4"] == pytest.approx(result["best@4"])
