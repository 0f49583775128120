"""What a runtime makes of its settings."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import AutoTokenizer

from agents.completion import FinishReason, SamplingParams
from rl.errors import UsageError
from rl.runtime.runtime import open_runtime
from rl.settings.evaluate import EvaluateConfig
from rl.settings.parsing.command_line import parse
from rl.settings.train import PRESETS, TrainConfig


async def test_threads_reach_the_policy(toy_model, monkeypatch):
    monkeypatch.setattr("agents.local.policy._PARALLEL_FROM", 0)
    words = ["env=toy-copy", f"model={toy_model}", "threads=2"]
    config = parse(EvaluateConfig, words, command="rl.eval", presets=PRESETS)
    before = torch.get_num_threads()
    try:
        async with open_runtime(config, lambda text: None) as runtime:
            assert runtime.policy._worker.call(torch.get_num_threads) == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2])
async def test_a_run_on_a_busy_machine_reports_it_before_the_model_is_loaded(
    tmp_path, monkeypatch, threads
):
    monkeypatch.setattr("os.getloadavg", lambda: (1e6, 0.0, 0.0))
    config = _config(f"model={tmp_path}", f"threads={threads}", f"out={tmp_path}")
    lines = []
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(UsageError):
        async with open_runtime(config, lines.append):
            pass
    assert ["try threads=1" in line for line in lines] == [True] * (threads > 1)


def _config(*words):
    return parse(TrainConfig, ["env=toy-copy", *words], command="rl.train", presets=PRESETS)


async def test_policy_and_learner_share_the_one_thread_that_uses_several_cores(toy_model, tmp_path):
    config = _config(f"model={toy_model}", "threads=2", f"out={tmp_path}")
    before = torch.get_num_threads()
    try:
        async with open_runtime(config, lambda text: None) as runtime:
            computes = await runtime.thread.do(threading.get_ident)
            assert runtime.policy._worker.call(threading.get_ident) == computes
            assert computes != threading.get_ident()
            # The team of another thread would slow both down.
            assert torch.get_num_threads() == 1
            with ThreadPoolExecutor(1) as other:
                assert other.submit(torch.get_num_threads).result() == 1
            assert await runtime.thread.do(torch.is_inference_mode_enabled) is False
            assert await runtime.thread.do(torch.is_grad_enabled)
    finally:
        torch.set_num_threads(before)


async def test_a_policy_that_goes_on_while_the_learner_trains_shares_the_cores(toy_model, tmp_path):
    config = _config(f"model={toy_model}", "threads=3", "staleness=1", f"out={tmp_path}")
    before = torch.get_num_threads()
    try:
        async with open_runtime(config, lambda text: None, own_weights=True) as runtime:
            computes = await runtime.thread.do(threading.get_ident)
            assert runtime.policy._worker.call(threading.get_ident) != computes
            assert await runtime.thread.do(torch.get_num_threads) == 2
            assert runtime.policy._worker.call(torch.get_num_threads) == 1
    finally:
        torch.set_num_threads(before)


def test_by_default_there_are_as_many_threads_as_cores(monkeypatch):
    monkeypatch.setattr("rl.settings.run.usable_cores", lambda: 5)
    assert _config().num_threads == 5
    assert _config("threads=2").num_threads == 2


async def test_a_turn_ends_at_every_token_that_the_models_generation_config_names(
    toy_model, tmp_path
):
    folder = shutil.copytree(toy_model, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    further = tokenizer.convert_tokens_to_ids("0")
    settings = json.loads((folder / "generation_config.json").read_text())
    settings["eos_token_id"] = [tokenizer.eos_token_id, further]
    (folder / "generation_config.json").write_text(json.dumps(settings))
    words = ["env=toy-copy", f"model={folder}"]
    config = parse(EvaluateConfig, words, command="rl.eval", presets=PRESETS)
    async with open_runtime(config, lambda text: None) as runtime:
        renderer = runtime.renderer
        assert renderer.end_token_ids == (tokenizer.eos_token_id, further)
        sampling = SamplingParams(
            max_tokens=8, temperature=0.0, stop_token_ids=renderer.end_token_ids
        )
        prompt = renderer.start([{"role": "user", "content": "0"}])
        completion = await runtime.policy.generate(prompt, sampling)
        assert completion.finish_reason is FinishReason.STOP_TOKEN
        assert completion.token_ids == (further,)
        assert renderer.text(completion.token_ids) == ""
