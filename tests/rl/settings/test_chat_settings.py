"""chat.*: set once, saved in the checkpoint, used by every command that loads it."""

from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer

import rl.eval
import rl.sft
from rl.errors import UsageError
from rl.rollout.trajectory_files import read_trajectories
from rl.settings.chat import ChatConfig
from rl.settings.evaluate import EvaluateConfig
from rl.settings.parsing.command_line import parse
from rl.settings.run import as_lines
from rl.settings.train import TrainConfig

COMMON = ("env=toy-copy", "sampling.max_tokens=3", "sampling.slots=24")


def first_prompt(folder, tokenizer):
    episode = read_trajectories(folder / "trajectories.jsonl.gz")[0]
    (segment,) = episode.segments
    prompt = segment.token_ids[: segment.loss_mask.index(1)]
    return tokenizer.decode(prompt), episode


def test_a_checkpoint_keeps_its_template_and_an_evaluation_finds_it(toy_model, tmp_path, capfd):
    data = tmp_path / "data.jsonl"
    line = {"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "1"}]}
    data.write_text(json.dumps(line) + "\n")
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}({{ mark }}{{ m.content }}){% endfor %}"
        "{% if add_generation_prompt %}:{% endif %}\n"
    )
    chat = [f"chat.template={template}", 'chat.template_kwargs=mark="3 4"', "chat.prefill=2"]
    words = [f"model={toy_model}", f"data={data}", "steps=1", "batch_size=1", "test_tasks=0"]
    assert rl.sft.main([*COMMON, *words, *chat, f"out={tmp_path / 'sft'}"]) == 0
    made = json.loads(capfd.readouterr().out)["model"]
    template.unlink()
    tokenizer = AutoTokenizer.from_pretrained(made)

    folder = tmp_path / "eval"
    assert rl.eval.main([*COMMON, f"model={made}", "tasks=1", f"out={folder}"]) == 0
    prompt, episode = first_prompt(folder, tokenizer)
    assert prompt == f"(3 4{episode.observation}):2"
    assert episode.turns[0].action.startswith("2")
    # The command line overrides the checkpoint.
    folder = tmp_path / "again"
    words = [f"model={made}", "tasks=1", f"out={folder}", "chat.template_kwargs=mark=5"]
    assert rl.eval.main([*COMMON, *words]) == 0
    assert first_prompt(folder, tokenizer)[0] == f"(5{episode.observation}):2"


def test_the_settings_are_in_the_resolved_configuration():
    words = ["model=folder", "chat.template=orz", "chat.template_kwargs=enable_thinking=False a=b"]
    for config_type in (TrainConfig, EvaluateConfig):
        config = parse(config_type, words, command="x", presets={})
        lines = as_lines(config).splitlines()
        assert {*words, "chat.prefill="} <= set(lines)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "chat.template=r1zero",
            "chat.template ('r1zero') must be a file that exists or one of r1-zero, orz, qwen-math",
        ),
        (
            "chat.template_kwargs=thinking",
            "chat.template_kwargs ('thinking') must be of the form enable_thinking=False",
        ),
        ('chat.template_kwargs=a="b', 'chat.template_kwargs (a="b): No closing quotation'),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(word, message):
    with pytest.raises(UsageError) as raised:
        parse(EvaluateConfig, [word], command="x", presets={})
    assert str(raised.value) == message


def test_the_tiny_model_has_a_template_of_its_own(capfd):
    assert rl.eval.main([*COMMON, "chat.prefill=<think>"]) == 1
    assert "error: chat must be left out with model=tiny" in capfd.readouterr().err


def test_arguments_of_a_template_have_types():
    text = "a=True b=none c=3 d=0.5 e=nan f='two words' g=x=y"
    assert ChatConfig(template_kwargs=text).arguments() == {
        "a": True,
        "b": None,
        "c": 3,
        "d": 0.5,
        "e": "nan",
        "f": "two words",
        "g": "x=y",
    }
