import pytest
import torch
from safetensors.torch import load_file
from small_learner import build_mixture, build_routed
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rl.credit.batch import Batch
from rl.learner.local import LocalWeights
from rl.learner.model import load_model, score_tokens
from rl.learner.scoring import ScoringModel
from rl.packing.models import needs_mask
from rl.preferences.reward_model import RewardModel
from rl.rollout.trajectory import Segment


def qwen3(**options):
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=31,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=64,
            **{"tie_word_embeddings": True, **options},
        )
    )


def gpt2():
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=31, n_positions=64, n_embd=16, n_layer=2, n_head=2)
    )


def mamba():
    return MambaForCausalLM(
        MambaConfig(vocab_size=31, hidden_size=16, state_size=4, num_hidden_layers=2)
    )


def gemma2():
    return Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=31,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            final_logit_softcapping=2.0,
        )
    )


def built(make):
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.3)
    return model.eval()


def rows(lengths):
    generator = torch.Generator().manual_seed(1)
    result = []
    for length in lengths:
        ids = torch.randint(2, 31, (length,), generator=generator).tolist()
        mask = [0, *([1, 1, 0] * length)[: length - 1]]
        columns = [0.0] * length, [-1] * length, [0] * length
        result.append(Segment(ids, mask, *columns))
    return result


@pytest.mark.parametrize("make", [qwen3, gpt2, mamba])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_padding_never_reaches_a_score(make, temperature):
    """Rows of unequal length together score as each does alone, read from the model's logits."""
    model = built(make)
    segments = rows([9, 4, 13])
    batch = Batch.from_segments(segments)
    (micro,) = batch.micro_batches(10_000)
    with torch.no_grad():
        scores = ScoringModel(model, temperature).score(micro)
        expected = []
        for segment in segments:
            logits = model(input_ids=torch.tensor([segment.token_ids])).logits[0]
            log_p = (logits / temperature).log_softmax(-1)
            expected += [
                log_p[t - 1, segment.token_ids[t]]
                for t in range(len(segment))
                if segment.loss_mask[t]
            ]
    got = torch.empty(batch.num_tokens)
    got[micro.tokens] = scores.logprobs
    torch.testing.assert_close(got, torch.stack(expected), atol=3e-6, rtol=0)
    assert got.std() > 0.3


def test_models_that_need_a_mask():
    assert not needs_mask(qwen3())
    assert not needs_mask(qwen3(use_sliding_window=True, sliding_window=4, max_window_layers=1))
    assert not needs_mask(gpt2())
    assert needs_mask(mamba())
    hybrid = qwen3()
    hybrid.config.layer_types = ["linear_attention", "full_attention"]
    assert needs_mask(hybrid)


@pytest.mark.parametrize(
    ("make", "expected"),
    # A mask that no attention reads stops transformers from making one, which waits for a GPU.
    [(qwen3, [[[[True]]]]), (mamba, [[1] * 11, [1] * 8 + [0] * 3])],
)
def test_only_some_models_get_a_mask(make, expected):
    scorer = ScoringModel(built(make))
    masks = []
    scorer.root.trunk.register_forward_pre_hook(
        lambda _, args, given: masks.append(given["attention_mask"]), with_kwargs=True
    )
    (micro,) = Batch.from_segments(rows([12, 9])).micro_batches(100)
    scorer.score(micro)
    assert [mask.tolist() for mask in masks] == [expected]


def test_greedy_sampling_is_scored_at_temperature_one():
    assert ScoringModel(built(qwen3), temperature=0).temperature == 1.0
    with pytest.raises(ValueError, match=r"temperature \(-1\) must be >= 0"):
        ScoringModel(built(qwen3), temperature=-1)


def test_a_model_that_caps_its_logits_is_refused():
    with pytest.raises(ValueError, match=r"model_type \(gemma2\) changes its logits"):
        ScoringModel(built(gemma2))


def test_the_value_head_starts_at_zero_and_sees_where_tokens_are_sampled():
    model = ScoringModel(built(qwen3), with_values=True)
    segments = rows([6])
    (micro,) = Batch.from_segments(segments).micro_batches(100)
    assert model.score(micro).values.tolist() == [0, 0, 0, 0]
    with torch.no_grad():
        model.value_head.weight.normal_()
        model.value_head.bias.fill_(0.5)
        hidden = model.root.trunk(
            input_ids=torch.tensor([segments[0].token_ids])
        ).last_hidden_state[0]
        expected = hidden[[0, 1, 3, 4]] @ model.value_head.weight[0] + 0.5
        torch.testing.assert_close(model.score(micro).values, expected, atol=1e-6, rtol=1e-5)
    assert len(model.parameters()) == len(list(model.model.parameters())) + 2


def test_bfloat16_models_score_in_float32():
    scorer = ScoringModel(qwen3().to(torch.bfloat16).eval(), with_values=True)
    (micro,) = Batch.from_segments(rows([6])).micro_batches(100)
    scores = scorer.score(micro)
    assert scorer.model.dtype == torch.bfloat16
    assert {scores.logprobs.dtype, scores.entropy.dtype, scores.values.dtype} == {torch.float32}
    assert scorer.value_head.weight.dtype == torch.float32


def test_a_saved_model_is_loaded(tmp_path):
    model = qwen3()
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert not loaded.training
    assert loaded.dtype == torch.float32
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight)


async def test_servers_get_the_names_of_files(tmp_path):
    """In memory, the experts of a layer are one tensor. Transformers writes the file."""
    model = build_mixture()
    model.save_pretrained(tmp_path)
    expected = load_file(tmp_path / "model.safetensors")
    assert expected.keys() != model.state_dict().keys()
    weights = LocalWeights(model, 0)
    found = await weights.tensors()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], x) for name, x in expected.items())
    assert (await weights.tensors(complete=True)).keys() == model.state_dict().keys()


def test_a_reward_model_is_no_policy(tmp_path):
    """Transformers would load its body, and with tied embeddings all of a "language model"."""
    RewardModel.from_causal(qwen3()).model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"is a Qwen3ForSequenceClassification, as reward models"):
        load_model(tmp_path)


def test_missing_weights_are_refused(tmp_path):
    model = qwen3(tie_word_embeddings=False)
    kept = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    model.save_pretrained(tmp_path, state_dict=kept)
    with pytest.raises(ValueError, match=r"which would be random \(lm_head\.weight\): give a"):
        load_model(tmp_path)


def test_a_path_without_a_model(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"has no config.json: give a folder saved by"):
        load_model(tmp_path)
    qwen3().config.save_pretrained(tmp_path / "checkpoints" / "last")
    with pytest.raises(ValueError, match=r"give .*/checkpoints/last$"):
        load_model(tmp_path)
    qwen3().config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"cannot be loaded from its folder \(") as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match=r"^model \(\./no/such\) is neither a folder") as caught:
        load_model("./no/such")
    assert "\n" not in str(caught.value)


def test_a_model_is_used_in_place():
    model = qwen3()
    assert ScoringModel(model).model is model


@pytest.mark.parametrize("make", [qwen3, build_mixture])
def test_rotary_frequencies_stay_exact_in_bfloat16(make, tmp_path):
    make().save_pretrained(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    ours = load_model(tmp_path, dtype=torch.bfloat16)
    buffers = {name: x.dtype for name, x in ours.named_buffers() if name.endswith("inv_freq")}
    assert set(buffers.values()) == {torch.float32}
    assert ours.dtype == torch.bfloat16
    ids = [7] * 3000
    assert score_tokens(ours, ids, 1.0) == score_tokens(theirs, ids, 1.0)


def test_what_a_mixture_keeps_in_float32_is_not_rounded(tmp_path):
    """The router of DeepSeek-V3: rounded, it sends tokens to other experts."""
    model = build_routed()
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, dtype=torch.bfloat16).state_dict()
    routers = {name for name in loaded if name.endswith(("gate.weight", "correction_bias"))}
    assert len(routers) == 2
    for name, weight in model.state_dict().items():
        kept = weight if name in routers else weight.to(torch.bfloat16)
        assert torch.equal(loaded[name], kept) and loaded[name].dtype == kept.dtype
