"""What a stage makes of its settings."""

from __future__ import annotations

import torch

from rl.cli import parse
from rl.config import PRESETS, EvaluateConfig
from rl.stage import open_stage


async def test_threads_reach_the_policy(toy_model):
    words = ["env=toy-copy", f"model={toy_model}", "threads=2"]
    config = parse(EvaluateConfig, words, command="rl.eval", presets=PRESETS)
    before = torch.get_num_threads()
    try:
        async with open_stage(config, lambda text: None) as stage:
            assert stage.policy._worker.call(torch.get_num_threads) == 2
    finally:
        torch.set_num_threads(before)
