"""Templates in the formats of published models: rejected, moved and dropped messages."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.renderer import FOLDED, FORGETS, REWRITES, Renderer
from benchmarks.models.templates import EQUAL, REFUSED, verdicts_of

KINDS = ["gemma", "mistral", "llama", "hermes", "distill"]
TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\ufdd0\ufdd1"), max_size=6
)
WORDS = st.lists(
    TEXT
    | st.sampled_from(["<|im_end|>", "<end_of_turn>", "</s>", "[INST]", "<|eot_id|>", "<|User|>"]),
    max_size=4,
).map(lambda parts: "x" + "".join(parts) + "x")


@pytest.fixture(scope="module")
def renderers():
    """A renderer for each template, made once: hypothesis runs through many conversations."""
    return {}


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_tokens_stay_and_the_others_come_from_the_template(renderers, make_tokenizer, kind):
    renderer = renderers.setdefault(kind, Renderer(make_tokenizer(kind)))
    decode = renderer.tokenizer.decode
    added = renderer.tokenizer.added_tokens_decoder
    special = {token_id for token_id, token in added.items() if token.special}

    def specials(tokens):
        return [token for token in tokens if token in special]

    @settings(max_examples=60, deadline=None, database=None)
    @given(WORDS, st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4))
    def check(rules, turns):
        messages = [{"role": "system", "content": rules}]
        tokens, innocent = [], []
        for number, (observation, answer) in enumerate(turns):
            messages.append({"role": "user", "content": observation})
            grown = (
                renderer.extend(observation, last=renderer.end_token_ids[0])
                if number
                else renderer.start(messages)
            )
            sampled = [*renderer.splice(answer), renderer.end_token_ids[0]]
            innocent += specials(
                renderer.extend("x", last=renderer.end_token_ids[0])
                if number
                else renderer.start(
                    [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
                )
            )
            innocent.append(sampled[-1])
            tokens = tokens + grown + sampled
            assert tokens[-len(sampled) :] == sampled
            messages.append({"role": "assistant", "content": answer})
        # No text became a special token, whatever it says.
        assert specials(tokens) == innocent
        tokens = tokens + renderer.extend("end", last=renderer.end_token_ids[0])
        anew = renderer.start([*messages, {"role": "user", "content": "end"}])
        expected = decode(anew)
        if kind == "distill":
            # It opens a tag ahead of each answer, and forgets the tag.
            for _, answer in turns:
                expected = expected.replace(
                    "<|Assistant|>" + answer, "<|Assistant|><think>\n" + answer, 1
                )
        if kind == "mistral":
            # It writes a space ahead of an answer, which a model samples itself.
            for _, answer in turns:
                expected = expected.replace("[/INST] " + answer, "[/INST]" + answer, 1)
        assert decode(tokens) == expected

    check()


@pytest.mark.parametrize("kind", ["gemma", "mistral"])
def test_without_a_system_role_the_rules_lead_the_first_user_message(make_tokenizer, kind):
    renderer = Renderer(make_tokenizer(kind))
    rules, question = {"role": "system", "content": "Rules."}, {"role": "user", "content": "Q"}
    folded = renderer.start([{"role": "user", "content": "Rules.\n\nQ"}])
    assert renderer.start([rules, question]) == folded
    assert "Rules." not in renderer.tokenizer.decode(
        renderer.extend("more", last=renderer.end_token_ids[0])
    )
    # Rules alone are a user's message.
    assert renderer.start([rules]) == renderer.start([{"role": "user", "content": "Rules."}])
    assert FOLDED in renderer.notices


@pytest.mark.parametrize("kind", ["llama", "hermes", "distill", "chatml", "tiny", "plain"])
def test_with_a_system_role_nothing_is_folded(make_tokenizer, kind):
    renderer = Renderer(make_tokenizer(kind))
    assert not renderer.template.folds_system
    assert FOLDED not in renderer.notices


@pytest.mark.parametrize("kind", ["distill", "forgetful"])
def test_a_notice_reports_a_template_that_drops_reasoning_and_the_fix(make_tokenizer, kind):
    assert Renderer(make_tokenizer(kind)).notices == (FORGETS,)


def test_a_notice_reports_a_template_that_rewrites_turns(make_tokenizer):
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{ m.content }}", "{{ m.content }}{{ '' if loop.last else '!' }}"
    )
    (notice,) = Renderer(tokenizer).notices
    assert notice.startswith(REWRITES)
    assert "42!" in notice


def test_templates_that_publishers_ship_are_followed():
    found = importlib.util.find_spec("trl")
    if found is None or found.origin is None:
        pytest.skip("TRL, which carries published templates, is not installed")
    folder = Path(found.origin).parent / "chat_templates"
    if not (sources := sorted(folder.glob("*.jinja"))):
        pytest.skip("this TRL carries no templates")
    wrong = [
        f"{path.stem}: {name}: {verdict}"
        for path in sources
        for name, verdict in verdicts_of(path.read_text(encoding="utf-8"))
        if not verdict.startswith((EQUAL, REFUSED))
    ]
    assert wrong == []
