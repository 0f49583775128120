"""TRL's side of ``benchmarks.speed.steps``: its trainer, whose steps wait for their turn."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.speed.workloads import RESULT, TOOL_S, WORKLOADS, Turns, Workload

STEPS = 200


class Searching:
    """An environment with one tool, which other episodes' calls do not wait for."""

    def reset(self, **_: Any) -> None:
        """An episode begins."""

    async def search(self, query: str) -> str:
        """Search a corpus.

        Args:
            query: What to look up.

        Returns:
            The text found.
        """
        await asyncio.sleep(TOOL_S)
        return RESULT

    def get_reward(self) -> float:
        """A reward at random."""
        return float(torch.rand(()))


class Waiting(TrainerCallback):
    """Lets each step wait for its turn."""

    def __init__(self, trainer: Scripted) -> None:
        self.turns, self.trainer = Turns(), trainer

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """A step begins."""
        try:
            self.turns.wait()
        except SystemExit:
            os._exit(0)
        self.trainer.generating, self.trainer.tokens, self.trainer.turn = 0.0, 0, 0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """A step is over."""
        self.turns.report(self.trainer.tokens, {"generating": self.trainer.generating})


class Scripted(GRPOTrainer):
    """Replaces the sampled tokens by the workload's, after sampling them."""

    workload: Workload
    generating, tokens, turn = 0.0, 0, 0

    def _generate_single_turn(self, prompt_ids: Any, *given: Any, **named: Any) -> Any:
        started = time.perf_counter()
        ids, logprobs = super()._generate_single_turn(prompt_ids, *given, **named)
        self.generating += time.perf_counter() - started
        self.tokens += sum(map(len, ids))
        assert {len(row) for row in ids} == {self.workload.new}
        text, tokenizer = self.workload.script(self.turn), self.processing_class
        self.turn += 1
        if text is not None:
            row = [*tokenizer.encode(text), tokenizer.eos_token_id]
            ids = [list(row) for _ in ids]
        return ids, logprobs


def odd(completions: list[Any], **_: Any) -> list[float]:
    """The share of odd letters."""
    texts = [completion[-1]["content"] or "" for completion in completions]
    return [sum(ord(letter) % 2 for letter in text) / max(1, len(text)) for text in texts]


def main() -> None:
    """Train until the standard input ends."""
    name, folder, threads, micro = sys.argv[1:]
    workload = WORKLOADS[name]
    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    texts = workload.texts(workload.prompts * STEPS)
    prompts = [[{"role": "user", "content": text}] for text in texts]
    with_tools = {"environment_factory": Searching} if workload.turns > 1 else {}
    with tempfile.TemporaryDirectory() as out:
        trainer = Scripted(
            model=model,
            processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
            reward_funcs=None if with_tools else odd,
            args=GRPOConfig(
                output_dir=out,
                use_cpu=True,
                bf16=False,
                report_to="none",
                disable_tqdm=True,
                per_device_train_batch_size=int(micro),
                gradient_accumulation_steps=workload.rows // int(micro),
                num_generations=workload.group,
                max_completion_length=1024 if with_tools else workload.new,
                max_steps=STEPS,
                learning_rate=1e-4,
                lr_scheduler_type="constant",
                save_strategy="no",
                gradient_checkpointing=False,
                shuffle_dataset=False,
                generation_kwargs={
                    "min_new_tokens": workload.new,
                    "max_new_tokens": workload.new,
                },
            ),
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
            **with_tools,
        )
        trainer.workload = workload
        trainer.add_callback(Waiting(trainer))
        trainer.train()


if __name__ == "__main__":
    main()
