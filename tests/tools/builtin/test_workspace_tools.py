"""The tools bash, edit, read and fix: what a model reads, and how they share a workspace."""

from __future__ import annotations

import asyncio

import backends
import pytest
import pytest_asyncio

import tools
from tools.builtin.bash import BashTool, shown
from tools.builtin.workspaces import pool_of
from tools.registration import make_tools
from tools.sandbox import SandboxUnavailable
from tools.tool import ToolContext, ToolFailure
from tools.workspace import CommandResult, WorkspaceFailure

pytestmark = pytest.mark.asyncio(loop_scope="module")
ONE, TWO = ToolContext(session="one"), ToolContext(session="two")
FILE = "def f(x):\n    return x + 1\n\n\ndef g(x):\n    return x + 1\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    made = pool_of()
    try:
        await made.open()
    except SandboxUnavailable as error:
        backends.missing("auto", str(error))
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def kit(pool):
    await pool.start("one", {"a.py": FILE, "data.bin": b"\0\1\2", "big.txt": b"x" * (1 << 20 | 1)})
    yield {name: tools.make(name, pool=pool) for name in ("bash", "edit", "read", "fix")}
    for name in ("one", "two"):
        await pool.end(name)


async def text(tool, context=ONE, **arguments):
    return (await tool(arguments, context)).text


async def test_their_arguments_are_those_of_the_field(kit):
    assert list(kit["bash"].parameters["properties"]) == ["command", "timeout"]
    assert list(kit["read"].parameters["properties"]) == ["path", "offset", "limit"]
    assert kit["edit"].parameters["required"] == ["path", "old_str", "new_str"]
    assert kit["bash"].parameters["required"] == ["command"]


async def test_bash_shows_output_then_how_the_command_ended(kit):
    assert await text(kit["bash"], command="x=4") == "(no output)"
    assert await text(kit["bash"], command="echo $x") == "4"
    assert await text(kit["bash"], command="echo out; exit 3") == "out\n[exit code 3]"
    result = await kit["bash"]({"command": "sleep 100", "timeout": 0.3}, ONE)
    assert result.text == "[interrupted after 0.3 s]" and result.error == result.text[1:-1]
    wrong = await kit["bash"]({"command": "ls", "timeout": 9999}, ONE)
    assert wrong.error == "timeout (9999) must be above 0 and at most 300 seconds"


async def test_what_a_lost_workspace_shows():
    result = shown(CommandResult(None, "so far", over=True, detail="more than 512 MiB"))
    assert result.text == (
        "so far\n[more than 512 MiB]\n[the workspace has ended; its files are lost]"
    )
    assert result.error == "more than 512 MiB"


async def test_read_numbers_lines_and_says_what_is_missing(kit):
    read = kit["read"]
    assert await text(read, path="a.py", offset=5) == (
        "5\tdef g(x):\n6\t    return x + 1\n[lines 5 to 6 of 6]"
    )
    assert await text(read, path="a.py", limit=1) == "1\tdef f(x):\n[lines 1 to 1 of 6]"
    for arguments, message in (
        ({"path": "none"}, "none: No such file or directory"),
        ({"path": "a.py", "offset": 9}, "a.py has 6 lines; offset is 9"),
        ({"path": "a.py", "limit": 0}, "offset (1) and limit (0) must be at least 1"),
        ({"path": "data.bin"}, "data.bin is a binary file (3 bytes)"),
        (
            {"path": "big.txt"},
            "big.txt has more than 1048576 bytes: use the shell to read a part",
        ),
        ({"path": "."}, ".: Is a directory"),
    ):
        assert (await read(arguments, ONE)).error == message
    await text(kit["bash"], command="python -c \"print('y' * 5000)\" > wide; : > empty")
    assert (await text(read, path="wide")).endswith("y [4000 characters more]")
    assert await text(read, path="empty") == "(empty file)"


async def test_edit_replaces_one_text_and_says_why_not(kit):
    edit = kit["edit"]
    assert await text(edit, path="a.py", old_str="def g(x)", new_str="def h(x)") == (
        "Edited a.py, line 5."
    )
    for old, message in (
        ("x + 9", "old_str does not occur in a.py: read the file again"),
        (
            "  return x + 1  ",
            "old_str does not occur in a.py: compare the white space and the lines after the first",
        ),
        (
            "return x + 1",
            "old_str occurs 2 times in a.py (lines 2, 6): add the lines around it, or set "
            "replace_all",
        ),
        ("", "a.py exists: put the text to replace into old_str"),
        ("new", "old_str and new_str are equal: nothing would change"),
    ):
        result = await edit({"path": "a.py", "old_str": old, "new_str": "new"}, ONE)
        assert result.error == message
    everywhere = {"path": "a.py", "old_str": "x + 1", "new_str": "x + 2", "replace_all": True}
    assert (await edit(everywhere, ONE)).text == "Edited a.py, lines 2, 6."
    assert (await text(kit["bash"], command="cat a.py")).count("x + 2") == 2
    assert await text(edit, path="new/b.py", old_str="", new_str="1\n") == "Made new/b.py."
    assert await text(kit["bash"], command="cat new/b.py") == "1"


async def test_fix_replaces_a_line_and_keeps_its_indentation(pool, kit):
    fix = tools.make("fix", path="a.py", pool=pool)
    assert await text(fix, change="2 return x - 1") == "Line 2 is now: return x - 1"
    assert await text(kit["read"], path="a.py", offset=2, limit=1) == (
        "2\t    return x - 1\n[lines 2 to 2 of 6]"
    )
    for change, message in (
        ("return", "write a line's number, a space, and the new line"),
        ("1 a\nb", "write a line's number, a space, and the new line"),
        ("7 a", "a.py has 6 lines; there is no 7"),
    ):
        assert (await fix({"change": change}, ONE)).error == message


async def test_a_copy_of_the_episode_is_made_once_for_all_tools(pool, kit):
    await text(kit["bash"], command="x=5; echo one > own.txt")
    for tool in kit.values():
        await tool.fork("one", "two")
    await text(kit["bash"], TWO, command="x=6; echo two > own.txt")
    assert await text(kit["bash"], command="echo $x; cat own.txt") == "5\none"
    assert await text(kit["bash"], TWO, command="echo $x; cat own.txt") == "6\ntwo"


async def test_a_failure_of_the_sandbox_is_a_failure_of_the_tool():
    bash = BashTool(pool_of())
    with pytest.raises(ToolFailure, match=r"bash: .*await open\(\) first"):
        await bash({"command": "ls"}, ONE)
    assert issubclass(WorkspaceFailure, RuntimeError)


async def test_tools_that_are_named_together_share_workspaces(pool):
    made = make_tools("bash, calculator, edit, read")
    assert made["bash"].pool is made["edit"].pool is made["read"].pool
    await asyncio.gather(*(tool.open() for tool in made.values()))
    try:
        await made["edit"]({"path": "a.txt", "old_str": "", "new_str": "hi\n"}, ONE)
        assert await text(made["bash"], command="cat a.txt") == "hi"
        assert await text(made["read"], path="a.txt") == "1\thi"
        await made["bash"].close()
        assert await text(made["read"], path="a.txt") == "1\thi", "another tool is still open"
    finally:
        for name in ("edit", "read"):
            await made[name].close()
