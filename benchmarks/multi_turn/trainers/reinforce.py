"""REINFORCE over plain transformers: no learner, sampler or environment of turnwise.

Its episodes are those of the capture endpoint. The baseline of an episode is the mean reward of the
other episodes of its task (Ahmadian et al. 2024, arXiv 2402.14740).

Run with: python -m benchmarks.multi_turn --trainer reinforce
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import runpy
import sys
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from agents.capture import CapturedEpisode, CaptureLimits, CaptureServer
from agents.completion import Completion, FinishReason, SamplingParams
from agents.renderer import Renderer
from benchmarks.multi_turn.games import MAX_TOKENS, TEMPERATURE
from benchmarks.multi_turn.job import Job

TASKS, COPIES, EVERY, LR = 8, 8, 2, 4e-4
"""Tasks of an update, episodes of a task, updates between two checkpoints, learning rate."""
GATHER_S = 0.02
"""Seconds for which a request waits for others, to be sampled in one batch."""


class Sampler:
    """Samples all waiting requests in one batch with ``model.generate``."""

    def __init__(self, model) -> None:
        self.model, self.waiting = model, []

    async def generate(self, prompt_ids, sampling, session=None) -> Completion:
        """A completion of ``prompt_ids``; see :class:`agents.policy.Policy`."""
        loop = asyncio.get_running_loop()
        if not self.waiting:
            loop.call_later(GATHER_S, self._sample)
        answer = loop.create_future()
        self.waiting.append((torch.tensor(prompt_ids), sampling, answer))
        return await answer

    def queued_s(self, session: str) -> float:
        """Zero: the time in the batch counts as sampling."""
        return 0.0

    def _sample(self) -> None:
        (prompts, samplings, answers), self.waiting = zip(*self.waiting, strict=True), []
        stops = samplings[0].stop_token_ids
        # Without top_k=0, transformers samples from the 50 likeliest tokens.
        settings = GenerationConfig(
            **{"do_sample": True, "temperature": TEMPERATURE, "top_k": 0, "top_p": 1.0},
            **{"max_new_tokens": max(s.max_tokens for s in samplings), "pad_token_id": 0},
            **{"eos_token_id": list(stops), "output_logits": True, "return_dict_in_generate": True},
        )
        found = self.model.generate(
            pad_sequence(prompts, batch_first=True, padding_side="left"),
            attention_mask=pad_sequence(
                [torch.ones_like(p) for p in prompts], batch_first=True, padding_side="left"
            ),
            generation_config=settings,
        )
        logprobs = torch.stack(found.logits, 1).log_softmax(-1)
        for row, values, answer in zip(found.sequences, logprobs, answers, strict=True):
            ids = row[-len(values) :].tolist()
            end = next((i + 1 for i, token in enumerate(ids) if token in stops), len(ids))
            ended = FinishReason.STOP_TOKEN if ids[end - 1] in stops else FinishReason.LENGTH
            chances = [float(values[i, token]) for i, token in enumerate(ids[:end])]
            if not answer.cancelled():
                answer.set_result(Completion(tuple(ids[:end]), tuple(chances), (0,) * end, ended))


async def episode(server, make, play, task):
    """Play one episode, and return its reward and its recorded conversations."""
    url = server.open(make())
    reward = await play(task, url)
    return reward, (await server.close(url)).segments


def learn(model, optimizer, groups) -> None:
    """One step along the gradient of the mean reward."""
    rows, advantages = [], []
    for group in groups:
        total = sum(reward for reward, _ in group)
        for reward, segments in group:
            rows += segments
            advantages += [(reward * COPIES - total) / (COPIES - 1)] * len(segments)
    ids, mask = (
        pad_sequence([torch.tensor([*getattr(row, name)]) for row in rows], batch_first=True)
        for name in ("token_ids", "loss_mask")
    )
    logprobs = model(ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    gain = (torch.tensor(advantages)[:, None] * logprobs * mask[:, 1:]).sum() / mask.sum()
    optimizer.zero_grad()
    (-gain).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


async def train(job: Job) -> None:
    torch.manual_seed(job.seed)
    torch.set_num_threads(job.threads)
    file, name = job.play.rsplit(":", 1)
    play = runpy.run_path(file)[name]
    tasks = [json.loads(line) for line in Path(job.tasks).read_text().splitlines()]
    random.Random(job.seed).shuffle(tasks)
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    model = AutoModelForCausalLM.from_pretrained(job.model).eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    renderer, sampler = Renderer(tokenizer), Sampler(model)
    sampling = SamplingParams(temperature=TEMPERATURE, max_tokens=MAX_TOKENS)
    limits = CaptureLimits(context_length=256)

    def make() -> CapturedEpisode:
        return CapturedEpisode(renderer, sampler, sampling, session="", limits=limits)

    async with CaptureServer() as server:
        for step in itertools.count(1):
            drawn = [tasks[(step * TASKS + i) % len(tasks)] for i in range(TASKS)]
            groups = [
                asyncio.gather(*(episode(server, make, play, task) for _ in range(COPIES)))
                for task in drawn
            ]
            learn(model, optimizer, await asyncio.gather(*groups))
            if step % EVERY == 0:
                folder = Path(job.out) / "checkpoint"
                model.save_pretrained(folder)
                tokenizer.save_pretrained(folder)
                job.hand_in(folder, step)


if __name__ == "__main__":
    asyncio.run(train(Job.read(sys.argv[-1])))
