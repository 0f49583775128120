"""rl.push, against a server with the hub's API on this machine."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants
import pytest

import rl
from rl.push import main

TOKEN = "hf_a_token_of_the_test"


class Hub(BaseHTTPRequestHandler):
    """The parts of the hub's API that an upload of small files uses."""

    def do_POST(self):
        hub = self.server
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode()
        hub.requests.append((self.path, self.headers.get("Authorization"), body))
        if hub.refuses:
            self.answer(hub.refuses, {"error": "You do not have the right"})
        elif self.path == "/api/repos/create":
            self.answer(200, {"url": f"{hub.url}/user/agent", "name": "user/agent"})
        elif self.path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files
            ]
            self.answer(200, {"files": modes})
        elif "/commit/" in self.path:
            made = {"commitUrl": f"{hub.url}/user/agent/commit/{'a' * 40}", "commitOid": "a" * 40}
            self.answer(200, made | {"success": True})
        else:
            self.answer(404, {})

    def do_GET(self):
        self.server.requests.append((self.path, self.headers.get("Authorization"), ""))
        self.answer(200, {"sha": "b" * 40, "id": "user/agent", "siblings": []})

    def answer(self, status, record):
        text = json.dumps(record).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.requests, server.refuses = [], 0
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def run(tmp_path):
    """A run's folder with a best checkpoint, whose card the user has edited."""
    best = tmp_path / "run" / "checkpoints" / "best"
    best.mkdir(parents=True)
    (best / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    (best / "model.safetensors").write_bytes(b"weights")
    (best / "trainer_state.pt").write_bytes(b"state")
    (best / "learner").mkdir()
    (best / "learner" / "shard-00001.safetensors").write_bytes(b"state of a rank")
    (best / ".hidden").write_bytes(b"")
    (best / "notes.txt").write_bytes(b"private notes")
    (best / "data").mkdir()
    (best / "data" / "config.json").write_bytes(b"rows")
    (best / "README.md").write_text('# My agent\n\nfrom_pretrained("USER/MODEL")\n')
    return tmp_path / "run"


def committed(server):
    """The files of the only commit, and its message."""
    ((path, _, body),) = [r for r in server.requests if "/commit/" in r[0]]
    lines = [json.loads(line) for line in body.splitlines()]
    files = {
        line["value"]["path"]: base64.b64decode(line["value"]["content"])
        for line in lines
        if line["key"] == "file"
    }
    return path, lines[0]["value"]["summary"], files


def test_a_model_is_uploaded_with_its_card_in_one_commit(hub, run, capsys):
    words = [str(run), "repo=user/agent", "private=true", "message=First"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert "model.safetensors  0.0 MiB\n" in err
    assert "not uploaded, as no files of a model: data/config.json, notes.txt (include=" in err
    path, message, files = committed(hub)
    assert path.startswith("/api/models/user/agent/commit/main")
    assert message == "First"
    assert files == {
        "README.md": b'# My agent\n\nfrom_pretrained("user/agent")\n',
        "config.json": b'{"architectures": ["Qwen3ForCausalLM"]}',
        "model.safetensors": b"weights",
    }
    created = json.loads(next(r for r in hub.requests if r[0] == "/api/repos/create")[2])
    assert (created["name"], created["organization"]) == ("agent", "user")
    assert created.get("private") is True or created.get("visibility") == "private"
    # Requests that need no right, such as the check of the card, may go without the token.
    written = [token for place, token, _ in hub.requests if "create" in place or "commit" in place]
    assert len(written) >= 2 and set(written) == {f"Bearer {TOKEN}"}
    assert sorted(result["files"]) == sorted(files)
    assert result["commit"].endswith("a" * 40)


def test_other_files_are_uploaded_by_name(hub, run):
    assert main([str(run), "repo=user/agent", "include=notes.txt,data/*.json,*/*.s*"]) == 1
    assert main([str(run), "repo=user/agent", "include=notes.txt,data/*.json"]) == 0
    files = committed(hub)[2]
    assert (files["notes.txt"], files["data/config.json"]) == (b"private notes", b"rows")
    assert "trainer_state.pt" not in files and ".hidden" not in files
    assert not any(name.startswith("learner") for name in files)


def test_a_name_of_no_file_is_refused(hub, run, capsys):
    assert main([str(run), "repo=user/agent", "include=nots.txt"]) == 1
    model = run / "checkpoints" / "best"
    assert capsys.readouterr().err == f"error: include (nots.txt) names no file in {model}\n"
    assert hub.requests == []


def test_the_function_uploads_as_well(hub, run):
    made = rl.push_to_hub(rl.PushConfig(run=str(run), repo="user/agent"))
    assert made.made == run / "checkpoints" / "best"
    assert set(made.metrics["files"]) == set(committed(hub)[2])


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_one_line(hub, run, capsys, status):
    hub.refuses = status
    assert main([str(run), "repo=user/agent"]) == 1
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("error: ")]
    assert line.startswith("error: the hub refused user/agent: ")
    assert "hf auth login" in line
    assert TOKEN not in line


def test_without_a_token_nothing_is_asked(hub, run, capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    assert main([str(run), "repo=user/agent"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: repo (user/agent): there is no token of the Hugging Face hub: log in with `hf auth "
        "login`, or set HF_TOKEN (https://huggingface.co/settings/tokens)"
    )
    assert hub.requests == []


def test_a_hub_that_is_not_there_is_one_line(run, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    # Port 9 is discard: no program listens there.
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    assert main([str(run), "repo=user/agent"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: the hub cannot be reached: ")


def test_a_dry_run_lists_the_files_and_prints_the_card(run, capsys):
    assert main([str(run), "repo=user/agent", "--dry-run"]) == 0
    shown = capsys.readouterr().err
    assert "model.safetensors  0.0 MiB" in shown
    assert "trainer_state" not in shown and "shard-00001" not in shown
    assert 'from_pretrained("user/agent")' in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs/none", "repo=user/agent"], "does not exist"),
        (["another/model", "repo=user/agent"], "is no folder"),
        (["runs", "repo=a b"], "repo (a b) must be USER/NAME"),
    ],
)
def test_mistakes_are_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
