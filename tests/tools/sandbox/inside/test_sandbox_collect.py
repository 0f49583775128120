"""Files that a run returns: only the requested ones, whatever files the program wrote."""

from __future__ import annotations

import os

import pytest

from tools.sandbox import Limits, Status, make_sandbox
from tools.sandbox.files import checked_patterns
from tools.sandbox.inside.supervisor.collect import MAX_RETURNED, collect

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOM = 1 << 20


async def test_named_files_come_back_byte_by_byte(either):
    source = (
        "import os\nos.makedirs('plots/old')\nopen('out.bin', 'wb').write(bytes(range(256)))\n"
        "open('plots/a.png', 'w').write('A')\nopen('plots/old/b.png', 'w').write('B')\n"
        "open('plots/c.txt', 'w').write('C')"
    )
    result = await either.run(source, collect=["out.bin", "plots/*.png", "missing"])
    assert result.files == {"out.bin": bytes(range(256)), "plots/a.png": b"A"}
    assert result.files_left_out == {}
    result = await either.run(source, collect=["**/*.png"])
    assert list(result.files) == ["plots/a.png", "plots/old/b.png"]
    assert len((await either.run(source, collect=["**"])).files) == 4
    assert (await either.run(source)).files == {}


async def test_files_come_back_however_the_run_ends(either):
    begin = "print(open('given').read(), flush=True)\nopen('out', 'w').write('here')\n"
    ends = (
        ("1 / 0", Status.ERROR),
        ("import os; os.kill(os.getpid(), 9)", Status.KILLED),
        ("while True: pass", Status.TIMEOUT),
        ("while True: print('x' * 1000)", Status.OUTPUT),
    )
    for end, status in ends:
        limits = Limits(wall_s=2.0 if status is Status.TIMEOUT else 30.0)
        result = await either.run(begin + end, "", {"given": "g"}, limits, collect=["out", "given"])
        assert (result.status, result.files) == (status, {"out": b"here", "given": b"g"})
        assert result.stdout.startswith("g\n")


async def test_no_link_is_followed(either):
    result = await either.run(
        "import os, sys\nos.symlink('/etc/passwd', 'a.txt')\nos.symlink('/usr', 'u')\n"
        "os.symlink('.', 'here')\nopen('mine', 'w').write('m')\nos.link('mine', 'b.txt')\n"
        "try: os.link(os.path.realpath(sys.executable), 'c.txt')\nexcept OSError: print('refused')",
        collect=["*.txt", "u/lib/os-release", "here/mine", "**/os-release", "u", "mine"],
    )
    assert (result.stdout, result.files) == ("refused\n", {})
    more = "it has more than one name"
    assert result.files_left_out == {"a.txt": "a link", "b.txt": more, "u": "a link", "mine": more}


async def test_a_process_that_survives_the_program_changes_nothing(either):
    result = await either.run(
        "import os, time\nopen('out', 'w').write('good')\n"
        "if os.fork() == 0:\n"
        "    os.close(1); os.close(2)\n"
        "    while True:\n        os.unlink('out'); os.symlink('/etc/passwd', 'out')\n"
        "        os.unlink('out'); open('out', 'w').write('good')\n"
        "time.sleep(0.2)",
        collect=["out"],
    )
    assert result.files.get("out", b"good") in (b"good", b"")
    assert result.files_left_out.get("out", "a link") == "a link"


async def test_files_beyond_the_limit_are_named_and_not_read(either):
    result = await either.run(
        "import os\nopen('small', 'w').write('s')\n"
        "for n in range(40):\n    with open(f'huge{n}', 'wb') as f: f.truncate(1 << 25)",
        collect=["*"],
    )
    assert result.files == {"small": b"s"}
    assert result.files_left_out["huge7"].startswith(f"{1 << 25} bytes, ")
    assert len(result.files_left_out) == 40
    limits = Limits(returned_kb=1)
    source = "open('a', 'w').write('x' * {})"
    assert (await either.run(source.format(1023), limits=limits, collect=["a"])).files
    assert not (await either.run(source.format(1024), limits=limits, collect=["a"])).files


async def test_four_thousand_files_and_hostile_names(either):
    result = await either.run(
        "import os\nfor n in range(4000): open(f'n{n:04}.dat', 'w').close()\n"
        "open('line\\nbreak', 'w'); open(b'\\xff\\xfe', 'w'); open('-rf *', 'w').write('fine')",
        collect=["*"],
    )
    assert len(result.files) == MAX_RETURNED
    assert result.files["-rf *"] == b"fine"
    assert {"n0000.dat", "n1022.dat"} <= set(result.files)
    assert result.files_left_out["line\\nbreak"] == "a name that cannot be printed"
    assert int(result.files_left_out["..."].split()[1]) == 4003 - MAX_RETURNED - 64


async def test_a_deep_tree_is_entered_to_32_folders_and_named(either):
    result = await either.run(
        "import os\nfor n in range(300):\n    os.mkdir('d'); os.chdir('d')\n"
        "open('bottom', 'w').close()",
        collect=["**/bottom", "d/d/*"],
    )
    assert result.files == {}
    assert list(result.files_left_out) == ["d/" * 33]


async def test_unconfined_programs_return_no_special_files(python_for):
    with pytest.warns(UserWarning, match="unsafe-local"):
        made = make_sandbox("unsafe-local")
    async with made:
        result = await made.run(
            "import os, socket\nos.mkfifo('pipe')\ns = socket.socket(socket.AF_UNIX)\n"
            "s.bind('socket')\nopen('file', 'w').write('f')",
            collect=["pipe", "socket", "file"],
        )
    assert result.files == {"file": b"f"}
    special = "not a plain file"
    assert result.files_left_out == {"pipe": special, "socket": special}


async def test_an_unreadable_file_is_named(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("x")
    files, left_out = collect(str(tmp_path), ["folder", "folder/file/below", "folder/file"], ROOM)
    assert files == {"folder/file": b"x"}
    assert left_out == {"folder": "a folder"}
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    _, left_out = collect(str(tmp_path / "link"), ["file"], ROOM)
    assert left_out == {".": os.strerror(20)}


async def test_endless_patterns_read_a_bounded_number_of_entries(tmp_path):
    for n in range(300):
        (tmp_path / f"d{n}").mkdir()
        (tmp_path / f"d{n}" / "e").mkdir()
    pattern = "**/*/**/*/**/*/**/x"
    _, left_out = collect(str(tmp_path), [pattern] * 64, ROOM)
    assert left_out == {"...": "only 20000 entries were read"}


async def test_patterns_stay_inside():
    for bad in ("/etc/passwd", "../x", "a/../../x", "", "a\0b", "x" * 1001):
        with pytest.raises(ValueError, match=r"collect\[0\]"):
            checked_patterns([bad])
    with pytest.raises(ValueError, match="must be a list"):
        checked_patterns("out.txt")
    with pytest.raises(ValueError, match="at most 64"):
        checked_patterns(["x"] * 65)
    assert checked_patterns(["./a//b", "**", "**/**/c"]) == ("a/b", "**/*", "**/c")
