"""Settings of a chat template, which are written into the tokenizer's template."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from agents.agent import TokenAgent
from agents.completion import Completion, FinishReason, SamplingParams
from agents.published_templates import TEMPLATES
from agents.renderer import Renderer
from agents.template_settings import prefill_of, set_template
from rl.data.conversations import Conversation, Exchange, to_messages

QUESTION = [{"role": "user", "content": "6 x 7?"}]
THINKS = (
    "\n  {% if enable_thinking is not defined or enable_thinking %}on{% else %}off{% endif %}"
    "{% for m in messages %}[{{ m.content }}]{% endfor %}{{ name | default('') }}\n"
)


def prompt(tokenizer):
    return tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "\n  on[6 x 7?]"),
        ({"enable_thinking": True}, "\n  on[6 x 7?]"),
        ({"enable_thinking": False}, "\n  off[6 x 7?]"),
        ({"enable_thinking": False, "name": 'a "b"\\é'}, '\n  off[6 x 7?]a "b"\\é'),
        ({"name": 3}, "\n  on[6 x 7?]3"),
        ({"enable_thinking": None}, "\n  off[6 x 7?]"),
    ],
)
def test_arguments_are_read_by_the_template_and_change_nothing_else(
    make_tokenizer, arguments, text
):
    tokenizer = make_tokenizer("tiny")
    set_template(tokenizer, THINKS)
    # Jinja takes the space ahead of a block at the beginning of a line.
    own = prompt(tokenizer)
    set_template(tokenizer, "", arguments)
    assert prompt(tokenizer).replace("off", "on").startswith(own)
    assert prompt(tokenizer) == text.replace("\n  ", "\n")


def test_later_settings_win_and_the_same_ones_change_nothing(make_tokenizer):
    tokenizer = make_tokenizer("tiny")
    for thinking in (False, True, False):
        set_template(tokenizer, "", {"enable_thinking": thinking, "name": "n"}, "<think>")
    assert tokenizer.chat_template.count("enable_thinking") == 1
    assert prompt(tokenizer).endswith("<think>")
    assert prompt(tokenizer).count("<think>") == 1
    set_template(tokenizer, "", {}, 'So, "now":\n')
    assert prompt(tokenizer).endswith('So, "now":\n')
    assert "<think>" not in prompt(tokenizer)
    assert prefill_of(tokenizer.chat_template) == 'So, "now":\n'
    before = tokenizer.chat_template
    set_template(tokenizer)
    assert tokenizer.chat_template == before


def test_a_template_that_opens_the_tag_gets_no_second_one(make_tokenizer):
    tokenizer = make_tokenizer("distill")
    before = tokenizer.chat_template
    set_template(tokenizer, prefill="<think>")
    assert tokenizer.chat_template == before


def test_settings_need_a_template(make_tokenizer):
    with pytest.raises(ValueError, match=r"no chat template: give one \(chat\.template=FILE\)"):
        set_template(make_tokenizer("plain"), prefill="<think>")


def test_a_saved_tokenizer_holds_its_settings(make_tokenizer, tmp_path):
    tokenizer = make_tokenizer("hermes")
    set_template(tokenizer, "", {"a": 1}, "<think>")
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert prompt(loaded) == prompt(tokenizer)
    assert Renderer(loaded).opening == "<think>"


@pytest.mark.parametrize(
    ("kind", "prefill", "opening"),
    [
        ("hermes", "", ""),
        ("hermes", "<think>", "<think>"),
        ("hermes", "Well.\n<think>", "Well.\n<think>"),
        ("distill", "", "<think>\n"),
        ("distill", "<think>", "<think>\n"),
        ("gemma", "<answer>", "<answer>"),
        ("mistral", "<think>\n", "<think>\n"),
    ],
)
def test_every_answer_begins_with_the_prefill(make_tokenizer, kind, prefill, opening):
    tokenizer = make_tokenizer(kind)
    set_template(tokenizer, prefill=prefill)
    renderer = Renderer(tokenizer)
    decode = tokenizer.decode
    assert renderer.opening == opening
    assert decode(renderer.start(QUESTION)).endswith(opening)
    assert decode(renderer.extend("more", last=renderer.end_token_ids[0])).endswith(opening)
    assert not decode(renderer.extend("more", last=renderer.end_token_ids[0])).startswith(
        opening or "?"
    )
    for text in (f"{opening}a", f"{opening.rstrip()}a"):
        assert decode(renderer.answer(text)).strip() == "a"
    assert decode(renderer.answer("b")) == "b"


class OneWord:
    """A policy that says the same each time."""

    def __init__(self, tokens):
        self.tokens = tuple(tokens)

    async def generate(self, prompt, sampling, session):
        zeros = (0.0,) * len(self.tokens)
        return Completion(self.tokens, zeros, (0,) * len(zeros), FinishReason.STOP_TOKEN)


async def test_an_environment_sees_the_opening_once_a_message_and_it_is_not_trained(make_tokenizer):
    tokenizer = make_tokenizer("distill")
    renderer = Renderer(tokenizer)
    said = [*renderer.splice("x</think>y"), renderer.end_token_ids[0]]
    agent = TokenAgent(
        renderer, OneWord(said), SamplingParams(), session="s", context_length=10_000
    )
    agent.start("Q")
    assert await agent.act() == "<think>\nx</think>y"
    agent.observe("found", continues=True)
    assert await agent.act() == "x</think>y"
    agent.observe("more", continues=False)
    assert await agent.act() == "<think>\nx</think>y"
    trained = [
        t for t, m in zip(agent.segment.token_ids, agent.segment.loss_mask, strict=True) if m
    ]
    assert trained == said * 3


@pytest.mark.parametrize("kind", ["hermes", "distill"])
async def test_an_environments_prefill_opens_the_tag_once_and_is_no_part_of_an_action(
    make_tokenizer, kind
):
    renderer = Renderer(make_tokenizer(kind))
    said = [*renderer.splice("x</think>y"), renderer.end_token_ids[0]]
    agent = TokenAgent(
        renderer, OneWord(said), SamplingParams(), session="s", context_length=10_000
    )
    agent.start("Q", None, (), "<think>")
    assert await agent.act() == "x</think>y"
    agent.observe("found", continues=True)
    assert await agent.act() == "x</think>y"
    agent.observe("more", continues=False)
    assert await agent.act() == "x</think>y"
    assert renderer.tokenizer.decode(agent.segment.token_ids).count("<think>") == 2


def test_imitation_of_an_environments_author_begins_behind_its_prefill(make_tokenizer):
    for kind in ("hermes", "distill"):
        renderer = Renderer(make_tokenizer(kind))
        exchange = Exchange("Q", "x</think>y", prefill="<think>")
        segment = Conversation((exchange,)).to_segment(renderer)
        trained = [t for t, m in zip(segment.token_ids, segment.loss_mask, strict=True) if m]
        decode = renderer.tokenizer.decode
        assert decode(trained[:-1]) == "x</think>y"
        assert decode(segment.token_ids).count("<think>") == 1


def test_imitated_text_follows_the_opening(make_tokenizer):
    renderer = Renderer(make_tokenizer("distill"))
    segment = Conversation((Exchange("6 x 7?", "<think>\nso</think>42"),)).to_segment(renderer)
    whole = renderer.tokenizer.decode(segment.token_ids)
    assert whole == "<|User|>6 x 7?<|Assistant|><think>\nso</think>42<|end|>"


PUBLISHED = {
    "r1-zero": (
        "A conversation between User and Assistant. The user asks a question, and the Assistant "
        "solves it. The assistant first thinks about the reasoning process in the mind and then "
        "provides the user with the answer. The reasoning process and answer are enclosed within "
        "<think> </think> and <answer> </answer> tags, respectively, i.e., <think> reasoning "
        "process here </think> <answer> answer here </answer>. User: 6 x 7?. Assistant:"
    ),
    "orz": (
        "A conversation between User and Assistant. The User asks a question, and the Assistant "
        "solves it. The Assistant first thinks about the reasoning process in the mind and then "
        "provides the User with the answer. The reasoning process is enclosed within <think> "
        "</think> and answer is enclosed within <answer> </answer> tags, respectively, i.e., "
        "<think> reasoning process here </think> <answer> answer here </answer>. User: You must "
        "put your answer inside <answer> </answer> tags, i.e., <answer> answer here </answer>. And "
        "your final answer will be extracted automatically by the \\boxed{} tag.\nThis is the "
        "problem:\n6 x 7?\nAssistant: <think>"
    ),
    "qwen-math": (
        "<|im_start|>system\nPlease reason step by step, and put your final answer within "
        "\\boxed{}.<|im_end|>\n<|im_start|>user\n6 x 7?<|im_end|>\n<|im_start|>assistant\n"
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_published_prompt_to_the_letter(make_tokenizer, name):
    tokenizer = make_tokenizer("chatml")
    set_template(tokenizer, TEMPLATES[name])
    renderer = Renderer(tokenizer)
    assert tokenizer.decode(renderer.start(QUESTION)) == PUBLISHED[name]
    assert renderer.opening == ("<think>" if name == "orz" else "")
    assert renderer.difference is None

    @settings(max_examples=30, deadline=None, database=None)
    @given(st.lists(st.sampled_from(["a", "b <think>c</think>", "6"]), min_size=1, max_size=4))
    def appending_equals_rendering_anew(answers):
        tokens, messages = [], []
        for answer in answers:
            grown = (
                renderer.extend("more", last=renderer.end_token_ids[0])
                if tokens
                else renderer.start(QUESTION)
            )
            messages.append({"role": "user", "content": "more"} if tokens else QUESTION[0])
            tokens = [*tokens, *grown, *renderer.splice(answer), renderer.end_token_ids[0]]
            said = renderer.opening + answer
            messages.append({"role": "assistant", "content": said})
        tokens += renderer.extend("end", last=renderer.end_token_ids[0])
        messages.append({"role": "user", "content": "end"})
        anew = tokenizer.decode(renderer.start(messages))
        assert tokenizer.decode(tokens) == anew

    appending_equals_rendering_anew()


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("thinking", "Rome"),
        ("thinking", "<think>\nItaly.\n</think>\n\nRome"),
        # It writes answers without a thought, which its prompt opens.
        ("distill", "Rome"),
    ],
)
def test_an_answer_is_taught_as_the_template_writes_it(make_tokenizer, kind, answer):
    """Behind a prompt that opens a thought, the bare answer would be taught as a thought."""
    tokenizer = make_tokenizer(kind)
    conversation = Conversation((Exchange("The capital of Italy?", answer),))
    segment = conversation.to_segment(Renderer(tokenizer))
    said = tokenizer.apply_chat_template(to_messages(conversation), tokenize=False)
    assert tokenizer.decode(segment.token_ids) == said.rstrip("\n")
    taught = [i for i, mask in zip(segment.token_ids, segment.loss_mask, strict=True) if mask]
    assert tokenizer.decode(taught).partition("Rome")[1] == "Rome"


def test_the_prompt_and_earlier_turns_of_a_taught_conversation_stay(make_tokenizer):
    renderer = Renderer(make_tokenizer("thinking"))
    exchanges = Exchange("6 x 7?", "42"), Exchange("Sure?", "<think>\nHm.\n</think>\n\nYes")
    segment = Conversation(exchanges, "Be brief.").to_segment(renderer)
    assert renderer.tokenizer.decode(segment.token_ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n6 x 7?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n42<|im_end|>\n"
        "<|im_start|>user\nSure?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nHm.\n</think>\n\nYes<|im_end|>"
    )


def test_a_thought_behind_a_prompt_that_closes_an_empty_one_is_refused(make_tokenizer):
    tokenizer = make_tokenizer("thinking")
    set_template(tokenizer, arguments={"enable_thinking": False})
    renderer = Renderer(tokenizer)
    plain = Conversation((Exchange("Q", "Rome"),)).to_segment(renderer)
    assert tokenizer.decode(plain.token_ids).endswith("<think>\n\n</think>\n\nRome<|im_end|>")
    thought = Conversation((Exchange("Q", "<think>\nItaly.\n</think>\n\nRome"),))
    with pytest.raises(ValueError, match=r"closes an empty thought .*enable_thinking=True"):
        thought.to_segment(renderer)
