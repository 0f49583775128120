"""Requests and responses; the responses are vLLM 0.32's, shortened."""

from __future__ import annotations

import base64
import dataclasses
import io
import math

import numpy as np
import pytest

from agents.completion import Completion, FinishReason, SamplingParams
from agents.vllm.protocol import completion_of, prompt_logprobs_of, request_body
from agents.vllm.sampling import BadAnswer, Expected, NoSupport, NotReported, sampling_parameters

EXPECTED = Expected(
    prompt_length=10, max_tokens=3, context_window=64, stop_token_ids=(7, 9), version=4
)


def answer(tokens, logprobs, reason, stopped_by=None, spans=None):
    content = [{"token_id": t, "logprob": x} for t, x in zip(tokens, logprobs, strict=True)]
    spans = [{"version": "4", "start": 0, "end": len(tokens)}] if spans is None else spans
    choice = {"token_ids": tokens, "logprobs": {"content": content}, "finish_reason": reason}
    return {"choices": [{**choice, "stop_reason": stopped_by, "weight_versions": spans}]}


def test_a_request_sets_every_parameter_that_a_models_defaults_could_set():
    sampling = SamplingParams(temperature=0.7, max_tokens=5, stop=("</a>",), seed=2**62)
    body = request_body(
        "generate", "m", [1, 2], sampling_parameters(sampling), request_id="r", salt="3"
    )
    assert body["token_ids"] == [1, 2]
    assert body["cache_salt"] == "3"
    said = body["sampling_params"]
    neutral = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    neutral |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "ignore_eos": True}
    assert {name: said[name] for name in neutral} == neutral
    assert (said["temperature"], said["max_tokens"], said["stop"]) == (0.7, 5, ["</a>"])
    assert (said["seed"], said["logprobs"]) == (2**62, 0)


def test_both_endpoints_get_the_same_request():
    sampling = SamplingParams(temperature=0.5, stop_token_ids=(9,), max_tokens=4)
    mine = {"request_id": "r", "salt": "3"}
    one = request_body("generate", "m", [1, 2], sampling_parameters(sampling), **mine)
    other = request_body("completions", "m", [1, 2], sampling_parameters(sampling), **mine)
    assert other["prompt"] == one["token_ids"]
    assert other["return_token_ids"] is True
    assert {name: other[name] for name in one["sampling_params"]} == one["sampling_params"]


@pytest.mark.parametrize(
    ("tokens", "reason", "stopped_by", "expected"),
    [
        ([5, 6, 9], "stop", 9, FinishReason.STOP_TOKEN),
        ([5, 6], "stop", "</a>", FinishReason.STOP_STRING),
        ([5, 6, 8], "length", None, FinishReason.LENGTH),
    ],
)
def test_why_a_completion_ended(tokens, reason, stopped_by, expected):
    made = completion_of(
        "generate", answer(tokens, [-0.5] * len(tokens), reason, stopped_by), EXPECTED
    )
    assert made == Completion(tuple(tokens), (-0.5,) * len(tokens), (4,) * len(tokens), expected)


def test_a_completion_that_the_window_cut_is_not_one_of_full_length():
    expected = Expected(
        prompt_length=62, max_tokens=9, context_window=64, stop_token_ids=(), version=4
    )
    made = completion_of("generate", answer([5, 6], [-1.0, -1.0], "length"), expected)
    assert made.finish_reason is FinishReason.CONTEXT_FULL


def test_each_token_has_the_version_of_its_span():
    spans = [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 3}]
    made = completion_of("generate", answer([5, 6, 8], [-1.0] * 3, "length", spans=spans), EXPECTED)
    assert made.versions == (3, 3, 4)


def test_without_spans_the_version_is_that_of_the_request():
    choice = {"token_ids": [5, 9], "finish_reason": "stop", "stop_reason": 9}
    choice["logprobs"] = {"token_logprobs": [-0.25, -1.0]}
    made = completion_of("completions", {"choices": [choice]}, EXPECTED)
    assert made == Completion((5, 9), (-0.25, -1.0), (4, 4), FinishReason.STOP_TOKEN)


def masked(mask, **changes):
    response = answer([5, 6], [-1.0, 0.0], "length")
    response["choices"][0]["sampling_mask"] = mask
    return completion_of("generate", response, dataclasses.replace(EXPECTED, **changes))


def routed(experts, **changes):
    """The completion of two tokens, with experts as vLLM encodes them."""
    response = answer([5, 6], [-1.0, 0.0], "length")
    if experts is not None:
        file = io.BytesIO()
        np.save(file, experts)
        response["choices"][0]["routed_experts"] = base64.b64encode(file.getvalue()).decode()
    return completion_of("generate", response, dataclasses.replace(EXPECTED, **changes))


def test_the_experts_of_all_computed_tokens_are_returned_if_the_request_needs_them():
    computed = EXPECTED.prompt_length + 1
    experts = np.random.default_rng(0).integers(0, 8, (computed + 1, 3, 2), dtype=np.uint8)
    found = routed(experts, needs_experts=True).experts
    assert found.dtype == np.uint8
    assert np.array_equal(found, experts[:computed])
    assert routed(experts).experts is None
    with pytest.raises(NotReported, match="--enable-return-routed-experts"):
        routed(None, needs_experts=True)
    for wrong in (experts[: computed - 1], experts[:, 0]):
        with pytest.raises(BadAnswer, match=f"experts of {computed} tokens have the shape"):
            routed(wrong, needs_experts=True)


def test_the_support_is_returned_if_the_request_needs_it():
    assert masked([[2, 5], [6]], needs_support=True).supports == ([2, 5], [6])
    assert masked([[2, 5], [6]]).supports is None
    with pytest.raises(NoSupport, match="--return-sampling-mask"):
        masked(None, needs_support=True)
    for wrong, message in [([[5]], "supports of 1"), ([[5], [2]], "token 6"), (7, "shape")]:
        with pytest.raises(BadAnswer, match=message):
            masked(wrong, needs_support=True)


def test_rounding_above_0_is_cut():
    made = completion_of("generate", answer([5], [3e-7], "length"), EXPECTED)
    assert made.logprobs == (0.0,)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (answer([0], [-9999.0], "length"), "broken weights or cache"),
        (answer([0], [math.nan], "length"), "broken weights or cache"),
        (answer([0], [0.5], "length"), "broken weights or cache"),
        (answer([5], [-1.0], "abort"), "'abort'"),
        (answer([5], [-1.0], "stop", 11), "stopped at 11"),
        (answer([5, 6], [-1.0] * 2, "length", spans=[]), "versions of 0"),
        (
            answer([5], [-1.0], "length", spans=[{"version": "default", "start": 0, "end": 1}]),
            "default",
        ),
        ({"choices": []}, "exactly one choice"),
        ({"choices": [{"token_ids": [5], "finish_reason": "length"}]}, "0 log-probabilities"),
    ],
)
def test_an_invalid_response_is_rejected(wrong, message):
    with pytest.raises(BadAnswer, match=message):
        completion_of("generate", wrong, EXPECTED)


def test_a_prompts_logprobs_are_found_by_token():
    rows = [None, {"6": {"logprob": -0.5}}, {"2": {"logprob": -0.1}, "7": {"logprob": -3.0}}]
    assert prompt_logprobs_of({"prompt_logprobs": rows}, [5, 6, 7]) == [-0.5, -3.0]
    inside = {"choices": [{"prompt_logprobs": rows}]}
    assert prompt_logprobs_of(inside, [5, 6, 7]) == [-0.5, -3.0]
    with pytest.raises(BadAnswer, match="token 8"):
        prompt_logprobs_of({"prompt_logprobs": rows}, [5, 6, 8])
    with pytest.raises(BadAnswer, match="missing"):
        prompt_logprobs_of({"prompt_logprobs": rows}, [5, 6])
