"""The memory plan: against arithmetic, against other counts, and against a process."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, GPT2Config, Qwen3Config, masking_utils

import rl.planning.check
from rl.credit.algorithms import ALGORITHMS
from rl.errors import UsageError
from rl.learner.lora import add_adapter
from rl.learner.memory.fused import fuse
from rl.learner.seam import TrainingSpec
from rl.learner.settings import MemoryConfig, OptimizerConfig
from rl.planning.advice import settings_that_fit
from rl.planning.check import check_memory
from rl.planning.learner import episode_cache, learner_memory
from rl.planning.memory import Planner
from rl.policies.local import Local
from rl.settings.lora import NO_LORA, LoraConfig
from rl.settings.parsing.command_line import parse
from rl.settings.train import PRESETS, TrainConfig
from rl.train import main

CPU = torch.device("cpu")
KEEP = MemoryConfig(activation_checkpointing="off")
AGAIN = MemoryConfig(activation_checkpointing="on")
SHAPES = {
    "0.6B": (1024, 3072, 28, 16),
    "4B": (2560, 9728, 36, 32),
    "8B": (4096, 12288, 36, 32),
}
ADAPTER = LoraConfig(rank=16)


def qwen3(size: str, layers: int | None = None, **changes: int) -> Qwen3Config:
    """The published shape, with its own number of layers or another."""
    width, inner, depth, heads = SHAPES[size]
    return Qwen3Config(
        **{
            "vocab_size": 151936,
            "hidden_size": width,
            "intermediate_size": inner,
            "num_hidden_layers": layers or depth,
            "num_attention_heads": heads,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40960,
            "tie_word_embeddings": size != "8B",
            **changes,
        }
    )


def memory_of(config, lora=NO_LORA, memory=KEEP, dtype="bfloat16", algo="grpo", row=1024):
    return learner_memory(config, spec(ALGORITHMS[algo], row, memory), lora, dtype, row=row)


def spec(algorithm, tokens, memory=KEEP, **optimizer):
    return TrainingSpec(algorithm, OptimizerConfig(**optimizer), 1.0, tokens, memory=memory)


def parameters(size: str) -> int:
    """Parameters of Qwen3: layers, last norm, embedding, and the head if it is not tied."""
    width, inner, depth, heads = SHAPES[size]
    attention = 2 * width * heads * 128 + 2 * width * 8 * 128 + 2 * 128
    layer = attention + 3 * width * inner + 2 * width
    tables = 2 if size == "8B" else 1
    return tables * 151936 * width + depth * layer + width


@pytest.mark.parametrize(
    "size",
    [pytest.param(size, marks=[pytest.mark.nightly] if size == "8B" else []) for size in SHAPES],
)
def test_what_stays_in_memory_is_parameters_times_bytes(size):
    found = memory_of(qwen3(size), memory=AGAIN, row=64)
    count = parameters(size)
    assert found.weights == 2 * count
    assert (found.copies, found.gradients) == (4 * count, 4 * count)
    # AdamW has two averages of each weight, and a counter of steps for each tensor.
    assert found.moments == pytest.approx(8 * count, rel=1e-5)
    assert (found.critic, found.reference) == (0, 0)


def saved_by_layers(config: Qwen3Config, lora: LoraConfig, row: int) -> int:
    """Bytes that autograd saves in the trunk: each storage once, without weights."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        if lora.rank:
            add_adapter(model, lora, "", 0)
    saved: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch, FakeTensorMode(allow_non_fake_inputs=True):
        patch.setattr(masking_utils, "find_packed_sequence_indices", lambda ids: None)
        model.to_empty(device="cpu")
        fuse(model)
        own = {p.untyped_storage()._cdata for p in model.parameters()}

        def keep(x):
            storage = x.untyped_storage()
            if storage._cdata not in own:
                saved[storage._cdata] = storage.nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            hidden = model.model(torch.zeros(1, row, dtype=torch.long), use_cache=False)
        del hidden
    return sum(saved.values())


def left_out_by_fused_layers(config: Qwen3Config, lora: LoraConfig) -> int:
    """Bytes for each token and layer that transformers' norms and gated layers would keep as well.

    A norm would keep its input in float32 instead of bfloat16, and the normed input if the weight
    is trained. A gated layer would keep the activated gate.
    """
    heads = config.num_attention_heads + config.num_key_value_heads
    normed = 2 * config.hidden_size + heads * config.head_dim
    return normed * (2 if lora.rank else 4) + 2 * config.intermediate_size


# The last column is an audit's figure for the published depth, in KiB for each token and layer of
# transformers.
@pytest.mark.parametrize(
    ("size", "lora", "audit"),
    [
        ("0.6B", NO_LORA, 70),
        ("4B", NO_LORA, 167),
        ("8B", NO_LORA, None),
        ("0.6B", ADAPTER, None),
        ("4B", ADAPTER, 222),
        ("8B", ADAPTER, None),
    ],
)
def test_activations_agree_with_what_autograd_saves(size, lora, audit):
    row = 2048
    shallow, deep = qwen3(size, 2), qwen3(size, 6)
    planned = memory_of(deep, lora, row=row).activations
    planned -= memory_of(shallow, lora, row=row).activations
    counted = saved_by_layers(deep, lora, row) - saved_by_layers(shallow, lora, row)
    assert planned == pytest.approx(counted, rel=0.05)
    if audit is not None:
        expected = audit * 1024 - left_out_by_fused_layers(deep, lora)
        assert planned / 4 / row == pytest.approx(expected, rel=0.05)


def test_a_checkpointed_layer_keeps_its_input():
    shallow, deep = (memory_of(qwen3("0.6B", n), memory=AGAIN, row=2048) for n in (2, 6))
    # One bfloat16 vector of 1,024 numbers a token and layer.
    assert deep.activations - shallow.activations == pytest.approx(4 * 2048 * 1024 * 2, rel=0.05)


def test_averages_of_8_bits_and_inputs_on_the_host():
    config = qwen3("0.6B", 4, vocab_size=30000)

    def of(mode, bits=32):
        memory = MemoryConfig(activation_checkpointing=mode)
        training = spec(ALGORITHMS["grpo"], 1024, memory, state_bits=bits)
        return learner_memory(config, training, NO_LORA, "bfloat16", row=1024)

    on = of("on")
    # The model reads all tokens but the last.
    assert on.activations - of("offload").activations == 4 * 1023 * 1024 * 2
    if importlib.util.find_spec("bitsandbytes") is not None:
        # 2 bytes a weight and 8 for each 256 weights, instead of 8 bytes a weight.
        assert of("on", bits=8).moments == pytest.approx(on.moments * 0.25390625, rel=1e-3)


@pytest.mark.parametrize(("bits", "stored"), [(4, 0.5), (8, 1)])
def test_a_quantised_base_is_smaller_by_the_bits_of_its_linear_layers(bits, stored):
    pytest.importorskip("bitsandbytes")
    width, inner, _, heads = SHAPES["4B"]
    depth = 2
    linear = depth * (2 * width * heads * 128 + 2 * width * 8 * 128 + 3 * width * inner)
    full, small = (
        memory_of(
            qwen3("4B", depth, vocab_size=1024), replace(ADAPTER, base_bits=b), memory=AGAIN, row=64
        )
        for b in (0, bits)
    )
    # Instead of two bytes: the stored ones, a float32 scale for each 64 weights, and the tables.
    tables = 256 * 4 * 7 * depth if bits == 8 else 0
    saved = full.weights - small.weights
    assert saved == linear * (2 - stored - 4 / 64) - tables
    if bits == 4:
        # 4.86 GiB of all 36 layers.
        assert 36 / depth * saved == pytest.approx(4.864 * 2**30, rel=1e-3)
    assert (full.copies, full.moments, full.gradients) == (
        *(small.copies, small.moments, small.gradients),
    )


def planned(algorithm, lora=NO_LORA):
    config = qwen3("0.6B", 2, vocab_size=1024)
    return learner_memory(config, spec(algorithm, 64), lora, "float32", row=64)


def test_the_critic_is_a_head_or_a_trunk_with_a_head():
    ppo = ALGORITHMS["ppo"]
    head = 4 * (1024 + 1)
    assert planned(ppo).critic == head
    # The model's head is the embedding here, so the trunk has all of its weights.
    own = planned(ppo.changed({"value.critic": "model"}))
    assert own.critic == own.weights + head


def test_the_reference_is_a_copy_unless_the_adapter_can_be_disabled():
    algorithm = ALGORITHMS["grpo"].changed({"kl.coef": 0.1})
    full, adapted = planned(algorithm), planned(algorithm, ADAPTER)
    assert (full.reference, full.copies) == (full.weights, 0)
    assert adapted.reference == 0


def test_the_cache_of_an_episode():
    # Keys and values: 2 x 28 layers x 8 heads x 128 numbers of two bytes a token.
    assert episode_cache(qwen3("0.6B"), "bfloat16", 512) == 512 * 2 * 28 * 8 * 128 * 2
    gpt2 = GPT2Config(n_layer=3, n_embd=96, n_head=4, vocab_size=300)
    assert episode_cache(gpt2, "float32", 100) == 100 * 2 * 3 * 96 * 4


@pytest.fixture
def folder(tmp_path):
    qwen3("0.6B", 4, vocab_size=30000).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def config_of(folder, *words: str) -> TrainConfig:
    given = ["env=countdown", f"model={folder}", *words]
    return parse(TrainConfig, given, command="rl.train", presets=PRESETS)


def test_settings_that_fit_do_fit(folder):
    given = ["plan.gpu_gb=6", "context_length=4096", "policy.cache_gb=5"]
    config = config_of(folder, *given)
    planner = Planner(config)
    before = planner.plan(config)
    # 64 slots x 4,096 tokens x 16 KiB are less than 5 GiB. An update needs no cache.
    assert (before.generate["policy"], before.learn["policy"]) == (64 * 4096 * 16 * 1024, 0)
    assert not before.fits
    words = settings_that_fit(planner, config).split()
    assert [word.split("=")[0] for word in words] == ["policy.cache_gb"]
    after = config_of(folder, *given, *words)
    assert planner.plan(after).fits
    settings = after.policy.settings
    larger = replace(after.policy, settings=replace(settings, cache_gb=settings.cache_gb + 0.1))
    assert not planner.plan(replace(after, policy=larger)).fits


def test_the_cache_has_a_share_of_the_gpu_or_one_episode_by_default(folder):
    words = ("plan.gpu_gb=10", "context_length=1024")
    config = config_of(folder, *words, "sampling.slots=1024")
    planner, episode = Planner(config), 1024 * 16 * 1024
    plan = planner.plan(config)
    assert plan.generate["policy"] == int(0.3 * 10 * 2**30) < 1024 * episode
    few = config_of(folder, *words, "sampling.slots=8")
    assert planner.plan(few).generate["policy"] == 8 * episode
    ahead = config_of(folder, *words, "sampling.slots=8", "staleness=1")
    plan = planner.plan(ahead)
    assert plan.learn["policy"] == plan.generate["policy"] == 8 * episode + plan.learn["weights"]
    assert Local().cache_bytes(10 * episode, 4 * episode) == 4 * episode
    assert Local().cache_bytes(0, episode) is None
    assert Local(cache_gb=2).cache_bytes(0, episode) == 2 << 30


def test_the_default_of_a_model_of_06b_fits_into_24_gib(tmp_path):
    """The whole window of 40,960 tokens fits too (16.2 GiB); counting it takes a minute."""
    qwen3("0.6B", max_position_embeddings=1024).save_pretrained(tmp_path)
    config = config_of(tmp_path, "plan.gpu_gb=24")
    assert (config.policy.name, config.dtype, config.device) == ("local", "auto", "auto")
    planner = Planner(config)
    plan = planner.plan(config)
    assert plan.fits
    assert plan.learn["weights"] == 2 * parameters("0.6B"), "in bfloat16"
    # 64 slots x 1,024 tokens x 112 KiB are 7 GiB, just below 30%.
    assert plan.generate["policy"] == 64 * 1024 * 112 * 1024 < int(0.3 * 24 * 2**30)


def test_a_run_that_cannot_fit_is_refused_before_anything_is_loaded(folder, tmp_path, capfd):
    # The folder has no weights, so loading them would fail with another error.
    words = ["env=countdown", f"model={folder}", f"out={tmp_path / 'run'}", "policy.cache_gb=4"]
    assert main([*words, "plan.gpu_gb=4", "context_length=1024", "sampling.slots=256"]) == 1
    (line,) = [x for x in capfd.readouterr().err.splitlines() if x.startswith("error:")]
    assert "the run needs" in line
    assert "of a GPU of 4 GiB" in line
    assert "give policy.cache_gb=" in line
    assert not (tmp_path / "run").exists()


def test_long_episodes_that_nothing_promises_are_a_warning(folder):
    lines: list[str] = []
    words = ("plan.gpu_gb=5", "sampling.slots=16")
    check_memory(config_of(folder, *words), lines.append)
    (line,) = lines
    assert "if episodes have 40960 tokens" in line
    with pytest.raises(UsageError, match="if episodes have 40960 tokens"):
        check_memory(config_of(folder, *words, "context_length=40960"), lines.append)


def test_a_dry_run_shows_the_plan_beside_the_settings(folder, capfd):
    words = ["env=countdown", f"model={folder}", "plan.gpu_gb=80", "context_length=512"]
    assert main([*words, "--dry-run"]) == 0
    shown = capfd.readouterr()
    assert "plan.gpu_gb=80.0\n" in shown.out
    assert "memory plan" not in shown.out
    lines = shown.err.splitlines()
    assert lines[0] == "memory plan for a GPU of 80 GiB, rows of up to 512 tokens"
    assert lines[-1] == "fits"
    (weights,) = [line.split() for line in lines if line.startswith("weights")]
    assert weights == ["weights", "0.2", "GiB", "0.2", "GiB"]


def test_a_dry_run_without_a_model_says_why_it_has_no_plan(tmp_path, capfd):
    assert main(["env=countdown", "model=tiny", "--dry-run"]) == 0
    assert capfd.readouterr().err == ""
    (tmp_path / "config.json").write_text('{"model_type": "no_such_type"}')
    assert main(["env=countdown", f"model={tmp_path}", "--dry-run"]) == 0
    assert capfd.readouterr().err.startswith("no memory plan: model (")


def test_settings_without_a_plan_fail_later_with_their_own_error(folder, capfd):
    words = ["env=countdown", f"model={folder}", "plan.gpu_gb=80", "context_length=512"]
    assert main([*words, "lora.rank=8", "lora.targets=foo", "--dry-run"]) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("no memory plan: ")
    assert "foo" in line
    lines: list[str] = []
    check_memory(config_of(folder, *words[2:], "lora.rank=8", "lora.targets=foo"), lines.append)
    assert lines == [line]


def test_the_plan_asks_for_the_device_after_its_sums_are_made_repeatable(folder, monkeypatch):
    order = []
    monkeypatch.setattr(rl.planning.check, "fix_workspace", lambda c: order.append("workspace"))
    monkeypatch.setattr(rl.planning.check, "device_of", lambda c: order.append("device") or CPU)
    check_memory(config_of(folder, "deterministic=true"), order.append)
    assert order == ["workspace", "device"]


def test_a_model_in_the_home_folder_is_found(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert Planner(config_of("~/model", "plan.gpu_gb=24")).model.num_hidden_layers == 4


UPDATE = """
    import ctypes, sys, threading
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from agents.segment import Segment
    from rl.credit.algorithms import ALGORITHMS
    from rl.learner.seam import TrainingSpec
    from rl.learner.settings import MemoryConfig, OptimizerConfig
    from rl.learner.updater import Updater
    from rl.planning.learner import learner_memory
    from rl.settings.lora import NO_LORA

    # Freed memory goes back to the system at once, so that the peak counts none of it:
    # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of mallopt(3).
    for option in (-3, -1):
        assert ctypes.CDLL(None).mallopt(option, 65536)
    torch.set_num_threads(1)
    memory, optimizer = MemoryConfig(activation_checkpointing=sys.argv[1]), OptimizerConfig()

    def anonymous():
        # Resident, in bytes. Not the pages of libraries: these leave and return as the
        # kernel likes, and its own record of the peak (ru_maxrss) counts them.
        lines = dict(line.split(":") for line in open("/proc/self/status"))
        return int(lines["RssAnon"].split()[0]) * 1024

    def watch(done, seen):
        while not done.wait(0.001):
            seen.append(anonymous())

    def shape(width, layers, vocab):
        return Qwen3Config(
            vocab_size=vocab, hidden_size=width, intermediate_size=3 * width,
            num_hidden_layers=layers, num_attention_heads=8, num_key_value_heads=4,
            head_dim=64, max_position_embeddings=4096,
        )

    def two_updates(config, row):
        text = Segment(
            token_ids=[i % config.vocab_size for i in range(row)],
            loss_mask=[0] + [1] * (row - 1), sampling_logprobs=[0.0] * row,
            versions=[0] * row, turn_ids=[0] * row,
        )
        model = Qwen3ForCausalLM(config).eval()
        learner = Updater(model, ALGORITHMS["grpo"], optimizer, memory=memory,
            max_tokens_per_micro_batch=row)
        for _ in range(2):
            learner.supervised_update([text] * 2)

    large = shape(768, 6, 2048)
    training = TrainingSpec(ALGORITHMS["grpo"], optimizer, 1.0, 2048, memory=memory)
    plan = learner_memory(large, training, NO_LORA, "float32", row=2048)
    # The libraries' code and buffers are in memory before the measurement.
    two_updates(shape(64, 1, 64), 8)
    before, done, seen = anonymous(), threading.Event(), []
    watcher = threading.Thread(target=watch, args=(done, seen), daemon=True)
    watcher.start()
    two_updates(large, 2048)
    done.set()
    watcher.join()
    print((max(seen) - before) / plan.peak)
"""


@pytest.mark.parametrize("checkpointing", ["off", pytest.param("on", marks=pytest.mark.nightly)])
def test_the_plan_agrees_with_the_peak_of_a_process(checkpointing):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(UPDATE), checkpointing],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert float(done.stdout) == pytest.approx(1, abs=0.1)
