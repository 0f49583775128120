"""Complaint 6: sampled tokens are decoded and encoded again, so other tokens are trained.

verl#6719, #6501 (a Qwen template's newline is dropped at each turn), #3720, #3960; prime-rl#1334;
SkyRL#123, #179; TRL#5144; rLLM#352, #816; agent-lightning#326.
"""

from __future__ import annotations

import itertools

from tokenizers import AddedToken

import envs
from agents.renderer import Renderer
from agents.scripted import ScriptedPolicy
from rl.credit.batch import Batch
from rl.data.conversations import Conversation, Exchange
from rl.runtime.tiny import train_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen's: a line feed stands behind the token that ends a message, and no policy samples it."""
TASKS = {"train": range(0, 4), "validation": range(4, 5), "test": range(5, 6)}


class EchoEnv(envs.TextEnv[int, None]):
    """Repeats the agent's text."""

    def __init__(self, options, services=None):
        super().__init__(options, TASKS[options.split], services)

    def begin(self, task):
        return "hello hello"

    def turn(self, action):
        return envs.go_on(f"you said: {action}") if self.turns_left > 1 else envs.finish({"a": 1.0})


def qwen_like():
    tokenizer = train_tokenizer([Conversation((Exchange("hello hello", "hello hello"),))] * 3, 300)
    names = ("<|im_start|>", "<|im_end|>")
    added = [AddedToken(name, special=True, normalized=False) for name in names]
    tokenizer.add_tokens(added, special_tokens=True)
    tokenizer.chat_template = CHATML
    return tokenizer


async def test_sampled_ids_are_trained_unchanged_and_no_newline_is_lost(play):
    tokenizer = qwen_like()
    renderer = Renderer(tokenizer)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    # A spelling that no encoding gives: letter by letter.
    letters = [renderer.splice(letter)[0] for letter in "hello"]
    assert renderer.splice("hello") != letters
    asked = []

    def respond(session, prompt_ids):
        asked.append(list(prompt_ids))
        return [*letters, end]

    policy = ScriptedPolicy(respond)
    (group,) = await play(EchoEnv, policy=policy, reader=renderer, max_turns=4)
    (trajectory,) = group.trajectories
    ids = trajectory.segments[0].token_ids
    for before, after in itertools.pairwise(asked):
        said = [*before, *letters, end]
        assert after[: len(said)] == said, "the next prompt begins with what was sampled"
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert text.count("hello<|im_end|>\n<|im_start|>user\nyou said: hello<|im_end|>\n") == 3
    assert "<|im_end|><|im_start|>" not in text
    assert Batch.from_groups([group]).targets.tolist() == [*letters, end] * 4
