"""``model=tiny``: made once from an environment's own text, and cached by what it depends on."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agents.renderer import Renderer
from envs.code.env import CodeSandboxOptions
from envs.env import EnvOptions
from envs.math.env import MathOptions
from rl.data.conversations import Conversation, Exchange
from rl.errors import RunFailure, UsageError
from rl.runtime.tiny import (
    SPECIAL_TOKENS,
    _key,
    _to_learn,
    cache_folder,
    make_tiny,
    new_model,
    train_tokenizer,
)
from rl.settings.groups import TinyRecipe

RECIPE = TinyRecipe(
    vocab_size=261,
    hidden_size=16,
    intermediate_size=16,
    num_layers=1,
    num_heads=2,
    context_length=48,
    demonstrations=8,
    steps=3,
    batch_size=4,
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))


async def make(reported=None, *, seed=0, max_turns=1, recipe=RECIPE):
    options = EnvOptions(max_turns=max_turns)
    report = (reported if reported is not None else []).append
    return await make_tiny("toy-copy-v0", options, {}, seed=seed, recipe=recipe, report=report)


async def test_it_is_made_once(tmp_path):
    reported = []
    folder = await make(reported)
    assert folder.parent == tmp_path / "cache" / "tiny" == cache_folder()
    assert reported[0] == "model=tiny: 8 demonstrations by the environment's imperfect author"
    assert "3 supervised steps, loss " in reported[1]
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.max_position_embeddings == 48
    assert model.config.eos_token_id == tokenizer.eos_token_id == tokenizer.encode("<|end|>")[0]
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert await make(reported) == folder
    assert reported[2:] == [f"model=tiny: warm start found in {folder}"]
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert [p.name for p in folder.parent.iterdir()] == [folder.name], "nothing half-made is left"


async def test_whatever_it_depends_on_makes_another(tmp_path):
    folders = {
        await make(),
        await make(seed=1),
        await make(max_turns=2),
        await make(recipe=dataclasses.replace(RECIPE, steps=2)),
    }
    assert len(folders) == 4


@pytest.mark.parametrize("named", ["tasks.jsonl", "folder"])
def test_the_data_that_an_option_names_makes_another(tmp_path, named):
    file = tmp_path / named / "a.jsonl" if named == "folder" else tmp_path / named
    file.parent.mkdir(exist_ok=True)

    def key():
        options = CodeSandboxOptions(tasks=str(tmp_path / named))
        return _key("code-sandbox-v0", options, 0, RECIPE)

    file.write_text("{}\n")
    first = key()
    assert key() == first
    file.write_text("[]\n")
    assert key() != first


def test_rows_given_in_python_are_no_path():
    def key(count):
        rows = [{"question": f"What is {i} + 3?", "answer": i + 3} for i in range(count)]
        return _key("math-v0", MathOptions(tasks=rows), 0, RECIPE)

    assert key(200) == key(200) != key(201)


def test_an_option_that_names_no_data_reads_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = _key("code-sandbox-v0", CodeSandboxOptions(), 0, RECIPE)
    for split in ("train", "."):
        (tmp_path / split).mkdir(exist_ok=True)
        (tmp_path / split / "a.jsonl").touch()
    assert _key("code-sandbox-v0", CodeSandboxOptions(), 0, RECIPE) == first


async def test_a_demonstration_longer_than_the_window_is_refused():
    with pytest.raises(UsageError, match=r"^conversation 1 of 8 has \d+ tokens, more than"):
        await make(recipe=dataclasses.replace(RECIPE, context_length=3))


async def test_a_cache_that_cannot_be_written_is_noticed_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "file"))
    reported = []
    with pytest.raises(RunFailure, match=r"file/tiny cannot be written: "):
        await make(reported)
    assert reported == []


async def test_two_that_make_the_same_at_once_agree():
    first, second = await asyncio.gather(make(), make())
    assert first == second
    assert (first / "config.json").is_file()
    assert [p.name for p in first.parent.iterdir()] == [first.name]


def test_every_digit_is_a_token_and_texts_come_back_whole():
    text = "12345 x 67 = ?\n ü€𝄞 <|user|>"
    tokenizer = train_tokenizer([Conversation((Exchange("12345 " * 9, "12345"),))], 300)
    ids = tokenizer.encode("12345", add_special_tokens=False)
    assert len(ids) == 5
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    names = tokenizer.convert_ids_to_tokens(range(len(SPECIAL_TOKENS)))
    assert tuple(names) == SPECIAL_TOKENS
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|pad|>", "<|end|>")


def test_the_seed_decides_the_weights_and_the_global_generator_is_left_alone():
    tokenizer = train_tokenizer([Conversation((Exchange("a", "b"),))], 261)
    before = torch.random.get_rng_state()
    first, second, third = (new_model(tokenizer, RECIPE, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    weight = "model.embed_tokens.weight"
    states = [m.state_dict()[weight] for m in (first, second, third)]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_weights_start_at_the_scale_of_their_width():
    tokenizer = train_tokenizer([Conversation((Exchange("a", "b"),))], 261)
    model = new_model(tokenizer, dataclasses.replace(RECIPE, hidden_size=64), 0)
    assert abs(model.model.embed_tokens.weight.std().item() - 1 / 8) < 0.005
    assert abs(model.model.layers[0].mlp.up_proj.weight.std().item() - 1 / 8) < 0.015


def test_one_in_five_demonstrations_is_learned_whole():
    conversations = [Conversation((Exchange(f"what is {i}?", f"{i}!"),)) for i in range(11)]
    tokenizer = train_tokenizer(conversations, 261)
    segments = _to_learn(conversations, Renderer(tokenizer))
    for place, segment in enumerate(segments):
        learned = [t for t, m in zip(segment.token_ids, segment.loss_mask, strict=True) if m]
        if place % 5 == 0:
            assert learned == list(segment.token_ids[1:])
        else:
            assert tokenizer.decode(learned) == f"{place}!<|end|>"
