"""The reward model's folder, and the models that can be one."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agents.completion import Completion, FinishReason
from agents.renderer import Renderer
from agents.segment import Segment
from benchmarks.models.templates import tokenizer_for
from rl.learner.checkpoint import save_checkpoint
from rl.preferences.reward_model import RewardModel, choose_padding


def answer(read, said):
    segment = Segment()
    segment.append_context(read, 0)
    count = len(said)
    segment.append_completion(
        Completion(tuple(said), (0.0,) * count, (0,) * count, FinishReason.STOP_TOKEN), 0
    )
    return segment


def gpt2():
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=23,
            n_embd=16,
            n_layer=1,
            n_head=2,
            n_positions=32,
            bos_token_id=1,
            eos_token_id=1,
        )
    )


def qwen3():
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=23,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            tie_word_embeddings=True,
            eos_token_id=1,
            pad_token_id=0,
        )
    )


@pytest.mark.parametrize("make", [gpt2, qwen3])
def test_a_saved_reward_model_loads_again_here_and_in_transformers(make, tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        causal = make().eval()
    trunk = causal.base_model
    rewarder = RewardModel.from_causal(causal)
    assert rewarder.trunk is trunk, "no copy is made of the body"
    with torch.no_grad():
        rewarder.head.weight.copy_(torch.linspace(-1, 1, 16)[None])
    answers = [answer([2, 3], [4, 5, 1]), answer([2, 3], [9, 1])]
    with torch.no_grad():
        plain = rewarder.score(answers)
    rewarder.bias = 0.75
    save_checkpoint(tmp_path / "saved", rewarder.model)
    loaded = RewardModel.load(tmp_path / "saved")
    assert loaded.bias == 0.75
    with torch.no_grad():
        torch.testing.assert_close(loaded.score(answers), plain + 0.75, rtol=0, atol=1e-6)
        theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
        logits = theirs(torch.tensor([answers[0].token_ids])).logits
    assert logits.shape == (1, 1)
    assert logits.item() == pytest.approx(plain[0].item(), abs=1e-6)


def scorer(make):
    """A reward model whose head gives each token a score of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        rewarder = RewardModel.from_causal(make().eval())
    with torch.no_grad():
        rewarder.head.weight.copy_(torch.linspace(-1, 1, 16)[None])
    return rewarder


def scored_there(model, answers, pad):
    """Scores of transformers for a batch padded on the right."""
    width = max(len(segment) for segment in answers)
    rows = [[*s.token_ids, *[pad] * (width - len(s))] for s in answers]
    mask = [[1] * len(s) + [0] * (width - len(s)) for s in answers]
    with torch.no_grad():
        return model(torch.tensor(rows), attention_mask=torch.tensor(mask)).logits[:, 0].double()


ANSWERS = [answer([2, 3], [4, 5, 1]), answer([2, 3], [9, 1]), answer([2], [7])]


@pytest.mark.parametrize("make", [gpt2, qwen3])
@pytest.mark.parametrize("pad", [0, 1])
def test_the_token_that_is_read_is_that_of_transformers(make, pad):
    """A classifier that pads with the end of answers (1) reads the token before it."""
    rewarder = scorer(make)
    rewarder.model.config.pad_token_id = pad
    theirs = scored_there(rewarder.model, ANSWERS, pad)
    with torch.no_grad():
        torch.testing.assert_close(rewarder.score(ANSWERS), theirs, rtol=0, atol=1e-6)
    assert len(set(theirs.tolist())) == 3


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CHATML += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


@pytest.mark.parametrize(
    ("specials", "padding"),
    [
        ({"pad_token": "<|pad|>"}, "<|pad|>"),
        ({"pad_token": "<|im_end|>"}, "<bos>"),
        ({"extra_special_tokens": ["<|reserved|>", "<|right_pad|>"]}, "<|right_pad|>"),
        ({"unk_token": "<unk>"}, "<unk>"),
    ],
)
def test_no_answer_ends_with_the_padding_of_a_saved_model(specials, padding):
    rewarder, tokenizer = scorer(qwen3), tokenizer_for(CHATML)
    tokenizer.add_special_tokens(specials)
    rewarder.model.resize_token_embeddings(len(tokenizer))
    choose_padding(rewarder.model, tokenizer)
    assert tokenizer.pad_token == padding
    assert rewarder.model.config.pad_token_id == tokenizer.pad_token_id
    assert tokenizer.pad_token_id not in Renderer(tokenizer).end_token_ids


def test_a_model_without_another_special_token_pads_with_its_end():
    rewarder, tokenizer = scorer(gpt2), tokenizer_for(CHATML)
    choose_padding(rewarder.model, tokenizer)
    assert rewarder.model.config.pad_token_id == tokenizer.eos_token_id


def test_a_model_that_is_not_a_reward_model_is_refused(tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        causal = qwen3()
    causal.save_pretrained(tmp_path / "causal")
    with pytest.raises(ValueError, match="it is a Qwen3ForCausalLM, not a classifier"):
        RewardModel.load(tmp_path / "causal")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"give a folder that python -m rl.reward_model saved"):
        RewardModel.load(tmp_path / "empty")
    many = AutoModelForSequenceClassification.from_config(causal.config)
    with pytest.raises(ValueError, match="a reward model gives one number, this one 2"):
        RewardModel(many)
