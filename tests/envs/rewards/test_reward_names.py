"""Rubrics by name: built in, registered here, and from installed plug-ins."""

from __future__ import annotations

import importlib
import sys
import textwrap

import pytest

from envs.rewards import Reward, Transcript, make_rubric, names, register, registration
from tools.registry import PluginImportError, Registry, UnknownNameError

GOOD = "<think>\nIt is Obama.\n</think>\n<answer>\nObama\n</answer>"
TRANSCRIPT = Transcript(
    text=GOOD, written=GOOD, answer="Obama", golds=("Barack Obama",), correct=0.25
)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a distribution that advertises rewards, seen by a fresh registry."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def _install(dist: str, entry_points: dict[str, str], source: str) -> None:
        info = tmp_path / f"{dist}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
        lines = [
            "[turnwise.rewards]",
            *(f"{name} = {value}" for name, value in entry_points.items()),
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))
        (tmp_path / f"{dist}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, dist, raising=False)
        fresh = Registry("reward", "turnwise.rewards", registration._NAME)
        fresh.register("rubric.f1", "envs.rewards.components:f1")
        monkeypatch.setattr(registration, "_registry", fresh)

    return _install


@pytest.mark.parametrize(
    ("text", "contributions"),
    [
        ("accuracy", {"accuracy": 0.25}),
        ("verdict", {"verdict": -0.5}),
        ("verdict(wrong=-0.5, none=-1)", {"verdict": -0.125}),
        ("think_answer", {"think_answer": 1.0}),
        ("tag_count", {"tag_count": 1.0}),
        ("repetition", {"repetition": 0.0}),
        ("language", {"language": 1.0}),
        ("language(language='ru')", {"language": 0.0}),
        ("research_format", {"research_format": 0.0}),
        ("searcher_format", {"searcher_format": 0.0}),
        ("search_r1_format", {"search_r1_format": 1.0}),
        ("em", {"em": 0.0}),
        ("f1", {"f1": 2 / 3}),
        ("cover_em", {"cover_em": 0.0}),
        ("jaccard", {"jaccard": 0.5}),
        ("2*f1 + think_answer", {"f1": 4 / 3, "think_answer": 1.0}),
        ("f1, -0.5*tag_count", {"f1": 2 / 3, "tag_count": -0.5}),
        ("[f1, tag_count * 0.5]", {"f1": 2 / 3, "tag_count": 0.5}),
        ("f1 - 0.5*(tag_count + 2*em)", {"f1": 2 / 3, "tag_count": -0.5, "em": 0.0}),
        ("gate(f1, at_least=0.9)", {"f1": 0.0}),
        ("0.5*gate(f1 + tag_count, at_least=1.5)", {"f1": 1 / 3, "tag_count": 0.5}),
        ("sequential(think_answer, f1 + em)", {"f1": 2 / 3, "em": 0.0}),
        ("sequential(searcher_format, f1)", {"f1": 0.0}),
    ],
)
def test_a_rubric_in_a_word(text, contributions):
    rubric = make_rubric(text)
    assert rubric(TRANSCRIPT) == pytest.approx(contributions)
    assert rubric.names == tuple(contributions)


def test_every_built_in_name_is_made_with_its_defaults():
    assert {"accuracy", "f1", "language", "tag_count"} <= set(names("rubric"))
    for name in names("rubric"):
        rubric = make_rubric(name)
        low, high = rubric.reward_range
        assert low <= rubric.total(TRANSCRIPT) <= high
        assert rubric.total(Transcript(text="", written="", golds=("x",))) <= rubric.reward_floor


def test_what_an_agent_read_is_not_what_it_wrote():
    read = Transcript(text="a b c a b c", written="a b c")
    assert make_rubric("repetition")(read) == {"repetition": 0.0}
    spammed = Transcript(text="", written="a b c a b c", complete=False)
    assert make_rubric("repetition(ngram=3, max_penalty=-2.0)")(spammed) == {"repetition": -0.5}


def test_a_text_that_ran_into_a_limit_has_no_right_format():
    text = "<think></think><answer>\\boxed{x}</answer>"
    for complete in (True, False):
        transcript = Transcript(text=text, written=text, complete=complete)
        assert make_rubric("research_format").total(transcript) == complete


def test_an_answer_that_is_not_there_earns_nothing_and_missing_golds_are_said():
    for name in ("em", "f1", "cover_em", "jaccard"):
        assert make_rubric(name).total(Transcript(text="x", written="x", golds=("x",))) == 0.0
        with pytest.raises(ValueError, match=f"{name} compares with gold answers"):
            make_rubric(name)(Transcript(text="x", written="x", answer="x"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be a sum such as"),
        ("f1 +", "must be a sum such as"),
        ("f1 / 2", "f1 / 2 is no name"),
        ("f1 * em", "multiplies no number"),
        ("f1 if 1 else em", "is no name"),
        ("__import__('os').getpid()", "is no name"),
        ("f1(**{})", "takes options as name=value"),
        ("f1(normalizer=em)", "must be a sum such as"),
        ("f1(em)", "f1 takes options, as name=value"),
        ("f1 + f1(normalizer='r1-searcher')", "two contributions are called 'f1'"),
        ("f1(normaliser='squad')", "Did you mean 'normalizer'?"),
        ("f1(normalizer='square')", "must be one of squad, r1-searcher"),
        ("language(language='tlh')", "must be one of ar, bg"),
        ("repetition(ngram=0)", r"ngram \(0\) must be >= 1"),
        ("repetition(max_penalty=1.0)", r"max_penalty \(1.0\) must be <= 0"),
        ("gate(f1, em)", "gate takes one rubric, not 2"),
        ("gate(f1, atleast=1)", "Did you mean 'at_least'?"),
        ("sequential(f1, em, at_least=1)", "no options"),
        ("1e999*f1", "must be finite"),
    ],
)
def test_what_is_wrong_is_said_with_the_setting(text, says):
    with pytest.raises(ValueError, match=says) as error:
        make_rubric(text, "env.rubric")
    assert str(error.value).startswith(f"env.rubric ({text})")


def test_an_unknown_name_gets_what_was_meant_among_its_own_kind():
    with pytest.raises(UnknownNameError, match=r"'jacard'. Did you mean 'jaccard'\?"):
        make_rubric("em + jacard")


def test_registered_here(monkeypatch):
    fresh = Registry("reward", "turnwise.rewards", registration._NAME)
    monkeypatch.setattr(registration, "_registry", fresh)
    short = Reward("short", lambda transcript: float(len(transcript.written) < 80))
    register("rubric", "short", short)
    assert make_rubric("short") is short
    with pytest.raises(ValueError, match="short has no options, yet 'limit'"):
        make_rubric("short(limit=3)")
    register("shaping", "brief", lambda: None)
    with pytest.raises(ValueError, match="'brief' is a shaping: it belongs in shaping"):
        make_rubric("brief")
    register("rubric", "odd", lambda: 3)
    with pytest.raises(ValueError, match="its factory made 3, which is no Rubric"):
        make_rubric("odd")
    for name in ("Short", "a-b", "1st", ""):
        with pytest.raises(ValueError, match="must be a word of"):
            register("rubric", name, short)
    assert names("rubric") == ["odd", "short"]
    assert names("shaping") == ["brief"]


POLITE = """
    from envs.rewards import Reward

    def polite(word="please"):
        return Reward("polite", lambda transcript: float(word in transcript.written))
"""


def test_a_plug_in_is_imported_when_it_is_asked_for(install):
    install("polite_pack", {"rubric.polite": "polite_pack:polite"}, POLITE)
    assert names("rubric") == ["f1", "polite"]
    assert names("shaping") == []
    assert "polite_pack" not in sys.modules
    rubric = make_rubric("f1 + 0.5*polite(word='Obama')")
    assert rubric(TRANSCRIPT) == pytest.approx({"f1": 2 / 3, "polite": 0.5})


def test_a_broken_plug_in_is_named_and_harms_no_other(install, caplog):
    claims = {"rubric.broken": "broken_pack:broken", "polite": "broken_pack:polite"}
    install("broken_pack", claims, "import no_such_module_anywhere")
    assert make_rubric("f1").total(TRANSCRIPT) == pytest.approx(2 / 3)
    assert names("rubric") == ["broken", "f1"]
    with pytest.raises(PluginImportError, match="no_such_module_anywhere"):
        make_rubric("broken")
    assert "'polite', advertised by broken_pack, is left out" in caplog.text
    assert "(rubric|shaping)" in caplog.text
