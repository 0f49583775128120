"""Sampling ends at the token that completes a stop string, across byte-level tokens too."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agents.completion import FinishReason, SamplingParams
from agents.local.stops import StopStringTable


def halts_at(tokenizer, text, *stops, token_ids=None):
    """Index of the token that completes a stop string, or None; each token checked in turn."""
    matcher = StopStringTable(tokenizer, len(tokenizer)).get(stops)
    token_ids = token_ids or tokenizer.encode(text)
    for count in range(1, len(token_ids) + 1):
        if matcher.completed_by(token_ids[:count]):
            return count - 1
    return None


@pytest.fixture(scope="module")
def merged() -> PreTrainedTokenizerFast:
    """Byte-level tokens with merges, so that a token may hold more than a stop string's end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("<", "/"), ("s", ">"), ("s>", "x"), ("Ġ", "s"), (">", "Ċ")]
    vocabulary = {c: i for i, c in enumerate(alphabet)}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize(
    ("text", "stops", "ends"),
    [
        ("a</s>b", ("</s>",), "a</s>"),
        ("a</s></s>", ("</s>",), "a</s>"),
        ("one two", (" t",), "one t"),
        ("x\n\ny", ("\n\n",), "x\n\n"),
        ("caf\u00e9 \u4f60\u597d!", ("\u597d",), "caf\u00e9 \u4f60\u597d"),
        ("caf\u00e9 \u4f60\u597d!", ("\u00e9 \u4f60",), "caf\u00e9 \u4f60"),
        ("\U0001f600\U0001f601", ("\U0001f601",), "\U0001f600\U0001f601"),
        ("abc", ("c", "b"), "ab"),
        ("a < / s >", ("</s>",), None),
        ("", ("x",), None),
    ],
)
def test_bytes_as_tokens(tokenizer, text, stops, ends):
    expected = None if ends is None else len(ends.encode()) - 1
    assert halts_at(tokenizer, text, *stops) == expected


def test_a_token_that_overshoots_completes_the_string(merged):
    token_ids = merged.encode("</s>xyz")
    assert [merged.decode([t]) for t in token_ids] == ["</", "s>x", "y", "z"]
    assert halts_at(merged, "", "</s>", token_ids=token_ids) == 1


def test_white_space_at_the_end_of_a_stop_string(merged):
    assert halts_at(merged, "ab>\ncd", "b>\n") == len(merged.encode("ab>\n")) - 1
    assert halts_at(merged, "ab s", "b ") == len(merged.encode("ab s")) - 1


def test_control_tokens_are_text_for_a_stop_string(tokenizer):
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    token_ids = [*tokenizer.encode("hi"), end, *tokenizer.encode("there")]
    assert halts_at(tokenizer, "", "<|im_end|>", token_ids=token_ids) == 2
    assert halts_at(tokenizer, "", "i<|im_end|>t", token_ids=token_ids) == 3


def test_words_of_a_sentencepiece_vocabulary():
    pieces = ["<unk>", "▁the", "▁ans", "wer", "▁", "</", "a", ">", "▁is"]
    backend = Tokenizer(models.Unigram([(p, -1.0) for p in pieces], unk_id=0))
    backend.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    ids = [1, 2, 3, 5, 6, 7, 8]
    assert tokenizer.decode(ids) == "the answer</a> is"
    assert halts_at(tokenizer, "", "</a>", token_ids=ids) == 5
    assert halts_at(tokenizer, "", " answer", token_ids=ids) == 2
    assert halts_at(tokenizer, "", "> i", token_ids=ids) == 6
    # A space that is a token of its own decodes to nothing when it is decoded alone.
    assert tokenizer.decode([4]) == ""
    assert halts_at(tokenizer, "", "wer ", token_ids=[1, 2, 3, 4, 5]) == 3


async def test_generation_halts_there_and_keeps_the_token(make_policy, tokenizer):
    policy = make_policy()
    free = await policy.generate([1, 2, 3], SamplingParams(max_tokens=60, seed=1))
    ascii_ids = set(tokenizer.encode("".join(map(chr, range(33, 127)))))
    middle = next(i for i in range(20, 60) if set(free.token_ids[i - 1 : i + 1]) <= ascii_ids)
    stop = tokenizer.decode(list(free.token_ids[middle - 1 : middle + 1]))
    first = tokenizer.decode(list(free.token_ids)).encode().find(stop.encode())
    assert first >= 0
    halted = await policy.generate([1, 2, 3], SamplingParams(max_tokens=60, seed=1, stop=(stop,)))
    assert halted.finish_reason is FinishReason.STOP_STRING
    assert halted.token_ids == free.token_ids[: len(halted.token_ids)]
    assert tokenizer.decode(list(halted.token_ids)).endswith(stop)
    assert len(halted.token_ids) <= middle + 1
