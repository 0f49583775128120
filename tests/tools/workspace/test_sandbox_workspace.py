"""Workspaces in the sandbox: a shell whose state lives for the episode, files, limits, copies."""

from __future__ import annotations

import asyncio
import tarfile

import backends
import pytest
import pytest_asyncio

from tools.sandbox import Limits, SandboxUnavailable, make_sandbox
from tools.workspace import ForkRefused, WorkspaceOver, driver
from tools.workspace.sandboxed import SandboxWorkspace

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox():
    made = make_sandbox("auto", Limits(wall_s=60.0, memory_mb=256, processes=24))
    try:
        await made.start()
    except SandboxUnavailable as error:
        backends.missing("auto", str(error))
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def workspace(sandbox):
    made = SandboxWorkspace(sandbox, {"notes/a.txt": "hello\n", "b.py": "print(1 + 1)\n"})
    yield made
    await made.close()


async def output(workspace, command, **options):
    result = await workspace.run(command, **options)
    assert not result.timed_out and not result.over, result
    return result.output.strip()


async def test_directory_variables_functions_and_files_stay(workspace):
    assert await output(workspace, "cd notes; x='two  words'; f() { echo \"<$1>\"; }") == ""
    assert await output(workspace, 'f "$x"; cat a.txt') == "<two  words>\nhello"
    assert (await output(workspace, "pwd")).endswith("/notes")
    assert await output(workspace, "export Y=7; cd ..; python b.py; echo $Y > y.txt") == "2"
    assert await output(workspace, "python -c 'import os; print(os.environ[\"Y\"])'; cd -") != ""
    assert await workspace.read("y.txt") == b"7\n"


async def test_a_command_has_the_exit_code_that_a_shell_gives_it(workspace):
    for command, code in (("true", 0), ("exit 7", 7), ("nothere", 127), ("kill -9 $$", 137)):
        assert (await workspace.run(command)).exit_code == code, command
    result = await workspace.run("if then")
    assert result.exit_code == 2 and "syntax error" in result.output
    assert await output(workspace, "echo goes on") == "goes on"


async def test_errexit_ends_the_command_and_not_the_shell(workspace):
    result = await workspace.run("x=1; set -e; false; echo no")
    assert (result.exit_code, result.output) == (1, "")
    assert await output(workspace, "echo $x; false; echo no") == "1"


async def test_a_long_command_is_interrupted_and_the_shell_goes_on(workspace):
    await workspace.run("x=kept; cd notes")
    result = await workspace.run("echo started; python -c 'while True: pass'", wall_s=5)
    assert (result.exit_code, result.timed_out, result.over) == (None, True, False)
    assert result.output.startswith("started") and result.detail == "interrupted after 5 s"
    assert await output(workspace, "echo $x; ls") == "kept\na.txt"


async def test_what_ignores_interrupts_is_ended_by_force(workspace):
    stubborn = "import signal; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]"
    result = await workspace.run(f"python -c '{stubborn}\nwhile True: pass'", wall_s=0.3)
    assert result.timed_out
    assert await output(workspace, "echo here") == "here"


async def test_a_background_job_does_not_hold_the_call(workspace):
    result = await workspace.run("sleep 1000 & echo $!")
    assert result.exit_code == 0
    assert await output(workspace, f"kill -0 {result.output.strip()} && echo alive") == "alive"
    await workspace.run("(while sleep 0.05; do echo tick; done) &")
    assert "tick" in (await workspace.run("sleep 3; echo")).output


async def test_long_output_keeps_both_ends(workspace):
    result = await workspace.run("echo first; yes | head -c 300000; echo last")
    assert result.output.startswith("first\n") and result.output.endswith("last\n")
    assert f"\n[{result.left_out} characters left out]\n" in result.output
    assert result.left_out + 10_000 == 300_000 + len("first\nlast\n")


async def test_files_are_bytes_and_paths_begin_where_the_shell_starts(workspace):
    data = bytes(range(256)) * 3
    await workspace.write("deep/er/x.bin", data)
    await workspace.run("cd notes")
    assert await workspace.read("deep/er/x.bin") == data
    for path, kind in (("none", FileNotFoundError), ("notes", IsADirectoryError)):
        with pytest.raises(kind):
            await workspace.read(path)
    with pytest.raises(OSError, match="Not a regular file"):
        await workspace.read("/dev/null")
    with pytest.raises(ValueError, match="more than 10 bytes"):
        await workspace.read("deep/er/x.bin", max_bytes=10)


async def test_a_copy_goes_on_alone_with_files_and_state(workspace):
    await workspace.run("cd notes; x=1; g() { echo g$x; }; ln -s a.txt link; chmod 700 a.txt")
    try:
        twin = await workspace.fork()
    except ForkRefused as refused:
        pytest.skip(str(refused))
    try:
        assert await output(twin, "g; cat link; pwd | grep -o '/notes$'") == "g1\nhello\n/notes"
        await twin.run("x=2; echo changed > a.txt")
        assert await output(workspace, "g; cat a.txt") == "g1\nhello"
        assert await output(twin, "g; cat a.txt") == "g2\nchanged"
    finally:
        await twin.close()


async def test_a_copy_of_the_files_has_a_shell_in_its_first_state(workspace):
    await workspace.run("cd notes; x=1; g() { echo g; }; alias cat='echo no'; echo new > a.txt")
    try:
        twin = await workspace.copy_files(1 << 20)
    except ForkRefused as refused:
        pytest.skip(str(refused))
    try:
        assert await output(
            twin, "cat notes/a.txt; echo [$x]; type g 2>/dev/null | grep -c function"
        ) == ("new\n[]\n0")
    finally:
        await twin.close()
    with pytest.raises(ForkRefused, match="more than 10 bytes"):
        await workspace.copy_files(10)


def member(name, kind=tarfile.REGTYPE, linkname=""):
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, linkname
    return made


@pytest.mark.asyncio(loop_scope="function")
@pytest.mark.parametrize(
    "members",
    [
        [member("/tmp/bin/cat")],
        [member("../bin/cat")],
        [member("a/../../x")],
        [member("a", tarfile.SYMTYPE, "/tmp"), member("a/bin/cat")],
        [member("b/./a", tarfile.SYMTYPE, "/tmp"), member("b//a/bin/cat")],
        [member("x", tarfile.LNKTYPE, "/tmp/logs/reward")],
    ],
)
async def test_an_archive_that_leads_out_of_its_folder_is_refused(members):
    with pytest.raises(OSError, match="leads out of its folder"):
        driver._check_members(members)
    driver._check_members([member("a"), member("b", tarfile.SYMTYPE, "/tmp"), member("c/d")])


async def test_a_closed_workspace_says_so(sandbox):
    workspace = SandboxWorkspace(sandbox)
    assert await output(workspace, "ls") == ""
    await workspace.close()
    with pytest.raises(WorkspaceOver, match="it was closed"):
        await workspace.run("ls")
    await workspace.close()


async def test_a_cancelled_command_leaves_a_shell_that_works(workspace):
    await workspace.run("x=3")
    task = asyncio.create_task(workspace.run("sleep 1000"))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await output(workspace, "echo $x") == "3"


async def test_workspaces_see_nothing_of_each_other(sandbox, workspace):
    other = SandboxWorkspace(sandbox)
    try:
        await workspace.run("echo secret > /tmp/shared.txt; x=secret")
        if sandbox.isolation == "namespaces":
            assert (await other.run("cat /tmp/shared.txt")).exit_code == 1
        assert await output(other, "echo $x; ls") == ""
    finally:
        await other.close()
