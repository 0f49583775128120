"""The shell of containers: state between commands, and output from both ends."""

from __future__ import annotations

import subprocess

import pytest

from tools.workspace.docker import shell

MARKER = "marker-1"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Function that runs a command as in a container, and returns exit code and output."""
    monkeypatch.setattr(shell, "FOLDER", str(tmp_path))

    def run(command: str, max_chars: int = 1000) -> tuple[int | None, str]:
        argv = ["bash", "--norc", "--noprofile", "-c", shell.script(command, MARKER)]
        done = subprocess.run(argv, stdout=subprocess.PIPE, timeout=60, check=False, cwd="/")
        output = shell.CommandOutput(MARKER, max_chars)
        for start in range(0, len(done.stdout), 5):
            if output.feed(done.stdout[start : start + 5]):
                break
        return output.exit_code, output.result()[0]

    return run


def test_folder_variables_functions_aliases_and_options_stay(run):
    assert run("cd /tmp; A='x\ny'; export B=2; f() { echo f $1; }; alias g='echo g'") == (0, "")
    assert run("pwd; echo \"$A\"; bash -c 'echo $B'; f 1; g 2") == (0, "/tmp\nx\ny\n2\nf 1\ng 2\n")
    run("list=(1 '2 3'); shopt -s extglob; set -o pipefail")
    assert run("echo ${list[1]}; shopt -q extglob && false | true") == (1, "2 3\n")


@pytest.mark.parametrize(
    ("command", "code", "output"),
    [
        ("exit 7", 7, ""),
        ("echo a >&2; printf b", 0, "a\nb"),
        ("set -e; false; echo no", 1, ""),
        ("kill -9 $$", None, ""),
        ("cat", 0, ""),
        ("exec true", None, ""),
    ],
)
def test_the_ends_of_a_command(run, command, code, output):
    assert run(command) == (code, output)
    run("set +e")
    assert run("echo next") == (0, "next\n")


def test_the_middle_of_a_long_output_is_left_out(run):
    code, text = run("seq 1 1000", 20)
    assert code == 0
    assert text == "1\n2\n3\n4\n5\n\n[3873 characters left out]\n\n999\n1000\n"


def test_a_text_like_the_marker_in_the_middle_is_output():
    output = shell.CommandOutput(MARKER, 100)
    assert not output.feed(b"a\nmarker-2 0\nb\nmark")
    assert not output.feed(b"er-3 1\n")
    assert output.feed(b"\nmarker-1 5\nlate")
    assert (output.exit_code, output.result()) == (5, ("a\nmarker-2 0\nb\nmarker-3 1\n", 0))
