"""TRL's GRPOTrainer with environments, on a Qwen3 of one layer.

A script replaces its sampler, so that the model calls the tool; everything else is TRL.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import trl
from datasets import Dataset
from report import Finding, main, probe, waits
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward

GROUP = 4
TOOL_S = 0.5
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|im_end|>'


def tiny_tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, "lo"])}
    core = Tokenizer(models.BPE(vocabulary, [("l", "o")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    folder = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (folder / "qwen3.jinja").read_text()
    return tokenizer


class Looking:
    """An environment whose tool takes a while; as TRL's documentation writes one."""

    def __init__(self):
        self.looked = 0

    def reset(self, **row):
        return None

    def look(self) -> str:
        """Look around.

        Returns:
            What is there.
        """
        time.sleep(TOOL_S)
        self.looked += 1
        return "a door"

    def get_reward(self) -> float:
        return float(self.looked)


class LookingAside(Looking):
    async def look(self) -> str:
        """Look around.

        Returns:
            What is there.
        """
        await asyncio.sleep(TOOL_S)
        self.looked += 1
        return "a door"


def spelled(tokenizer, text):
    """A text's ids as a policy may sample them: letter by letter, as nothing encodes it."""
    words, end = text.removesuffix("<|im_end|>"), tokenizer.eos_token_id
    return [token for letter in words for token in tokenizer.encode(letter)] + [end]


class Scripted(GRPOTrainer):
    """Each episode calls the tool once and then says that it is done."""

    def _generate_single_turn(self, prompt_ids, *args, **settings):
        said = [self.to_say.pop(0)] * len(prompt_ids)
        return [spelled(self.processing_class, text) for text in said], None

    def _generate(self, prompts):
        self.began = time.perf_counter()
        made = super()._generate(prompts)
        self.took = time.perf_counter() - self.began
        self.made = made
        return made


def trainer(factory, rows=("Where are you?",), **columns):
    tokenizer = tiny_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    prompts = [[{"role": "user", "content": row}] for row in rows]
    made = Scripted(
        model=Qwen3ForCausalLM(config),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=GROUP,
            num_generations=GROUP,
            max_steps=1,
            max_completion_length=512,
            max_tool_calling_iterations=1,
            bf16=False,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts, **columns}),
        processing_class=tokenizer,
        environment_factory=factory,
    )
    made.to_say = [CALL, "done<|im_end|>"]
    return made


@probe(1)
def blocking():
    took = {}
    for kind in (Looking, LookingAside):
        played = trainer(kind)
        played.train()
        assert [env.looked for env in played.environments] == [1] * GROUP
        took[kind] = played.took
    saw = (
        f"{GROUP} episodes whose tool takes {TOOL_S} s: {took[Looking]:.1f} s, and "
        f"{took[LookingAside]:.1f} s with an async tool; one after another is {GROUP * TOOL_S} s"
    )
    return Finding(min(took.values()) > (GROUP - 1) * TOOL_S, saw)


@probe(2)
def math_in_threads():
    asked = [[{"role": "assistant", "content": r"So it is \boxed{5/2}"}]], [r"\frac{5}{2}"]
    here = accuracy_reward(*asked)
    with ThreadPoolExecutor(1) as thread:
        there = thread.submit(accuracy_reward, *asked).result(60)
    saw = f"a right answer is worth {here[0]} in the main thread and {there[0]} in another"
    return Finding(here != there, f"{saw}, where it has no deadline")


class Dice(LookingAside):
    def reset(self, **row):
        self.row = row
        self.thrown = np.random.default_rng(row.get("seed")).integers(1, 7, 8).tolist()


@probe(3)
def seeds():
    different = {}
    for columns in ({}, {"seed": [7]}):
        played = trainer(Dice, **columns)
        played.train()
        different[len(columns)] = len({tuple(env.thrown) for env in played.environments})
    saw = (
        f"reset is given the row of data and no seed: {different[0]} different episodes in a group "
        f"of {GROUP}; with a column of seeds {different[1]}"
    )
    return Finding(different[0] > 1, saw)


class Gone(LookingAside):
    made = 0

    def __init__(self):
        super().__init__()
        type(self).made += 1
        self.number = self.made

    def reset(self, **row):
        if self.number == GROUP:
            raise ConnectionError("the database is gone")


class GoneLater(LookingAside):
    async def look(self) -> str:
        """Look around.

        Returns:
            What is there.
        """
        raise ConnectionError("the database is gone")


@probe(4)
def failing():
    played = trainer(GoneLater)
    played.train()
    messages = [message["content"] for message in played.made[3][0] if message["role"] == "tool"]
    rewards = [env.get_reward() for env in played.environments]
    saw = (
        f"a tool that fails tells the agent {messages[0]!r}, and the episode is worth {rewards[0]}"
    )
    try:
        trainer(Gone).train()
    except ConnectionError:
        return Finding(True, f"a reset that fails ends the training; {saw}")
    return Finding(rewards == [0.0] * GROUP, saw)


@probe(6)
def retokenisation():
    played = trainer(LookingAside)
    played.train()
    _, completions, *_ = played.made
    tokenizer = played.processing_class
    sampled = spelled(tokenizer, CALL)
    assert sampled != tokenizer.encode(CALL)
    kept = all(ids[: len(sampled)] == sampled for ids in completions)
    text = tokenizer.decode(completions[0])
    newline = "<|im_end|>\n<|im_start|>user\n<tool_response>" in text
    saw = f"sampled ids are kept: {kept}; the template's newline after a message: {newline}"
    return Finding(not (kept and newline), saw)


@probe(7)
def observations():
    played = trainer(LookingAside)
    played.train()
    _, completions, masks, *_ = played.made
    tokenizer = played.processing_class
    trained = [i for i, mask in zip(completions[0], masks[0], strict=True) if mask]
    own = spelled(tokenizer, CALL) + spelled(tokenizer, "done<|im_end|>")
    return Finding(trained != own, f"the mask selects what was sampled alone: {trained == own}")


class Stuck(Looking):
    def look(self) -> str:
        """Look around.

        Returns:
            What is there.
        """
        threading.Event().wait()
        return "never"


@probe(11)
def hanging():
    played = trainer(Stuck)
    still, how = waits(played.train)
    return Finding(still, f"a tool that never answers: the step {how}")


@probe(13)
def default_settings():
    try:
        args = GRPOConfig(output_dir=tempfile.mkdtemp())
    except Exception as error:
        return Finding(True, f"GRPOConfig() raises {type(error).__name__} without a GPU: {error}")
    saw = f"GRPOConfig() is made without a GPU, with bf16={args.bf16}"
    return Finding(False, f"{saw}; the examples' weights and data need a network")


main("trl")
