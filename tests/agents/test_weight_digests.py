"""Digests of weights: what they see that a probe in bfloat16 does not."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from tiny_served import new_model, scores_of

from agents.completion import Completion, FinishReason, SamplingParams
from agents.digests.comparison import LoadedDigests, compare, digests_of
from agents.digests.turnwise_digests import WeightDigests, digest
from agents.serving import Prober, WeightsDiffer

PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_digest_is_of_the_values_and_not_of_their_places(dtype):
    torch.manual_seed(0)
    x = torch.randn(300, 301).to(dtype)
    whole = digest(x)
    assert digest(x.t()) == whole
    assert digest(torch.cat([x, torch.zeros(7, 301, dtype=dtype)])) == whole
    assert (digest(x[:100]) + digest(x[100:])) % 2**64 == whole
    for place in ((0, 0), (299, 300)):
        other = x.clone()
        other[place] = torch.nextafter(x[place], torch.tensor(9.0, dtype=dtype))
        assert digest(other) != whole
    assert digest(torch.zeros((), dtype=dtype)) == 0
    untouched = x.clone()
    digest(x)
    assert torch.equal(x, untouched)


def test_opposite_changes_do_not_cancel():
    x = torch.arange(1.0, 5.0)
    up, down = torch.tensor([0.0, 2**-20, 0, 0]), torch.tensor([0.0, 0, 2**-20, 0])
    assert not torch.equal(x + up, x)
    assert len({digest(x), digest(x + up - down), digest(x - up + down)}) == 3


class Packs:
    """Repacks a layer's weight after loading, as vLLM does on a CPU."""

    def process_weights_after_loading(self, layer):
        layer.packed = layer.weight.detach().clone()
        layer.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)


class Stacked(torch.nn.Module):
    """vLLM's side of `new_model`: stacked projections, and a padded embedding."""

    packed_modules_mapping = PACKED

    def __init__(self, state):
        super().__init__()
        self.model = torch.nn.ModuleDict()
        for name in {name for name, _ in self.parts(state)}:
            module = self
            for word in name.split(".")[:-1]:
                if not hasattr(module, word):
                    module.add_module(word, torch.nn.Module())
                module = getattr(module, word)
            module.quant_method = None if "norm" in name else Packs()

    def parts(self, state):
        whole_of = {part: whole for whole, parts in PACKED.items() for part in parts}
        for name, tensor in state.items():
            if name != "lm_head.weight":  # tied
                yield ".".join(whole_of.get(word, word) for word in name.split(".")), tensor

    def load(self, state, left_out=()):
        whole = {}
        for name, tensor in self.parts(state):
            whole.setdefault(name, []).append(tensor)
        for name, tensors in whole.items():
            if name in left_out:
                continue
            layer = self.get_submodule(name.rpartition(".")[0])
            loaded = torch.cat([*tensors, torch.zeros_like(tensors[0][:1])])
            layer.weight = torch.nn.Parameter(loaded, requires_grad=False)
            if layer.quant_method is not None:
                layer.quant_method.process_weights_after_loading(layer)


class Worker(WeightDigests):
    def __init__(self, model):
        self.model_runner = SimpleNamespace(get_model=lambda: model)


def stepped(state, rate=1e-6):
    """The weights in bfloat16 after the first step of Adam on their fp32 copies."""
    drawn = torch.Generator().manual_seed(5)
    moved = {}
    for name, tensor in state.items():
        if name != "lm_head.weight":
            step = torch.randn(tensor.shape, generator=drawn).sign() * rate
            moved[name] = (tensor.float() + step).to(tensor.dtype)
    return moved | {"lm_head.weight": moved["model.embed_tokens.weight"]}


@pytest.fixture
def served():
    """A model in bfloat16, its weights after a step, and a worker with the weights before."""
    before = new_model().bfloat16().state_dict()
    model = Stacked(before)
    model.load(before)
    return before, stepped(before), model, Worker(model)


def loaded(worker, state, left_out=()):
    worker.turnwise_watch_weights()
    worker.model_runner.get_model().load(state, left_out)
    return LoadedDigests.of_workers([worker.turnwise_weight_digests()])


def test_equal_weights_have_equal_digests(served):
    before, after, model, worker = served
    for state in (before, after):
        assert compare(digests_of(state), loaded(worker, state)).wrong == []
    layer = model.get_submodule("model.layers.0.mlp.gate_up_proj")
    assert layer.weight.numel() == 0, "the layer is packed away"
    assert "process_weights_after_loading" not in vars(layer.quant_method)


def changed(before, after):
    """The tensors that one step at 1e-6 moves in bfloat16 at all."""
    return [n for n in before if n != "lm_head.weight" and not torch.equal(before[n], after[n])]


def test_each_tensor_whose_update_is_left_out_is_named(served):
    before, after, model, worker = served
    names = changed(before, after)
    assert len(names) > 10
    whole = dict(
        zip((n for n in before if n != "lm_head.weight"), model.parts(before), strict=True)
    )
    for name in names:
        tied = {"lm_head.weight": before[name]} if "embed" in name else {}
        found = loaded(worker, after | {name: before[name]} | tied)
        assert compare(digests_of(after), found).wrong == [whole[name][0]]
        # A layer that is not loaded at all keeps its packed weights, and has none to compare.
        found = loaded(worker, after, left_out=[whole[name][0]])
        assert compare(digests_of(after), found).wrong == [whole[name][0]]


def test_tensors_without_a_parameter_of_their_name_are_compared_as_a_sum():
    experts = {f"experts.{i}.up.weight": torch.full((2, 2), float(i + 1)) for i in range(3)}
    sent = digests_of(experts | {"norm.weight": torch.ones(2)})
    both = {"norm.weight": digest(torch.ones(2))}
    fused = digest(torch.stack([*experts.values()]))
    assert compare(sent, LoadedDigests(both | {"experts.w13": fused})).wrong == []
    assert compare(sent, LoadedDigests(both | {"experts.w13": fused + 1})).wrong == [
        "experts.0.up.weight"
    ]
    assert compare(sent, LoadedDigests(both | {"experts.w13": None})).wrong == [
        "experts.0.up.weight"
    ]


def test_a_tensor_of_equal_content_is_not_taken_for_a_tied_one():
    ones, a = torch.ones(4), torch.arange(1.0, 5.0)
    sent = digests_of({"q_norm": ones, "experts.0.norm": ones.clone(), "experts.0.w": a})
    fused = digest(torch.cat([a, ones]))
    assert compare(sent, LoadedDigests({"q_norm": digest(ones), "fused": fused})).wrong == []
    tied = digests_of({"embed": a, "head": a, "experts.0.w": ones})
    for name in ("embed", "head"):
        found = LoadedDigests({name: digest(a), "fused": digest(ones)})
        assert compare(tied, found).wrong == []
        assert sum(map(len, compare(tied, found).tensors.values())) == 3


def test_buffers_are_compared_by_their_names():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.arange(1.0, 4.0), requires_grad=False)
            self.register_buffer("bias", torch.ones(2))
            self.register_buffer("k_scale", torch.ones(1))
            self.register_buffer("cache", torch.ones(9), persistent=False)

    model = torch.nn.ModuleDict({"a": Layer()})
    worker = Worker(model)
    sent = {name: x.clone() for name, x in model.state_dict().items() if "scale" not in name}
    worker.turnwise_watch_weights()
    answer = worker.turnwise_weight_digests()
    assert json.loads(answer)["buffers"].keys() == {"a.bias", "a.k_scale"}
    found = LoadedDigests.of_workers([answer])
    assert compare(digests_of(sent), found).wrong == []
    assert compare(digests_of(sent | {"a.bias": torch.zeros(2)}), found).wrong == ["a.bias"]
    # The engine's own buffers do not belong to the sum of the tensors without a parameter.
    experts = {"experts.0": torch.full((2,), 3.0), "experts.1": torch.full((2,), 4.0)}
    model["fused"] = torch.nn.ParameterList([torch.cat([*experts.values()])])
    worker.turnwise_watch_weights()
    found = LoadedDigests.of_workers([worker.turnwise_weight_digests()])
    assert compare(digests_of(sent | experts), found).wrong == []


def test_several_workers_with_a_part_each_are_not_compared():
    answer = json.dumps({"digests": {"a": 1}, "packed": {}})
    assert LoadedDigests.of_workers([answer]) == LoadedDigests({"a": 1})
    assert LoadedDigests.of_workers([answer, answer]) is None


class Echo:
    """A server that reports the log-probabilities of a model."""

    url = "http://server"

    def __init__(self, model):
        self.score = scores_of(model)

    async def probe(self, prompt, sampling, version):
        said = [7] * sampling.max_tokens
        scores = await self.score([*prompt, *said], sampling.temperature, ())
        read = await self.score(prompt, 1.0, ())
        logprobs = tuple(scores[len(prompt) - 1 :])
        completion = Completion(tuple(said), logprobs, (version,) * 16, FinishReason.LENGTH)
        return list(read), completion


async def test_the_proof_fails_for_one_stale_tensor_which_the_probe_does_not_see(served):
    before, after, _, worker = served
    learner, stale = new_model().bfloat16(), new_model().bfloat16()
    learner.load_state_dict(after)
    name = "model.layers.1.self_attn.k_proj.weight"
    stale.load_state_dict(after | {name: before[name]})
    prober = Prober(scores_of(learner), 259, sampling=SamplingParams(), tolerance=0.25)
    await prober.expect(1, digests_of(before))
    await prober.prove(Echo(learner), 1, loaded=loaded(worker, before))
    await prober.expect(2, digests_of(after))
    proof = await prober.prove(Echo(stale), 2)
    assert (proof.difference < 0.25, proof.num_compared) == (True, 0)
    proof = await prober.prove(Echo(learner), 2, loaded=loaded(worker, after))
    assert proof.num_compared == len(after)
    wrong = loaded(worker, after | {name: before[name]})
    expected = r"version 2 of the weights: model\.layers\.1\.self_attn\.qkv_proj\.weight \(1 such"
    with pytest.raises(WeightsDiffer, match=expected):
        await prober.prove(Echo(stale), 2, loaded=wrong)


async def test_a_parameter_that_the_engine_transforms_is_left_to_the_probe(served, caplog):
    before, after, _, worker = served
    model = new_model().bfloat16()
    prober = Prober(scores_of(model), 259, sampling=SamplingParams(), tolerance=0.25)

    def transformed(state):
        found = loaded(worker, state)
        return LoadedDigests(found.by_name | {"model.norm.weight": 5}, found.packed)

    for version, state in ((1, before), (2, after)):
        await prober.expect(version, digests_of(state))
        proof = await prober.prove(Echo(model), version, loaded=transformed(state))
        assert proof.num_compared == len(state) - 1
    assert [r.message for r in caplog.records] == [
        "http://server transforms 1 parameters when it loads them, such as model.norm.weight: "
        "their updates are verified by the probe alone"
    ]


async def test_tensors_whose_sum_the_engine_changes_are_left_to_the_probe(caplog):
    """A learner in float32 and an engine in bfloat16 whose experts are fused."""
    model = new_model()
    experts = {f"experts.{i}": torch.full((2, 2), 1.1 + i) for i in range(3)}
    sent = digests_of(experts | {"norm": torch.ones(2)})
    fused = digest(torch.stack([*experts.values()]).bfloat16())
    right = {"norm": digest(torch.ones(2)), "w13": fused}
    prober = Prober(scores_of(model), 259, sampling=SamplingParams(), tolerance=0.25)
    for version in (1, 2):
        await prober.expect(version, sent)
        proof = await prober.prove(Echo(model), version, loaded=LoadedDigests(right))
        assert proof.num_compared == 1
    assert ["such as experts.0" in r.message for r in caplog.records] == [True]
    with pytest.raises(WeightsDiffer, match="norm"):
        await prober.prove(Echo(model), 2, loaded=LoadedDigests(right | {"norm": 5}))
    prober = Prober(scores_of(model), 259, sampling=SamplingParams(), tolerance=0.25)
    await prober.expect(1, sent)
    with pytest.raises(WeightsDiffer, match=r"experts\.0"):
        await prober.prove(Echo(model), 1, loaded=LoadedDigests(right | {"w13": None}))


async def test_a_comparison_of_nothing_counts_nothing():
    model = new_model()
    state = {f"layers.0.{name}.weight": torch.ones(2) for name in ("q_proj", "k_proj", "v_proj")}
    found = LoadedDigests({"layers.0.qkv_proj.weight": 7}, PACKED)
    prober = Prober(scores_of(model), 259, sampling=SamplingParams(), tolerance=0.25)
    await prober.expect(1, digests_of(state))
    assert (await prober.prove(Echo(model), 1, loaded=found)).num_compared == 0


async def test_a_layer_that_never_loads_is_found_at_once(served):
    before, _, _, worker = served
    model = new_model().bfloat16()
    prober = Prober(scores_of(model), 259, sampling=SamplingParams(), tolerance=0.25)
    await prober.expect(1, digests_of(before))
    left_out = ["model.layers.0.self_attn.o_proj.weight"]
    with pytest.raises(WeightsDiffer, match="o_proj"):
        await prober.prove(Echo(model), 1, loaded=loaded(worker, before, left_out))
