"""A real server: token ids, log-probabilities, verified updates, and known faults."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch
from tiny_served import VOCAB, WINDOW, new_model, nudge, prober_of

from agents.completion import FinishReason, SamplingParams
from agents.policy import PolicyFailure
from agents.serving import ManagedServer, WeightsDiffer
from agents.serving.errors import Unreachable
from agents.vllm import VLLMClient
from rl.learner.model import score_tokens

PROMPT = list(range(20, 60))


@pytest.fixture
async def policy(server, open_policy):
    model = new_model()
    policy = await open_policy(
        model, lambda prober: ManagedServer(prober, connect=VLLMClient.at(server.url))
    )
    policy.model = model
    await policy.load_weights(model.state_dict(), 1)
    return policy


def far(model, completion, temperature, prompt=PROMPT) -> float:
    """The largest distance between a completion's log-probabilities and the model's."""
    scored = score_tokens(model, [*prompt, *completion.token_ids], temperature)[len(prompt) - 1 :]
    return max(abs(a - b) for a, b in zip(completion.logprobs, scored, strict=True))


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
async def test_logprobs_are_those_under_the_sampling_temperature(policy, temperature):
    sampling = SamplingParams(temperature=temperature, max_tokens=24, seed=3)
    completion = await policy.generate(PROMPT, sampling)
    assert len(completion.token_ids) == 24
    assert completion.versions == (1,) * 24
    assert completion.finish_reason is FinishReason.LENGTH
    assert far(policy.model, completion, temperature) < 1e-4


async def test_fifty_updates_arrive_each_within_1e_4(policy):
    differences = []
    for version in range(2, 52):
        nudge(policy.model)
        await policy.load_weights(policy.model.state_dict(), version)
        differences.append(policy.take_metrics()["sync/max_difference"])
    assert len(differences) == 50
    assert max(differences) < 1e-4
    completion = await policy.generate(PROMPT, SamplingParams(max_tokens=8, seed=1))
    assert completion.versions == (51,) * 8


async def test_a_running_completion_continues_with_new_weights_and_records_versions(policy):
    sampling = SamplingParams(max_tokens=WINDOW - len(PROMPT), seed=5)
    before = new_model()
    before.load_state_dict(policy.model.state_dict())
    client = policy._servers[0].client
    before_all = await client.num_tokens()
    calls = [asyncio.create_task(policy.generate(PROMPT, sampling)) for _ in range(48)]
    read = len(calls) * len(PROMPT)
    while await client.num_tokens() < before_all + read + 500:  # until some of it is sampled
        await asyncio.sleep(0.01)
    nudge(policy.model, 0.1)
    await policy.load_weights(policy.model.state_dict(), 2)
    spans = 0
    for completion in await asyncio.gather(*calls):
        first = completion.versions.count(1)
        assert completion.versions == (1,) * first + (2,) * (len(completion.versions) - first)
        tokens = [*PROMPT, *completion.token_ids]
        old = score_tokens(before, tokens, 1.0)[len(PROMPT) - 1 :]
        new = score_tokens(policy.model, tokens, 1.0)[len(PROMPT) - 1 :]
        expected = [*old[:first], *new[first:]]
        assert max(abs(a - b) for a, b in zip(completion.logprobs, expected, strict=True)) < 1e-4
        spans += 0 < first < len(completion.versions)
    assert spans > 0, "the update fell between completions: nothing was tested"


async def test_completions_end_at_stop_tokens_and_strings_and_keep_all_tokens(policy):
    plain = await policy.generate(PROMPT, SamplingParams(max_tokens=24, seed=3))
    stopping = SamplingParams(max_tokens=24, seed=3, stop_token_ids=(plain.token_ids[5],))
    at = plain.token_ids.index(plain.token_ids[5]) + 1
    stopped = await policy.generate(PROMPT, stopping)
    assert stopped.token_ids == plain.token_ids[:at]
    assert stopped.finish_reason is FinishReason.STOP_TOKEN


async def test_the_window_ends_a_completion(policy):
    prompt = [5] * (WINDOW - 4)
    cut = await policy.generate(prompt, SamplingParams(max_tokens=24, seed=3))
    assert (len(cut.token_ids), cut.finish_reason) == (4, FinishReason.CONTEXT_FULL)
    full = await policy.generate([5] * WINDOW, SamplingParams(max_tokens=24))
    assert (full.token_ids, full.finish_reason) == ((), FinishReason.CONTEXT_FULL)
    with pytest.raises(ValueError, match="257 tokens"):
        await policy.generate([5] * (WINDOW + 1), SamplingParams())


async def test_a_cpu_server_truncates_but_reports_no_support(policy):
    cut = SamplingParams(temperature=0.7, top_k=3, max_tokens=8, seed=5)
    with pytest.raises(PolicyFailure, match="does not report the tokens that top_p and top_k left"):
        await policy.generate(PROMPT, cut)
    said = await policy.generate(PROMPT, dataclasses.replace(cut, with_support=False))
    tokens = torch.tensor([*PROMPT, *said.token_ids])
    with torch.no_grad():
        logits = policy.model(tokens[None]).logits[0, len(PROMPT) - 1 : -1] / 0.7
    # What it says are log-probabilities of the three that it left, as the local policy's are.
    left = logits.topk(3)
    chosen = (left.indices == tokens[len(PROMPT) :, None]).nonzero()[:, 1]
    assert len(chosen) == 8
    expected = left.values.log_softmax(-1).gather(1, chosen[:, None])[:, 0]
    assert said.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


async def test_seeds_repeat_and_no_token_comes_from_other_weights_keys_and_values(policy):
    sampling = SamplingParams(max_tokens=16, seed=7)
    long_prompt = [7 + i % 200 for i in range(160)]
    first = await policy.generate(long_prompt, sampling)
    again = await policy.generate(long_prompt, sampling)
    assert again.token_ids == first.token_ids
    nudge(policy.model, 0.1)
    await policy.load_weights(policy.model.state_dict(), 2)
    after = await policy.generate(long_prompt, sampling)
    assert far(policy.model, after, 1.0, long_prompt) < 1e-4


async def test_prompts_of_more_than_one_step_are_sampled_by_their_seeds(policy):
    # Together they are more than a step computes. A seeded prompt that was computed in two pieces
    # ended vLLM 0.32's engine on a CPU.
    prompts = [[i % VOCAB, *range(1, 240)] for i in range(24)]
    sampling = SamplingParams(max_tokens=4, seed=7)
    async with asyncio.timeout(60):
        completions = await asyncio.gather(*(policy.generate(p, sampling) for p in prompts))
    pairs = zip(completions, prompts, strict=True)
    assert max(far(policy.model, completion, 1.0, prompt) for completion, prompt in pairs) < 1e-4
    metrics = policy.take_metrics()
    assert (metrics["policy/restarts"], metrics["policy/reissued"]) == (0, 0)


async def test_a_server_computes_the_waiting_request_of_least_priority_first(policy):
    client, ended = policy._servers[0].client, []

    async def ask(name: str, priority: int, tokens: int) -> None:
        sampling = SamplingParams(max_tokens=tokens, seed=1)
        about = {"request_id": f"first-{name}", "version": 1, "priority": priority}
        await client.generate(PROMPT, sampling, **about, deadline_s=60)
        ended.append(name)

    async def compare() -> bool:
        """Whether a request of high priority was computed while others waited."""
        ended.clear()
        seats = client.max_num_seqs
        long = [asyncio.create_task(ask("seated", 0, 200)) for _ in range(seats)]
        later = [asyncio.create_task(ask(f"waits {n}", 0, 200)) for n in range(seats)]
        while not ended and (await waiting(client)) < seats:
            await asyncio.sleep(0.01)
        full = not ended
        await ask("nearly done", -3, 1)
        first = not any(name.startswith("waits") for name in ended)
        await asyncio.gather(*long, *later)
        assert first or not full
        return full

    async with asyncio.timeout(240):
        # On a busy machine requests may arrive too slowly to fill the server.
        while not await compare():
            pass


async def waiting(client) -> float:
    """Requests in the server's own queue."""
    text = await client._call("GET", "/metrics", 30, as_text=True)
    rows = [row for row in text.splitlines() if row.startswith("vllm:num_requests_waiting{")]
    return float(rows[0].rsplit(" ", 1)[1])


async def test_a_cancelled_call_ends_the_generation(policy):
    client = policy._servers[0].client
    long = SamplingParams(max_tokens=200, seed=1)
    calls = [asyncio.create_task(policy.generate(PROMPT, long)) for _ in range(16)]
    await asyncio.sleep(0.05)
    for call in calls:
        call.cancel()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    await asyncio.sleep(1.0)
    before = await client.num_tokens()
    await asyncio.sleep(0.3)
    assert await client.num_tokens() == before


async def test_the_second_endpoint_gives_the_same_tokens(policy):
    sampling = SamplingParams(temperature=0.7, max_tokens=24, seed=3)
    first = await policy.generate(PROMPT, sampling)
    policy._servers[0].client.endpoint = "completions"
    second = await policy.generate(PROMPT, sampling)
    assert (second.token_ids, second.versions) == (first.token_ids, first.versions)
    assert far(policy.model, second, 0.7) < 1e-4
    before = new_model()
    before.load_state_dict(policy.model.state_dict())
    nudge(policy.model, 0.1)
    long = SamplingParams(max_tokens=200, seed=1)
    running = [asyncio.create_task(policy.generate(PROMPT, long)) for _ in range(16)]
    await asyncio.sleep(0.1)
    await policy.load_weights(policy.model.state_dict(), 2)
    # An update waits for them, because this endpoint reports no versions of tokens.
    for completion in await asyncio.gather(*running):
        assert set(completion.versions) == {1}
        assert far(before, completion, 1.0) < 1e-4
    assert (await policy.generate(PROMPT, sampling)).versions == (2,) * 24


async def test_cut_connections_cost_a_request_and_no_restart(server, open_policy):
    cables: set[asyncio.StreamWriter] = set()

    async def carry(reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def connect(reader, writer):
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", server.port)
        cables.update({writer, far_writer})
        await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))

    between = await asyncio.start_server(connect, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{between.sockets[0].getsockname()[1]}"
    model = new_model()
    policy = await open_policy(
        model, lambda prober: ManagedServer(prober, connect=VLLMClient.at(url))
    )
    await policy.load_weights(model.state_dict(), 1)
    sampling = SamplingParams(max_tokens=WINDOW - len(PROMPT), seed=5)
    expected = await policy.generate(PROMPT, sampling)
    known = len(cables)
    calls = [asyncio.create_task(policy.generate(PROMPT, sampling)) for _ in range(48)]
    while len(cables) < known + 48:  # until half of them are on their way
        await asyncio.sleep(0.01)
    for cable in cables:
        cable.transport.abort()
    completions = await asyncio.gather(*calls)
    assert [c.token_ids for c in completions] == [expected.token_ids] * 48
    metrics = policy.take_metrics()
    assert metrics["policy/reissued"] >= 1
    assert metrics["policy/restarts"] == 0
    await policy.close()
    between.close()


# The traps: each of these answers 200 somewhere on its way.


async def test_weights_that_are_not_finite_are_not_published(policy):
    poisoned = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
    poisoned["model.norm.weight"][3] = torch.nan
    with pytest.raises(PolicyFailure, match=r"model\.norm\.weight is not finite"):
        await policy.load_weights(poisoned, 2)
    completion = await policy.generate(PROMPT, SamplingParams(max_tokens=8, seed=1))
    assert far(policy.model, completion, 1.0) < 1e-4


async def test_a_later_version_must_name_the_same_weights(policy):
    lost = {n: w for n, w in policy.model.state_dict().items() if "q_proj" not in n}
    with pytest.raises(PolicyFailure, match=r"names differ: .*q_proj"):
        await policy.load_weights(lost, 2)


@pytest.mark.parametrize("missing", ["lm_head.weight", "model.layers.0.self_attn.q_proj.weight"])
async def test_a_checkpoint_with_missing_weights_is_detected(server, open_policy, missing):
    model = new_model(seed=1)
    policy = await open_policy(
        model, lambda prober: ManagedServer(prober, connect=VLLMClient.at(server.url))
    )
    partial = {name: w for name, w in model.state_dict().items() if name != missing}
    # vLLM does not initialise the memory of missing weights. A NaN in it has no JSON form.
    detected = r"does not run version 1 .* nats from the learner's|not JSON compliant"
    with pytest.raises(PolicyFailure, match=detected):
        await policy.load_weights(partial, 1)


async def test_a_version_label_without_its_weights_is_detected(policy):
    client = policy._servers[0].client
    nudge(policy.model, 0.1)
    await policy._prober.expect(2)
    await client._call("POST", "/update_weight_version", 10, {"new_version": "2"})
    with pytest.raises(WeightsDiffer, match="does not run version 2"):
        await policy._prober.prove(client, 2)


async def test_weights_without_their_label_are_found_out(policy):
    client = policy._servers[0].client
    await policy._prober.expect(2)
    with pytest.raises(WeightsDiffer, match="samples from version 1 after an update to 2"):
        await policy._prober.prove(client, 2)


async def test_a_failed_load_leaves_the_server_paused_and_the_next_one_mends_it(policy, tmp_path):
    client = policy._servers[0].client
    with pytest.raises(Unreachable, match="500"):
        await client.load(tmp_path / "nowhere", 2)
    asked = asyncio.create_task(policy.generate(PROMPT, SamplingParams(max_tokens=8, seed=1)))
    await asyncio.sleep(0.3)
    assert not asked.done(), "a paused server answers nothing"
    nudge(policy.model)
    await policy.load_weights(policy.model.state_dict(), 3)
    completion = await asyncio.wait_for(asked, 30)
    assert completion.versions == (3,) * 8
    assert far(policy.model, completion, 1.0) < 1e-4


async def test_a_server_with_another_model_is_refused_in_one_line(server, open_policy):
    from transformers import Qwen3ForCausalLM

    other = new_model().config
    other.num_hidden_layers = 1
    model = Qwen3ForCausalLM(other).eval()
    policy = await open_policy(
        model, lambda prober: ManagedServer(prober, connect=VLLMClient.at(server.url))
    )
    with pytest.raises(PolicyFailure) as failure:
        await policy.load_weights(model.state_dict(), 1)
    assert "\n" not in str(failure.value)


def test_probes_stay_inside_the_vocabulary():
    assert max(prober_of(new_model())._prompt) < VOCAB
