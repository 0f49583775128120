"""A run whose folder is lost continues from its backup, as if nothing had happened."""

from __future__ import annotations

import json
import shutil

import pytest

import rl.replay
from rl.run.folder import read_jsonl
from rl.train import main

TIMINGS = ("time/", "step_time", "tokens_per_second")


def losses(out):
    records = (r for r in read_jsonl(out / "metrics.jsonl") if "reward" in r)
    return [{k: v for k, v in r.items() if not k.startswith(TIMINGS)} for r in records]


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_lost_run_continues_from_its_backup(words, tmp_path, staleness, capfd):
    shared = {"save_every": 2, "staleness": staleness}
    if not staleness:
        shared |= {"deterministic": "true"}
    whole, out, backup = (tmp_path / name for name in ("whole", "run", "backup"))
    assert main(words(whole, **shared, eval__every=2)) == 0
    kept = shared | {"backup": backup, "eval__every": 2}
    assert main(words(out, **kept, steps=2)) == 0
    again = words(out, **kept, resume="auto")
    assert json.loads((backup / "result.json").read_text())["steps"] == 2
    shutil.rmtree(out)
    assert main(again) == 0
    assert "resumed after step 2" in capfd.readouterr().err
    assert json.loads((backup / "result.json").read_text())["steps"] == 4
    assert [p.name for p in (backup / "checkpoints").glob("step-*")] == ["step-000004"]
    assert [r["step"] for r in losses(out)] == [1, 2, 3, 4]
    if not staleness:
        assert losses(out) == losses(whole)
        repeated = tmp_path / "repeated"
        assert rl.replay.main([str(out), f"out={repeated}"]) == 0
    before = sorted(backup.rglob("*"))
    assert main(words(tmp_path / "other", **kept)) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: backup ({backup}) holds a run already: continue it with")
    assert not (tmp_path / "other").exists()
    assert sorted(backup.rglob("*")) == before


def test_a_backup_that_fails_at_the_end_ends_the_run_with_one_line(
    words, tmp_path, monkeypatch, capfd
):
    from rl.run.backup import Backup

    def fail(self, name):
        raise PermissionError("denied")

    monkeypatch.setattr(Backup, "_put", fail)
    assert main(words(tmp_path / "run", backup=tmp_path / "backup", steps=1)) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error == f"error: backup ({tmp_path / 'backup'}) failed: denied"
    assert json.loads((tmp_path / "run" / "result.json").read_text())["finished"]
