"""Model cards, from the folders of finished, unfinished and supervised runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from rl.credit.algorithms import algorithm_names
from rl.reports.card import CARD, PAPERS, card_text, write_card
from rl.run.folder import RunFolder
from rl.run.training_log import TrainingLog
from rl.settings.finetuning import DPOConfig
from rl.settings.parsing.command_line import parse
from rl.settings.recipes import RECIPES
from rl.settings.train import PRESETS, TrainConfig
from rl.tracking.json_lines import JsonLines

HOME = Path(__file__).resolve().parents[3]


def test_record(step, rate):
    return {
        "test/success": rate,
        "test/success_low": rate - 0.05,
        "test/success_high": rate + 0.05,
        "test/tasks": 512,
        "step": step,
    }


test_record.__test__ = False


@pytest.fixture
def finished(tmp_path):
    """The folder of a finished run from a model of the hub."""
    words = ["env=toy-copy", "model=Qwen/Qwen3-0.6B", "group_size=4", f"out={tmp_path}/my-run"]
    config = parse(TrainConfig, words, command="c", presets=PRESETS)
    folder = RunFolder(tmp_path / "my-run", config)
    folder.write_config(config, {"vllm": "0.32.1", "commit": "abc123"})
    log = JsonLines(folder.metrics_path)
    log.log(0, test_record(0, 0.25) | {"eval/success": 0.2})
    log.log(20, {"reward": 0.5, "eval/success": 0.9})
    log.log(40, {"reward": 0.6, "eval/success": 0.8})
    log.log(40, test_record(40, 0.75))
    folder.write_result({"score": "exact", "steps": 40, "finished": True})
    (folder.path / "curve.png").write_bytes(b"png")
    best = folder.checkpoints / "best"
    best.mkdir()
    (best / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"]}))
    return folder.path


def header(text):
    return yaml.safe_load(text.split("---\n")[1])


def test_the_card_of_a_finished_run(finished):
    best = finished / "checkpoints" / "best"
    write_card(best, finished)
    text = (best / CARD).read_text()
    assert header(text) == {
        "base_model": "Qwen/Qwen3-0.6B",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["turnwise", "reinforcement-learning", "agents", "grpo", "toy-copy-v0"],
        "model-index": [
            {
                "name": "my-run",
                "results": [
                    {
                        "task": {"type": "text-generation"},
                        "dataset": {
                            "name": "toy-copy-v0, test tasks",
                            "type": "toy-copy-v0",
                            "split": "test",
                        },
                        "metrics": [
                            {
                                "type": "exact",
                                "value": 0.75,
                                "name": "mean of 512 test tasks",
                                "config": "95% interval 0.7000 to 0.8000",
                            }
                        ],
                    }
                ],
            }
        ],
    }
    assert "| before training | exact on 512 test tasks | 0.250 | 0.200 to 0.300 |" in text
    assert "| after training | exact on 512 test tasks | 0.750 | 0.700 to 0.800 |" in text
    assert "best validation: 0.900 after step 20" in text
    assert 'AutoModelForCausalLM.from_pretrained("USER/MODEL")' in text
    assert "python -m rl.eval env=toy-copy-v0 model=USER/MODEL\n" in text
    (line,) = re.findall(r"^python -m rl\.train .*$", text, re.M)
    words = {"env=toy-copy-v0", "model=Qwen/Qwen3-0.6B", "algo=grpo", "group_size=4"}
    assert set(line.split()[3:]) == words
    assert "[arXiv 2402.03300](https://arxiv.org/abs/2402.03300)" in text
    assert "commit `abc123`" in text
    assert "vLLM 0.32.1" in text
    assert "\nprompts=32\n" in text
    assert "](curve.png)" in text
    assert (best / "curve.png").read_bytes() == b"png"


def test_a_card_before_the_end_claims_no_result(finished):
    (finished / "result.json").unlink()
    (finished / "curve.png").unlink()
    (finished / "metrics.jsonl").write_text("")
    text = card_text(finished / "checkpoints" / "best", finished, {})
    assert "model-index" not in header(text)
    assert "## Results" not in text
    assert "curve.png" not in text


def test_an_adapter_is_loaded_with_peft(finished):
    best = finished / "checkpoints" / "best"
    (best / "adapter_config.json").write_text("{}")
    text = card_text(best, finished, {})
    assert header(text)["library_name"] == "peft"
    assert 'AutoPeftModelForCausalLM.from_pretrained("USER/MODEL")' in text


def test_a_base_model_on_this_machine_is_not_linked(finished, monkeypatch):
    monkeypatch.setenv("HOME", "/home/alice")
    path = finished / "config.json"
    recorded = json.loads(path.read_text()) | {"model": "/home/alice/models/mine"}
    path.write_text(json.dumps(recorded))
    text = card_text(finished / "checkpoints" / "best", finished, {})
    assert "base_model" not in header(text)
    assert "from `~/models/mine`" in text
    assert "alice" not in text


@pytest.mark.parametrize(
    ("tasks", "shown"), [("world", ""), ("openai/gsm8k", " on the data `openai/gsm8k`")]
)
def test_generated_tasks_are_no_data(finished, tasks, shown):
    path = finished / "config.json"
    recorded = json.loads(path.read_text())
    recorded["env"]["options"]["tasks"] = tasks
    path.write_text(json.dumps(recorded))
    text = card_text(finished / "checkpoints" / "best", finished, {})
    assert f"in the environment `toy-copy-v0`{shown} by `grpo`" in text
    assert header(text).get("datasets") == (["openai/gsm8k"] if shown else None)


def test_a_supervised_command_writes_a_card_with_its_result(tmp_path):
    config = DPOConfig(model="Qwen/Qwen3-0.6B", data="trl-lib/pairs", out=str(tmp_path / "dpo"))
    saved = tmp_path / "dpo" / "checkpoints" / "last"
    saved.mkdir(parents=True)
    log = TrainingLog("dpo", tmp_path / "dpo", config, lambda line: None)
    log.open()
    log.step({"step": 1, "loss": 0.7})
    log.draw("DPO")
    log.finish(
        {
            "model": str(saved),
            "accuracy": 0.8,
            "accuracy_low": 0.7,
            "accuracy_high": 0.9,
            "held_out_pairs": 50,
        }
    )
    text = (saved / CARD).read_text()
    found = header(text)
    assert (found["datasets"], found["tags"]) == (["trl-lib/pairs"], ["turnwise", "dpo"])
    assert found["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.8
    assert "| after training | accuracy on 50 held-out pairs | 0.800 | 0.700 to 0.900 |" in text
    assert "python -m rl.dpo " in text
    assert "rl.eval" not in text
    assert (saved / "curve.png").is_file()


def test_a_card_that_cannot_be_written_ends_no_run(finished, caplog):
    best = finished / "checkpoints" / "best"
    (finished / "config.json").write_text("not json")
    write_card(best, finished)
    assert "has no model card: UsageError: " in caplog.text
    assert not (best / CARD).exists()
    write_card(finished / "checkpoints" / "absent", finished)


def test_papers_are_those_of_the_page_of_algorithms():
    page = (HOME / "docs" / "algorithms.md").read_text() + (
        HOME / "docs" / "preferences.md"
    ).read_text()
    assert PAPERS.keys() <= {*algorithm_names(), *RECIPES, "dpo"}
    assert not [number for number in PAPERS.values() if number not in page]
