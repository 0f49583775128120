"""Files given to a run: valid files are written, invalid ones raise an error at once."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from tools.sandbox import Limits, Status, make_sandbox
from tools.sandbox.files import MAX_GIVEN
from tools.sandbox.remote import wire
from tools.sandbox.remote.client import RemoteSandbox
from tools.sandbox.remote.server import Server

MIB = 1 << 20
BAD = {
    "a file and a folder": ({"a": b"", "a/b": b""}, r"files\['a'\] must not be a file and"),
    "too large": ({"ok": b"", "big": bytes(2 * MIB + 1)}, r"files\['big'\].*disk_mb \(2 MiB\)"),
    "too many small ones": (
        {f"f{n}": b"x" for n in range(513)},
        r"files\['f512'\] \(1 bytes\).*disk_mb",
    ),
    "too many": ({f"f{n}": b"" for n in range(MAX_GIVEN + 1)}, rf"at most {MAX_GIVEN} files"),
    "too many folders": ({f"d{n}/f": b"" for n in range(MAX_GIVEN)}, rf"at most {MAX_GIVEN} files"),
    "a long name": ({"x" * 256: b""}, r"files\['xxx.* 255"),
    "a long path": ({"/".join(["x"] * 501): b""}, r"at most 1000 bytes"),
    "no name": ({"\ud800": b""}, r"is not a file name"),
    "no text": ({"f": "\ud800"}, r"files\['f'\] is not text"),
}


@pytest.mark.parametrize("case", BAD)
async def test_invalid_files_are_the_callers_mistake(case):
    files, match = BAD[case]
    async with make_sandbox("bwrap", Limits(disk_mb=2)) as sandbox:
        with pytest.raises(ValueError, match=match):
            await sandbox.run("print(1)", files=files)
        with pytest.raises(ValueError, match=match):
            sandbox.session(files=files)
        assert (await sandbox.health()).runs == 0


async def test_files_that_just_fit_are_written():
    names = {f"{'x' * 250}{n}" for n in range(MAX_GIVEN)}
    many = dict.fromkeys(names, b"")
    deep = {"/".join(["x"] * 500): b"deep"}
    async with make_sandbox("bwrap", Limits(disk_mb=2)) as sandbox:
        listing = "import os\nprint(len(os.listdir('.')))"
        assert (await sandbox.run(listing, files=many)).stdout == f"{MAX_GIVEN}\n"
        size = "import os\nprint(os.stat('f').st_size)"
        assert (await sandbox.run(size, files={"f": bytes(2 * MIB)})).stdout == f"{2 * MIB}\n"
        result = await sandbox.run("print(open('/'.join('x' * 500)).read())", files=deep)
        assert (result.status, result.stdout) == (Status.OK, "deep\n")


async def test_invalid_files_are_reported_over_http_too():
    async with make_sandbox("bwrap") as sandbox:
        application = Server(sandbox, None, 8).application()
        async with TestServer(application) as server:
            url = str(server.make_url("/"))
            files = {"a": b"", "a/b": b""}
            async with RemoteSandbox(url) as remote:
                with pytest.raises(ValueError, match="a file and a folder"):
                    await remote.run("print(1)", files=files)
                with pytest.raises(ValueError, match="a file and a folder"):
                    await remote.session(files).start()
            message = {
                "source": "print(1)",
                "stdin": "",
                "files": files,
                "limits": wire.fields_of(Limits()),
                "collect": [],
            }
            async with (
                aiohttp.ClientSession(url) as http,
                http.post("/run", data=wire.pack(message)) as response,
            ):
                assert response.status == 400
        assert (await sandbox.health()).runs == 0
