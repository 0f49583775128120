"""Commands with a partner, and the block of docs/roles.md."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from chat_server import chat_server
from toy_envs import CopyEnv

import envs
from rl.errors import UsageError
from rl.eval import main as evaluate
from rl.policies.partner_models import LocalPartner, OpenAIPartner
from rl.policies.partner_script import ScriptEngine
from rl.run.folder import read_jsonl
from rl.settings.parsing.command_line import parse
from rl.settings.train import PRESETS, TrainConfig
from rl.train import main
from rl.viewer.text import _lines

PAGE = Path(__file__).resolve().parents[3] / "docs" / "roles.md"


class RelayEnv(CopyEnv):
    """A teller repeats the shown digit, and a listener repeats what the teller said."""

    success_score = "heard"

    def __init__(self, options, services=None):
        super().__init__(options, services)
        self.roles = ("teller", "listener")

    def begin(self, task):
        self.state, self.role = list(task), "teller"
        return f"{self.state[0]}"

    def turn(self, action):
        if self.role == "teller":
            self.state, self.role = [str(action)], "listener"
            return envs.go_on(str(action), {"teller/spoke": 0.0})
        right = float(action == self.state[0])
        return envs.finish({"listener/heard": right}, scores={"heard": right})


envs.register("toy-relay-v0", RelayEnv)
RELAY = {"env": "toy-relay", "env__max_turns": 2, "partner__role": "teller"}


def train(*words):
    return parse(TrainConfig, ["env=toy-relay", *words], command="c", presets=PRESETS)


def episodes(out, name="step-000001"):
    with gzip.open(out / "trajectories" / f"{name}.jsonl.gz") as file:
        return [json.loads(line) for line in file]


def test_each_partner_has_its_settings():
    assert train().partner.name == "none"
    local = train("partner=local", "partner.role=teller", "partner.model=x", "partner.top_p=0.9")
    assert local.partner.settings == LocalPartner(role="teller", model="x", top_p=0.9)
    endpoint = train("partner=openai", "partner.role=teller", "partner.url=http://here/v1")
    assert endpoint.partner.settings == OpenAIPartner(role="teller", url="http://here/v1")
    script = train("partner=script", "partner.role=teller", "partner.function=a.py:b")
    assert script.partner.settings == ScriptEngine(role="teller", function="a.py:b")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["partner=locl"], "unknown partner 'locl'"),
        (["partner=local"], "partner.role is empty"),
        (["partner=local", "partner.role=teller", "partner.max_tokens=0"], "max_tokens"),
        (["partner=local", "partner.role=teller", "partner.top_p=0"], "top_p"),
        (["partner=openai", "partner.role=teller", "partner.url=here"], "must begin with http"),
        (["partner=script", "partner.role=teller"], "partner.function"),
        (["partner=local", "partner.role=teller", "deterministic=true"], "partner=none or script"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(words, message):
    with pytest.raises(UsageError, match=message) as raised:
        train(*words)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("tellr", "partner.role (tellr) is no role of toy-relay-v0"),
        ("teller, listener", "leaves no role of toy-relay-v0 to the policy"),
    ],
)
def test_a_role_that_the_environment_lacks_ends_the_command(words, tmp_path, capsys, role, message):
    settings = RELAY | {"partner": "local", "partner__role": role}
    assert main(words(tmp_path / "run", **settings)) == 1
    assert message in capsys.readouterr().err


def test_a_policy_learns_with_a_frozen_model_in_the_other_role(words, tmp_path, without_charts):
    out = tmp_path / "run"
    settings = RELAY | {"partner": "local", "steps": 12, "prompts": 8, "group_size": 6}
    assert main(words(out, **settings)) == 0
    records = [r for r in read_jsonl(out / "metrics.jsonl") if "reward" in r]
    rewards = [record["roles/listener/reward"] for record in records]
    assert rewards[-1] > rewards[0] + 0.1
    played = episodes(out)
    assert {turn["finish_reason"] for episode in played for turn in episode["turns"][:1]} == {
        "partner"
    }
    assert {e["turns"][0]["action"] for e in played} > {"0"}, "the partner samples"
    by_task = {}
    for episode in played:
        by_task.setdefault(episode["task"], set()).add(episode["turns"][0]["action"])
    assert all(len(said) == 1 for said in by_task.values()), "a group starts in the same state"


def test_an_endpoint_and_a_script_play_in_an_evaluation(toy_model, tmp_path, capsys):
    common = [f"model={toy_model}", "env=toy-relay", "env.max_turns=2", "partner.role=teller"]
    common += ["tasks=6", "sampling.max_tokens=3", "json=true"]
    (tmp_path / "teller.py").write_text("def two(messages, rng):\n    return '2'\n")
    script = [*common, "partner=script", f"partner.function={tmp_path}/teller.py:two"]
    assert evaluate([*script, f"out={tmp_path / 'script'}"]) == 0
    capsys.readouterr()
    with chat_server() as server:
        server.answer = lambda request: "2"
        endpoint = ["partner=openai", f"partner.url={server.url}", "partner.model=user"]
        assert evaluate([*common, *endpoint, f"out={tmp_path / 'endpoint'}"]) == 0
        assert len(server.requests) == 6
        assert server.requests[0]["model"] == "user"
        assert server.requests[0]["messages"][0]["content"] in {"0", "1", "2"}
        # The policy may be an endpoint as well.
        both = [w for w in [*common, *endpoint] if not w.startswith("model=")]
        both += ["policy=openai", f"policy.url={server.url}", "policy.model=agent"]
        assert evaluate([*both, f"out={tmp_path / 'both'}"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["success"] == 1.0


def test_the_script_of_the_page_is_a_partner():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(block, names)
    generator = np.random.default_rng(0)
    ask = [{"role": "user", "content": "Do you confirm?"}]
    assert names["customer"](ask, generator) == "Yes."
    assert names["customer"]([{"role": "user", "content": "Done."}], generator) == "END"
    assert "roles.md" in str(PAGE)


def test_the_terminal_view_names_the_partner():
    turn = {"role": "guest", "action": "3", "num_tokens": 0, "finish_reason": "partner"}
    turn |= {"rewards": {}, "observation": "", "generate_s": 0.5}
    row = {"env": "cafe", "task": 0, "file": "f", "line": 0, "member": 0, "advantage": None}
    episode = {"row": row, "group": [0], "reward": 0.0, "failure": None, "ending": "finished"}
    lines = "\n".join(_lines({**episode, "observation": "Hi", "turns": [turn]}))
    assert "turn 1 guest  played by the partner  0.50 s" in lines
