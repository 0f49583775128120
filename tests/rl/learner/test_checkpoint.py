import copy
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from rl.credit.algorithms import ALGORITHMS
from rl.errors import RunFailure
from rl.learner import checkpoint
from rl.learner.checkpoint import load_trainer_state, recover, save_checkpoint
from rl.learner.model import load_model
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater

GRPO, PPO = ALGORITHMS["grpo"], ALGORITHMS["ppo"]
CONFIG = OptimizerConfig(lr=1e-2, warmup_steps=3)


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    inner = Tokenizer(models.WordLevel({"<eos>": 0, "turn": 1, "wise": 2}, unk_token="<eos>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>")


def test_the_layout_is_that_of_hugging_face(make_model, tmp_path):
    model = make_model()
    folder = tmp_path / "checkpoints" / "step-7"
    save_checkpoint(folder, model, tokenizer(), {"step": 7})
    files = {path.name for path in folder.iterdir()}
    assert {
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "trainer_state.pt",
    } <= files
    assert [path.name for path in folder.parent.iterdir()] == ["step-7"]
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight)
    assert AutoTokenizer.from_pretrained(folder)("wise turn").input_ids == [2, 1]
    assert load_trainer_state(folder) == {"step": 7}


def test_a_folder_is_replaced(make_model, tmp_path):
    folder = tmp_path / "last"
    for step in (1, 2):
        save_checkpoint(folder, make_model(seed=step), trainer_state={"step": step})
    assert load_trainer_state(folder) == {"step": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def full(*args):
    raise OSError(28, "No space left on device")


def test_an_interrupted_save_leaves_the_old_one(make_model, tmp_path, monkeypatch):
    folder = tmp_path / "last"
    save_checkpoint(folder, make_model(), trainer_state={"step": 1})

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint.torch, "save", full)
        with pytest.raises(RunFailure, match=r"^checkpoint .*/last cannot be written: .*No space"):
            save_checkpoint(folder, make_model(seed=1), trainer_state={"step": 2})
    assert load_trainer_state(folder) == {"step": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["last"], "nothing fills the disk"
    save_checkpoint(folder, make_model(seed=1), trainer_state={"step": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_leftovers_of_a_dead_process_are_removed(make_model, tmp_path):
    for name in (".last.tmp", ".last.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half.safetensors").write_bytes(b"x")
    for step in (1, 2):
        save_checkpoint(tmp_path / "last", make_model(), trainer_state={"step": step})
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
    assert not (tmp_path / "last" / "half.safetensors").exists()


def test_a_process_that_dies_between_the_two_renames_loses_nothing(
    make_model, tmp_path, monkeypatch
):
    folder, previous = tmp_path / "last", tmp_path / ".last.old"
    save_checkpoint(folder, make_model(), trainer_state={"step": 1})
    folder.rename(previous)
    (tmp_path / ".last.tmp").mkdir()
    recover(folder)
    assert load_trainer_state(folder) == {"step": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
    recover(folder)
    assert load_trainer_state(folder) == {"step": 1}

    folder.rename(previous)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint.torch, "save", full)
        with pytest.raises(RunFailure, match="cannot be written"):
            save_checkpoint(folder, make_model(), trainer_state={"step": 2})
    assert load_trainer_state(folder) == {"step": 1}, "it is given back before anything else"


def test_a_damaged_state_names_its_file(make_model, tmp_path):
    save_checkpoint(tmp_path / "last", make_model(), trainer_state={"step": 1})
    path = tmp_path / "last" / "trainer_state.pt"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"nothing"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"last/trainer_state.pt cannot be read: "):
            load_trainer_state(tmp_path / "last")


def test_everything_is_on_the_disk_before_it_has_its_name(make_model, tmp_path, monkeypatch):
    folder = tmp_path / "last"
    flushed = []
    fsync = os.fsync

    def watched(descriptor):
        flushed.append((str(Path(f"/proc/self/fd/{descriptor}").readlink()), folder.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    save_checkpoint(folder, make_model(), trainer_state={})
    before = {path.rsplit("/", 1)[-1] for path, named in flushed if not named}
    assert {path.name for path in folder.iterdir()} | {".last.tmp"} == before
    assert flushed[-1] == (str(tmp_path), True)


def test_a_folder_without_trainer_state(make_model, tmp_path):
    save_checkpoint(tmp_path / "plain", make_model())
    with pytest.raises(ValueError, match=r"plain\) has no trainer_state.pt: give a folder"):
        load_trainer_state(tmp_path / "plain")


def test_a_checkpoint_cannot_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.system, ("true",))

    torch.save({"x": Evil()}, tmp_path / "trainer_state.pt")
    with pytest.raises(Exception, match="Weights only load failed"):
        load_trainer_state(tmp_path)


@pytest.mark.parametrize(
    "row",
    [
        replace(GRPO, epochs=2, minibatches=2),
        GRPO.changed({"kl.coef": 0.1}),
        PPO.changed({"kl.coef": 0.05, "minibatches": 3, "epochs": 2}),
    ],
    ids=["grpo", "grpo with kl", "ppo"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_is_the_same_bit_for_bit(make_model, groups, tmp_path, row, dtype):
    learner = Updater(make_model(dtype=dtype), row, CONFIG).seeded(3)
    for _ in range(2):
        learner.update(groups)
    save_checkpoint(
        tmp_path / "c", learner.model.model, trainer_state={"learner": learner.state_dict()}
    )
    uninterrupted = [learner.update(groups) for _ in range(3)]

    resumed = Updater(load_model(tmp_path / "c", dtype=dtype), row, CONFIG).seeded(99)
    resumed.load_state_dict(load_trainer_state(tmp_path / "c")["learner"])
    assert [resumed.update(groups) for _ in range(3)] == uninterrupted
    assert resumed.num_updates == 5
    for one, other in zip(learner.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("saved", "resumed", "message"),
    [
        (GRPO, PPO, "no value_head"),
        (PPO, GRPO, "a value_head"),
        (GRPO.changed({"kl.coef": 0.1}), GRPO, "a reference"),
    ],
)
def test_a_state_of_another_algorithm_is_refused(make_model, saved, resumed, message):
    state = copy.deepcopy(Updater(make_model(), saved, CONFIG).state_dict())
    with pytest.raises(ValueError, match=f"the saved learner has {message}"):
        Updater(make_model(), resumed, CONFIG).load_state_dict(state)
