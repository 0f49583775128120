"""The copy of a run's folder on another file system."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import shutil

import pytest
from fsspec.core import url_to_fs
from fsspec.implementations.memory import MemoryFileSystem

from agents.torch_thread import TorchThread
from rl.errors import RunFailure, UsageError
from rl.learner.checkpoint import TRAINER_STATE
from rl.run.backup import COPIED, Backup
from rl.run.checkpoints import Checkpoints


@pytest.fixture(scope="module")
def s3():
    """A server of S3's protocol, to which fsspec's own package for it speaks."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        host, port = server.get_host_and_port()
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        yield
    server.stop()


@pytest.fixture(params=["folder", "memory", "s3"])
def url(request, tmp_path):
    if request.param == "folder":
        return str(tmp_path / "elsewhere" / "run")
    if request.param == "s3":
        request.getfixturevalue("s3")
        bucket = tmp_path.name.replace("_", "-")
        url_to_fs("s3://")[0].mkdir(bucket)
        return f"s3://{bucket}/my/run"
    return f"memory:/{tmp_path}/run"


def write(folder, **texts):
    for name, text in texts.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def checkpoint(folder, step):
    path = folder / "checkpoints" / f"step-{step:06d}"
    write(path, model=f"weights {step}" * 9, learner__rank=f"rows {step}")
    write(path, **{TRAINER_STATE: f"state {step}"})
    return path


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    write(folder, config="c", metrics="1", trajectories__one="e", checkpoints__best__model="b")
    write(folder, **{".lock": "", "trajectories__.two.tmp": "half"})
    return folder


def seen(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != COPIED)
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def fetched(url, folder):
    Backup(url, folder).bring(resume=True)
    return seen(folder)


def test_a_copy_has_the_files_of_the_newest_checkpoint_and_a_new_machine_gets_them(
    run, url, tmp_path
):
    old, new = checkpoint(run, 2), checkpoint(run, 4)
    backup = Backup(url, run)
    backup.bring(resume=True)
    backup.copy(new)
    expected = seen(run)
    for name in (".lock", "trajectories/.two.tmp", *(k for k in expected if old.name in k)):
        expected.pop(name)
    assert fetched(url, tmp_path / "again") == expected


def test_only_what_changed_is_copied_and_what_is_gone_is_removed(run, url, tmp_path, monkeypatch):
    first = checkpoint(run, 2)
    Backup(url, run).copy(first)
    write(run, metrics="1\n2")
    (run / "trajectories" / "one").unlink()
    second = checkpoint(run, 4)
    put, copied = Backup._put, []
    monkeypatch.setattr(Backup, "_put", lambda self, name: copied.append(name) or put(self, name))
    Backup(url, run).copy(second)
    own = {f"checkpoints/step-000004/{name}" for name in ("model", "learner/rank", TRAINER_STATE)}
    assert set(copied) == {"metrics", *own}
    assert copied[-1] == f"checkpoints/step-000004/{TRAINER_STATE}"
    found = fetched(url, tmp_path / "again")
    assert found["metrics"] == "1\n2"
    assert "trajectories/one" not in found
    assert not [name for name in found if "step-000002" in name]
    # On the new machine nothing has to be copied again.
    copied.clear()
    Backup(url, tmp_path / "again").copy(tmp_path / "again/checkpoints/step-000004")
    assert copied == []


@pytest.mark.parametrize("stop", range(6))
def test_a_copy_cut_off_anywhere_has_a_whole_checkpoint(run, url, tmp_path, monkeypatch, stop):
    Backup(url, run).copy(checkpoint(run, 2))
    shutil.rmtree(run / "checkpoints" / "step-000002")
    write(run, metrics="1\n2", checkpoints__best__model="better")
    new = checkpoint(run, 4)
    put, count = Backup._put, iter(range(99))

    def cut(self, name):
        if next(count) == stop:
            raise ConnectionResetError("cut off")
        return put(self, name)

    backup = Backup(url, run)
    monkeypatch.setattr(Backup, "_put", cut)
    if stop < 5:
        with pytest.raises(RunFailure, match=r"backup \(.*\) failed: cut off"):
            backup.copy(new)
    else:
        backup.copy(new)
    monkeypatch.undo()
    found = fetched(url, tmp_path / "again")
    step = 4 if stop >= 5 else 2
    assert found[f"checkpoints/step-{step:06d}/{TRAINER_STATE}"] == f"state {step}"
    assert found[f"checkpoints/step-{step:06d}/model"] == f"weights {step}" * 9
    assert found[f"checkpoints/step-{step:06d}/learner/rank"] == f"rows {step}"
    # The next call goes on where this one ended.
    backup.copy(new)
    shutil.rmtree(tmp_path / "again")
    found = fetched(url, tmp_path / "again")
    assert (found["metrics"], found["checkpoints/best/model"]) == ("1\n2", "better")
    assert not [name for name in found if "step-000002" in name]


def test_a_fetch_cut_off_is_repeated(run, url, tmp_path, monkeypatch):
    Backup(url, run).copy(checkpoint(run, 2))
    again, get, count = tmp_path / "again", Backup._get, iter(range(99))

    def cut(self, name):
        if next(count) == 5:
            raise ConnectionResetError("cut off")
        return get(self, name)

    monkeypatch.setattr(Backup, "_get", cut)
    with pytest.raises(UsageError, match=r"backup \(.*\) failed: cut off"):
        fetched(url, again)
    monkeypatch.undo()
    found = {name: text for name, text in fetched(url, again).items() if ".new" not in name}
    assert found == {k: v for k, v in seen(run).items() if "/." not in k and k != ".lock"}


def test_mistakes_are_one_line(run, url, tmp_path):
    Backup(url, run).copy(checkpoint(run, 4))
    with pytest.raises(UsageError, match="holds a run already: continue it with resume=auto"):
        Backup(url, tmp_path / "other").bring(resume=False)
    older = tmp_path / "older"
    checkpoint(older, 2)
    with pytest.raises(UsageError, match=r"ends at step 2, and its backup \(.*\) at step 4: move"):
        Backup(url, older).bring(resume=True)
    assert "checkpoints/step-000004/model" not in seen(older)
    Backup(url, run).bring(resume=True)
    with pytest.raises(UsageError, match="must be outside of the run's folder"):
        Backup(str(run / "backup"), run)
    with pytest.raises(UsageError, match="Protocol not known: nope; give a folder or a URL"):
        Backup("nope://x", run)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"backup \(.*/file/run\) failed: "):
        Backup(str(tmp_path / "file" / "run"), run).bring(resume=True)


def test_a_wrong_bucket_is_refused_and_not_made(s3, run):
    with pytest.raises(UsageError, match=r"backup \(s3://no-such-bucket/run\) failed: "):
        Backup("s3://no-such-bucket/run", run).bring(resume=True)
    assert not url_to_fs("s3://")[0].exists("no-such-bucket")


@pytest.mark.skipif(importlib.util.find_spec("s3fs") is not None, reason="s3fs is installed")
def test_a_missing_package_is_named(run):
    with pytest.raises(UsageError, match="s3fs"):
        Backup("s3://bucket/run", run)


class Learner:
    async def save(self, folder, state, *, resumable):
        checkpoint(folder.parents[1], int(folder.name.removeprefix("step-")))


@pytest.fixture
async def checkpoints(run, url):
    thread = TorchThread(1)
    yield Checkpoints(run / "checkpoints", Learner(), thread, Backup(url, run))
    await thread.close()


async def test_the_run_goes_on_while_a_checkpoint_is_copied_which_stays_meanwhile(
    checkpoints, monkeypatch, run, url, tmp_path
):
    go, put, loop = asyncio.Event(), Backup._put, asyncio.get_running_loop()

    def slow(self, name):
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result(60)
        return put(self, name)

    monkeypatch.setattr(Backup, "_put", slow)
    for step in range(1, 6):
        await checkpoints.save(step, {})
    kept = [path.name for path in checkpoints.complete()]
    assert kept == ["step-000001", "step-000004", "step-000005"]
    go.set()
    await checkpoints.back_up()
    found = fetched(url, tmp_path / "again")
    assert found[f"checkpoints/step-000005/{TRAINER_STATE}"] == "state 5"
    await checkpoints.save(6, {})
    assert [path.name for path in checkpoints.complete()] == ["step-000005", "step-000006"]
    await checkpoints.end()


async def test_a_copy_that_fails_is_a_warning_until_the_end(checkpoints, monkeypatch, caplog):
    def fail(self, name):
        raise PermissionError("denied")

    monkeypatch.setattr(Backup, "_put", fail)
    with caplog.at_level(logging.WARNING):
        await checkpoints.save(1, {})
        await checkpoints.end()
    assert "failed: denied; the next checkpoint is copied again" in caplog.text
    with pytest.raises(RunFailure, match="failed: denied"):
        await checkpoints.back_up()
    monkeypatch.undo()
    await checkpoints.back_up()


@pytest.fixture(autouse=True)
def empty_memory():
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
