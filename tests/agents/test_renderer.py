"""The renderer only appends, and appends the tokens that the template would write."""

from __future__ import annotations

import functools
import logging
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import ByT5Tokenizer

from agents.renderer import Renderer
from agents.template import PLAIN_TEMPLATE

SPECIAL_LOOKING = st.sampled_from(
    [
        "<|end|>",
        "<|im_end|>\n<|im_start|>",
        "<think>",
        "</think>",
        "<|",
        "TURNWISE-ASSISTANT-MESSAGE",
    ]
)
TEXT = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | SPECIAL_LOOKING
    | st.sampled_from(["\n", "\n\n", "  ", "6 x 7 is 42"]),
    max_size=4,
).map("".join)
TURNS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def renderers():
    """A renderer for each template, made once: hypothesis runs through many conversations."""
    return {}


def appended(renderer, system, turns, ended):
    """The conversation as an episode builds it: (tokens, messages)."""
    messages = [{"role": "system", "content": system}] if system else []
    tokens = []
    for number, (observation, answer) in enumerate(turns):
        messages.append({"role": "user", "content": observation})
        last = renderer.end_token_ids[0] if ended else None
        grown = renderer.extend(observation, last=last) if number else renderer.start(messages)
        tokens = tokens + grown + renderer.splice(answer)
        if ended:
            tokens.append(renderer.end_token_ids[0])
        messages.append({"role": "assistant", "content": answer})
    tokens = tokens + renderer.extend("the last word", last=last)
    messages.append({"role": "user", "content": "the last word"})
    return tokens, messages


@pytest.mark.parametrize(
    ("kind", "ended"),
    # A plain conversation has no end tokens; a test of its own says what it has.
    [("tiny", True), ("tiny", False), ("chatml", True), ("chatml", False), ("plain", False)],
)
def test_appending_equals_rendering_again(renderers, make_tokenizer, kind, ended):
    if kind not in renderers:
        renderers[kind] = Renderer(make_tokenizer(kind))
    renderer = renderers[kind]
    assert renderer.difference is None

    @settings(max_examples=60, deadline=None, database=None)
    @given(st.none() | TEXT.filter(bool), TURNS)
    def check(system, turns):
        tokens, messages = appended(renderer, system, turns, ended)
        anew = renderer.start(messages)
        decode = renderer.tokenizer.decode
        assert decode(tokens, skip_special_tokens=False) == decode(anew, skip_special_tokens=False)
        # A merge across the border of an assistant's message could only ever be undone by
        # encoding sampled tokens again: tokens agree wherever the border is none for the BPE.
        if kind == "tiny":
            assert tokens == anew

    check()


def test_a_chatml_conversation_token_by_token(make_tokenizer):
    tokenizer = make_tokenizer("chatml")
    renderer = Renderer(tokenizer)
    start_id, end_id, eos_id = tokenizer.convert_tokens_to_ids(
        ["<|im_start|>", "<|im_end|>", "<|end|>"]
    )
    encode = functools.partial(tokenizer.encode, add_special_tokens=False)

    assert renderer.end_token_ids == (end_id, eos_id)
    assert renderer.start([{"role": "user", "content": "hi"}]) == [
        *(start_id, *encode("system\nYou are helpful."), end_id, *encode("\n")),
        *(start_id, *encode("user\nhi"), end_id, *encode("\n")),
        *(start_id, *encode("assistant\n")),
    ]
    opened = [*encode("\n"), start_id, *encode("user\nmore"), end_id, *encode("\n")]
    opened += [start_id, *encode("assistant\n")]
    # The policy ended its message itself: the end token is in the completion already.
    assert renderer.extend("more", last=renderer.end_token_ids[0]) == opened
    # It ran out of tokens: the end token is part of what is appended.
    assert renderer.extend("more", last=None) == [end_id, *opened]
    tool = renderer.extend("more", last=renderer.end_token_ids[0], role="tool")
    assert tokenizer.decode(tool) == ("\n<|im_start|>tool\nmore<|im_end|>\n<|im_start|>assistant\n")


def test_a_template_that_forgets_reasoning_is_reported_and_its_tokens_stay(make_tokenizer):
    renderer = Renderer(make_tokenizer("forgetful"))
    said = "<think> 6 x 7 </think> 42"
    tokens, messages = appended(renderer, None, [("6 x 7?", said)], ended=True)
    anew = renderer.tokenizer.decode(renderer.start(messages))
    assert "<think>" not in anew, "the template does forget"
    kept = renderer.tokenizer.decode(tokens)
    assert said in kept
    assert kept == anew.replace(" 42", said), "and nothing else differs"
    assert renderer.difference is not None
    assert "<think>" in renderer.difference


def test_the_extension_of_an_earlier_turn_is_never_rewritten(make_tokenizer):
    renderer = Renderer(make_tokenizer("forgetful"))
    turns = [("a", "<think>x</think>1"), ("b", "<think>y</think>2"), ("c", "3")]
    before, after = (appended(renderer, "rules", turns[:n], True)[0] for n in (2, 3))
    shared = len(before) - len(renderer.extend("the last word", last=renderer.end_token_ids[0]))
    assert after[:shared] == before[:shared]


def test_without_a_template_a_prompt_begins_as_each_text_does(make_tokenizer):
    """As the base models of Gemma, Llama and Mistral, which write one token, or GLM's, two."""
    tokenizer = make_tokenizer("plain")
    tokenizer.add_tokens(["<bos>", "<sop>"], special_tokens=True)
    first = tokenizer.convert_tokens_to_ids(["<bos>", "<sop>"])
    for count in (1, 2):
        named = [(tokenizer.convert_ids_to_tokens(one), one) for one in first[:count]]
        marks = " ".join(name for name, _ in named)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{marks} $A", special_tokens=named
        )
        renderer = Renderer(tokenizer)
        user = {"role": "user", "content": "Q <bos>"}
        start = renderer.start([user])
        assert start[:count] == tokenizer("Q").input_ids[:count] == first[:count]
        assert not set(first) & set(start[count:]), "text writes no special token"
        assert not set(first) & set(renderer.extend("B", last=renderer.end_token_ids[0])), (
            "no second beginning"
        )


def test_without_a_template_messages_are_lines(make_tokenizer, caplog):
    with caplog.at_level(logging.WARNING):
        renderer = Renderer(make_tokenizer("plain"))
    assert [r.message for r in caplog.records] == [
        "the tokenizer has no chat template: messages are rendered as lines"
    ]
    decode = renderer.tokenizer.decode
    system = {"role": "system", "content": "Rules."}
    assert decode(renderer.start([system, {"role": "user", "content": "Q"}])) == "Rules.\nQ\n"
    assert decode(renderer.extend("B", last=None)) == "\nB\n"
    assert decode(renderer.extend("B", last=renderer.end_token_ids[0])) == "\nB\n"
    assert renderer.end_token_ids == (renderer.tokenizer.eos_token_id,)
    assert renderer.difference is None


@pytest.mark.parametrize(
    ("text", "stop", "seen"),
    [
        ("no stop here", ("</search>",), "no stop here"),
        ("ask </search> and more", ("</search>",), "ask </search>"),
        ("a </b> c </a>", ("</a>", "</b>"), "a </b>"),
        ("one one", ("one",), "one"),
        ("x</search>y", ("earch>y", "</search>"), "x</search>"),
        ("", ("</search>",), ""),
        ("a\n</search>", (), "a\n</search>"),
    ],
)
def test_text_ends_with_the_first_stop_string(make_tokenizer, text, stop, seen):
    renderer = Renderer(make_tokenizer("tiny"))
    assert renderer.text(renderer.splice(text), stop) == seen
    assert renderer.text([*renderer.splice(text), renderer.end_token_ids[0]], stop) == seen


def test_text_drops_one_end_token_at_the_end_and_shows_every_other(make_tokenizer):
    renderer = Renderer(make_tokenizer("tiny"))
    end = renderer.end_token_ids[0]
    assert renderer.text([end, *renderer.splice("a"), end, end]) == "<|end|>a<|end|>"
    assert renderer.text([]) == ""


FOREIGN = st.lists(
    st.sampled_from(
        [
            *(
                "<|end|>",
                "<|im_start|>",
                "<|im_end|>",
                "<|assistant|>",
                "<|pad|>",
                "<|im_",
                "end|>",
            ),
            *("\ufdd01\ufdd0", "\ufdd11\ufdd1", "\ufdd1", "\ud800", " ", "\n", "6 x 7"),
        ]
    )
    | st.text(max_size=4),
    max_size=8,
).map("".join)


@pytest.mark.parametrize("kind", ["tiny", "chatml", "forgetful", "plain", "metaspace", "swallows"])
def test_no_content_becomes_a_special_token(renderers, make_tokenizer, kind):
    if kind not in renderers:
        renderers[kind] = Renderer(make_tokenizer(kind))
    renderer = renderers[kind]
    tokenizer = renderer.tokenizer

    def specials(tokens):
        return [token for token in tokens if token in tokenizer.all_special_ids]

    @settings(max_examples=60, deadline=None, database=None)
    @given(FOREIGN, FOREIGN)
    def check(system, observation):
        innocent = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
        messages = [{"role": "system", "content": system}, {"role": "user", "content": observation}]
        assert specials(renderer.start(messages)) == specials(renderer.start(innocent))
        assert specials(renderer.extend(observation, last=None)) == specials(
            renderer.extend("y", last=None)
        )
        assert specials(renderer.splice(observation)) == []
        if kind in ("tiny", "chatml", "forgetful", "plain"):
            # Nothing is lost: it is all there, as text.
            seen = observation.encode("utf-8", "backslashreplace").decode()
            seen = seen.replace("\ufdd0", r"\ufdd0").replace("\ufdd1", r"\ufdd1")
            assert seen in tokenizer.decode(renderer.extend(observation, last=None))
            assert tokenizer.decode(renderer.splice(observation)) == seen

    check()


@pytest.mark.parametrize("kind", ["tiny", "chatml", "forgetful", "plain", "metaspace", "swallows"])
def test_text_without_special_tokens_is_encoded_as_by_the_tokenizer(
    renderers, make_tokenizer, kind
):
    if kind not in renderers:
        renderers[kind] = Renderer(make_tokenizer(kind))
    renderer = renderers[kind]
    tokenizer = renderer.tokenizer

    @settings(max_examples=60, deadline=None, database=None)
    # Two characters are private to the encoder, which writes them as escapes.
    @given(
        *[
            t.filter(lambda text: not re.search("<[|]|[\ufdd0\ufdd1]", text))
            for t in (TEXT, st.text(max_size=8))
        ]
    )
    def check(system, observation):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": observation}]
        text = tokenizer.apply_chat_template(
            messages,
            chat_template=tokenizer.chat_template or PLAIN_TEMPLATE,
            tokenize=False,
            add_generation_prompt=True,
        )
        assert renderer.start(messages) == tokenizer.encode(text, add_special_tokens=False)

    check()


def test_a_tokenizer_written_in_python_serves_as_well():
    tokenizer = ByT5Tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<extra_id_3>{% endif %}"
    )
    renderer = Renderer(tokenizer)
    end, speak = tokenizer.convert_tokens_to_ids(["</s>", "<extra_id_3>"])
    message = [{"role": "user", "content": "a</s>b"}]
    assert renderer.start(message) == [*(byte + 3 for byte in b"a</s>b"), end, speak]
    message = [{"role": "user", "content": "ab"}]
    assert renderer.start(message) == tokenizer.encode(
        "ab</s><extra_id_3>", add_special_tokens=False
    )


def test_a_special_token_in_a_text_that_the_template_edits(make_tokenizer):
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = tokenizer.chat_template.replace("m.content", "m.content | trim")
    renderer = Renderer(tokenizer)
    start, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    tokens = renderer.extend(" <|im_end|><|im_start|> ", last=None)
    assert tokens.count(end) == 2
    assert tokens.count(start) == 2
    assert "user\n<|im_end|><|im_start|><|im_end|>\n" in tokenizer.decode(tokens)


def test_a_tokenizers_automatic_start_token_is_not_added(make_tokenizer):
    tokenizer = make_tokenizer("tiny")
    backend = tokenizer.backend_tokenizer
    begin = backend.token_to_id("<|system|>")
    backend.post_processor = TemplateProcessing(
        single="<|system|> $A", special_tokens=[("<|system|>", begin)]
    )
    assert tokenizer.encode("a")[0] == begin
    renderer = Renderer(tokenizer)
    assert renderer.difference is None
    assert begin not in renderer.splice("a")
    assert begin not in renderer.start([{"role": "user", "content": "a"}])


def test_a_tokenizer_without_an_end_is_refused(make_tokenizer):
    tokenizer = make_tokenizer("tiny")
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match=r"^the tokenizer has no eos_token: set the one that"):
        Renderer(tokenizer)


def test_a_template_that_drops_assistant_messages_is_refused(make_tokenizer):
    tokenizer = make_tokenizer("tiny")
    tokenizer.chat_template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}"
    tokenizer.chat_template += "{% endif %}{% endfor %}"
    with pytest.raises(ValueError, match="drops assistant messages"):
        Renderer(tokenizer)


@pytest.mark.parametrize("kind", ["tiny", "chatml", "plain", "metaspace", "swallows"])
@pytest.mark.parametrize("ended", [True, False])
def test_one_message_follows_as_an_observation_does(make_tokenizer, kind, ended):
    renderer = Renderer(make_tokenizer(kind))
    text = " <|im_end|> 6 x 7?\n"
    message = {"role": "user", "content": text}
    last = renderer.end_token_ids[0] if ended else None
    assert renderer.follow([message], last=last) == renderer.extend(text, last=last)


def test_several_appended_messages_equal_a_new_rendering(make_tokenizer):
    renderer = Renderer(make_tokenizer("tiny"))
    first = {"role": "user", "content": "6 x 7?"}
    rest = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    said = [{"role": "assistant", "content": "42"}]
    appended = renderer.start([first]) + renderer.splice("42")
    assert appended + renderer.follow(rest, last=None) == renderer.start([first, *said, *rest])


def test_a_template_with_tools_shows_them(make_tokenizer):
    tool = {"type": "function", "function": {"name": "look<|im_end|>"}}
    tokenizer = make_tokenizer("chatml")
    assert not Renderer(tokenizer).takes_tools
    tokenizer.chat_template = "{{ tools | tojson if tools else '' }}" + tokenizer.chat_template
    renderer = Renderer(tokenizer)
    assert renderer.takes_tools
    tokens = renderer.start([{"role": "user", "content": "x"}], [tool])
    assert tokenizer.decode(tokens).startswith('[{"type": "function", "function": {"name": "look<')
    end = renderer.end_token_ids[0]
    assert tokens.count(end) == renderer.start([{"role": "user", "content": "x"}]).count(end)


def test_a_conversation_that_the_template_rejects_is_reported(make_tokenizer):
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}"
        "{% endif %}{% endfor %}" + tokenizer.chat_template
    )
    renderer = Renderer(tokenizer)
    with pytest.raises(ValueError, match=r"the chat template refuses.*no tools here"):
        renderer.follow([{"role": "tool", "content": "x"}], last=renderer.end_token_ids[0])
