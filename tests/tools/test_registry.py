"""One registry for tools, environments and rewards: lazy plug-ins, broken ones, near misses."""

from __future__ import annotations

import importlib
import json
import re
import sys
import textwrap
import types
from importlib import metadata

import pytest

import tools
from tools.references import ReferenceFailure, load_module
from tools.registry import PluginImportError, Registry, UnknownNameError, closest

GROUP = "turnwise.test-things"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a distribution: its entry points in GROUP and its one module."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def _install(dist: str, entry_points: dict[str, str], source: str = "", group: str = GROUP):
        info = tmp_path / f"{dist}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
        lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entry_points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
        module = dist.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, module, raising=False)

    return _install


@pytest.fixture
def registry():
    return Registry("thing", GROUP)


def test_plugins_are_listed_without_being_imported(install, registry):
    install("nice-things", {"nice": "nice_things:THING"}, "THING = [1, 2]")
    assert registry.names() == ["nice"]
    assert "nice_things" not in sys.modules
    assert registry.get("nice") == [1, 2]
    assert registry.get("nice") is registry.get("nice")


def test_a_broken_plugin_is_named_and_breaks_nothing_else(install, registry):
    install("bad-things", {"bad": "bad_things:THING"}, "import no_such_module_anywhere")
    install("odd-things", {"odd": "odd_things:MISSING"}, "THING = 1")
    install("good-things", {"good": "good_things:THING"}, "THING = 3")
    assert registry.names() == ["bad", "good", "odd"]
    with pytest.raises(PluginImportError, match="no_such_module_anywhere") as error:
        registry.get("bad")
    for word in ("'bad'", "bad-things", "bad_things:THING", "nothing else is affected"):
        assert word in str(error.value)
    with pytest.raises(PluginImportError, match="odd-things"):
        registry.get("odd")
    assert registry.get("good") == 3


def test_a_plugin_that_exits_when_imported_ends_no_other_plugin(install, registry):
    install("exit-things", {"exit": "exit_things:THING"}, "raise SystemExit(3)")
    with pytest.raises(PluginImportError, match=r"'exit', advertised by exit-things .* SystemExit"):
        registry.get("exit")


def test_what_this_process_registers_wins_over_plugins_and_that_is_said(install, registry, caplog):
    claims = {"mine": "other_things:THING", "lazy": "other_things:THING"}
    install("other-things", claims, "THING = 'theirs'")
    ours = object()
    registry.register("mine", ours)
    registry.register("lazy", "json:dumps")
    assert registry.names() == ["lazy", "mine"]
    assert registry.names() == ["lazy", "mine"]
    assert registry.get("mine") is ours
    assert registry.get("lazy") is json.dumps
    left_out = "advertised by other-things, is left out: the name is registered already"
    assert sorted(caplog.messages) == [f"thing 'lazy', {left_out}", f"thing 'mine', {left_out}"]


def test_a_name_that_two_distributions_claim_is_nobodys(install, registry, caplog):
    install(
        "first-things", {"same": "first_things:THING", "one": "first_things:THING"}, "THING = 1"
    )
    install("second-things", {"same": "second_things:THING"}, "THING = 2")
    assert registry.names() == ["one", "same"]
    with pytest.raises(PluginImportError) as raised:
        registry.get("same")
    message = str(raised.value)
    assert message.startswith("thing 'same' is advertised by ")
    assert "first-things" in message
    assert "second-things" in message
    assert message.endswith(": uninstall all but one")
    assert registry.get("one") == 1
    assert caplog.messages == []


def test_an_advertised_name_of_another_form_is_left_out(install, caplog):
    registry = Registry("thing", GROUP, re.compile("[a-z]+"))
    install(
        "named-things", {"Bad": "named_things:THING", "good": "named_things:THING"}, "THING = 1"
    )
    assert registry.names() == ["good"]
    assert caplog.messages == [
        "thing 'Bad', advertised by named-things, is left out: the name does not match [a-z]+"
    ]


def test_a_name_is_given_once(registry):
    thing, other = object(), object()
    registry.register("a", thing)
    registry.register("a", thing)
    with pytest.raises(ValueError, match="thing 'a' is registered already"):
        registry.register("a", other)
    registry.register("b", "json:dumps")
    registry.register("b", "json:dumps")
    with pytest.raises(ValueError, match="thing 'b' is registered already"):
        registry.register("b", "json:loads")
    with pytest.raises(ValueError, match="thing 'b' is registered already"):
        registry.register("b", other)
    with pytest.raises(ValueError, match="must be 'module:attribute'"):
        registry.register("c", "json.dumps")


def test_a_file_that_is_imported_again_replaces_what_it_registered(registry, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    things = types.ModuleType("things_of_files")
    monkeypatch.setitem(sys.modules, "things_of_files", things)
    things.register = registry.register
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    source = "from things_of_files import register\nregister('a', {!r})\n"
    first.write_text(source.format([1]))
    load_module(str(first))
    first.write_text(source.format([1, 2]) + "raise ValueError\n")
    with pytest.raises(ReferenceFailure, match="ValueError"):
        load_module(str(first))
    first.write_text(source.format([1, 2, 3]))
    load_module(str(first))
    assert registry.get("a") == [1, 2, 3]

    second.write_text(source.format([1]))
    with pytest.raises(ReferenceFailure, match="thing 'a' is registered already"):
        load_module(str(second))
    first.write_text(source.format([1]) + "register('a', [2])\n")
    with pytest.raises(ReferenceFailure, match="thing 'a' is registered already"):
        load_module(str(first))
    with pytest.raises(ValueError, match="thing 'a' is registered already"):
        registry.register("a", [1])


def test_a_cell_that_is_run_again_replaces_what_it_registered(registry):
    cell = """
import tools

class Thing:
    pass

@tools.tool
def length(text: str) -> str:
    '''Its length.

    Args:
        text: Any.
    '''
    return str(len(text))

register("a", Thing)
register("b", length)
"""
    notebook = {"__name__": "__main__", "register": registry.register}
    exec(cell, notebook)
    before = registry.get("b")
    exec(cell, notebook)
    assert registry.get("a") is notebook["Thing"]
    assert registry.get("b") is notebook["length"] is not before
    with pytest.raises(ValueError, match="thing 'a' is registered already"):
        registry.register("a", notebook["length"])
    with pytest.raises(ValueError, match="thing 'a' is registered already"):
        exec(cell, {**notebook, "__name__": "elsewhere"})


def test_an_unknown_name_lists_what_exists(registry):
    registry.register("calculator", 1)
    registry.register("search", 2)
    with pytest.raises(UnknownNameError) as error:
        registry.get("calculater")
    message = str(error.value)
    assert "Did you mean 'calculator'?" in message
    assert "Known: calculator, search." in message
    assert GROUP in message
    with pytest.raises(UnknownNameError, match=r"'zzz'\. Known"):
        registry.get("zzz")


def test_closest_needs_some_likeness():
    assert closest("serach", ["search", "other"]) == "search"
    assert closest("qqqq", ["search"]) is None


def test_a_short_name_means_the_longer_one():
    # By letters alone, "valley" is more similar.
    assert closest("vll", ["valley", "vll-a-long-name"]) == "vll-a-long-name"
    assert closest("v", ["v-a-long-name"]) is None
    learners = Registry("learner", "turnwise.test_learners")
    learners.register("far-away-in-a-process", object())
    with pytest.raises(UnknownNameError, match="Did you mean 'far-away-in-a-process'"):
        learners.get("far")


def test_tools_by_name_find_plugins_and_check_options(install, monkeypatch):
    import tools.registration as registration

    # A fresh registry, since the process's own one has read its entry points already.
    monkeypatch.setattr(registration, "_registry", Registry("tool", "turnwise.tools"))
    source = '''
        import tools

        @tools.tool
        def shout(text: str) -> str:
            """Shout.

            Args:
                text: What.
            """
            return text.upper()

        def loudly(times: int, mark: str = "!"):
            return shout

        def wrong():
            return "no tool"
    '''
    names = {name: f"shout_tools:{name}" for name in ("shout", "loudly", "wrong")}
    install("shout-tools", names, source, group="turnwise.tools")
    assert tools.names() == ["loudly", "shout", "wrong"]
    shout = tools.make("shout")
    assert shout.name == "shout"
    assert tools.make("loudly", times=2) is shout
    with pytest.raises(TypeError, match="has no options, yet 'x' was given"):
        tools.make("shout", x=1)
    with pytest.raises(TypeError, match=r"no option 'marc'. Did you mean 'mark'\? Known: times, m"):
        tools.make("loudly", times=1, marc="?")
    with pytest.raises(TypeError, match="needs the option 'times'"):
        tools.make("loudly")
    with pytest.raises(TypeError, match="made 'no tool', which is not a Tool"):
        tools.make("wrong")
    tools.register("number", 7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="neither a Tool nor something that makes one"):
        tools.make("number")


def test_built_in_tools_are_known():
    assert "search" in tools.names()


def test_a_large_family_is_counted_and_a_small_one_listed():
    registry = Registry("thing", "turnwise.things")
    for name in ("lone", *(f"few/{i}" for i in range(3)), *(f"many/{i}" for i in range(9))):
        registry.register(name, object())
    with pytest.raises(UnknownNameError) as failure:
        registry.get("other")
    assert "Known: few/0, few/1, few/2, lone, many/... (9). " in str(failure.value)


def test_registries_of_several_groups_search_the_installed_distributions_once(install, monkeypatch):
    install("nice-things", {"nice": "nice_things:THING"})
    install("other-things", {"other": "other_things:THING"}, group="turnwise.test-others")
    searches, search = [], metadata.entry_points
    monkeypatch.setattr(metadata, "entry_points", lambda: searches.append(1) or search())
    assert Registry("thing", GROUP).names() == ["nice"]
    assert Registry("other", "turnwise.test-others").names() == ["other"]
    assert len(searches) == 1
    install("new-things", {"new": "new_things:THING"})
    assert Registry("thing", GROUP).names() == ["new", "nice"], "a changed folder is searched again"
