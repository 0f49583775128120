"""CPU seconds of an update and memory of the head, compared with a straightforward implementation.

    OMP_NUM_THREADS=1 python -m benchmarks.speed.losses [repeats]

- update: one GRPO update of 256 episodes with 20 prompt tokens and 20 to 60 (even) or lognormal
  16 to 500 (ragged) sampled tokens, on a 0.4M-parameter Qwen3. The straightforward implementation
  pads 16 rows at a time with a mask, in their given order, and computes the log-softmax of every
  position's logits.
- credit: for every algorithm, the seconds of its advantages and losses for 100,000 sampled tokens
  in 1,600 episodes of up to four turns (credit, weights of tokens, objective and its gradient with
  respect to the log-probabilities), as a share of a whole GRPO update of the same model.
- head: log-probabilities, entropies and gradients of 1024 positions over a vocabulary of 152k, and
  the growth of the process's peak memory.

CPU seconds refer to one torch thread, so that a busy machine matters less; the two alternate.
Prints one line of JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from agents.completion import Completion, FinishReason
from rl.credit.algorithm import Algorithm
from rl.credit.algorithms import ALGORITHMS
from rl.credit.assignment import assign_credit, correction_weights
from rl.credit.batch import Batch, MicroBatch
from rl.credit.logprobs import token_head
from rl.credit.losses import FixedTerms, TokenScores
from rl.credit.steps import policy_portions
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from rl.rollout.trajectory import Segment, Trajectory, TrajectoryGroup, Turn
from rl.run.folder import versions

VOCABULARY = 259
PROMPT, GROUPS, GROUP_SIZE = 20, 32, 8
POSITIONS, WIDTH, LARGE_VOCABULARY = 1024, 512, 152_000


def make_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    return Qwen3ForCausalLM(config).eval()


def make_groups(kind: str) -> list[TrajectoryGroup]:
    generator = np.random.default_rng(0)

    def trajectory(member: int) -> Trajectory:
        count = int(generator.integers(20, 61))
        if kind == "ragged":
            count = int(np.clip(generator.lognormal(4.2, 0.9), 16, 500))
        segment = Segment()
        segment.append_context(generator.integers(2, VOCABULARY, PROMPT).tolist(), 0)
        ids = tuple(generator.integers(2, VOCABULARY, count).tolist())
        segment.append_completion(
            Completion(ids, (-5.5,) * count, (0,) * count, FinishReason.STOP_TOKEN), 0
        )
        turn = Turn("", "", "stop_token", count, {"r": float(generator.random())})
        return Trajectory("none", {}, 0, 0, member, [segment], [turn], terminated=True)

    return [TrajectoryGroup([trajectory(i) for i in range(GROUP_SIZE)]) for _ in range(GROUPS)]


def make_episodes(tokens: int) -> list[TrajectoryGroup]:
    """Groups of eight with ``tokens`` sampled tokens in all, observations between turns."""
    generator = np.random.default_rng(1)
    groups, count = [], 0
    while count < tokens:
        members = []
        for member in range(GROUP_SIZE):
            segment, turns = Segment(), []
            for turn in range(int(generator.integers(1, 5))):
                segment.append_context(generator.integers(2, VOCABULARY, PROMPT).tolist(), turn)
                ids = tuple(generator.integers(2, VOCABULARY, int(generator.integers(5, 46))))
                ids = tuple(int(i) for i in ids)
                done = Completion(ids, (-5.5,) * len(ids), (0,) * len(ids), FinishReason.STOP_TOKEN)
                segment.append_completion(done, turn)
                reward = {"r": float(generator.random())}
                turns.append(Turn("", str(turn), "stop_token", len(ids), reward))
                count += len(ids)
            members.append(Trajectory("none", {}, 0, 0, member, [segment], turns, terminated=True))
        groups.append(TrajectoryGroup(members))
    return groups


def credit_and_loss(row: Algorithm, batch: Batch) -> None:
    """What an update does beside the model: advantages, weights, objective, gradient."""
    count = batch.num_tokens
    logprobs = torch.full((count,), -5.5)
    doubles = logprobs.double()
    values = torch.zeros(count, dtype=torch.float64)
    credit = assign_credit(row, batch, values, doubles, doubles, values)
    corrections = None
    if row.correction.kind != "none":
        corrections, _ = correction_weights(row, doubles, doubles, batch.episode_ids)
    fixed = FixedTerms(
        credit.advantages,
        doubles,
        doubles if row.kl.coef and row.kl.place == "loss" else None,
        values if row.uses_values else None,
        credit.returns,
        corrections,
    ).map(lambda x: x.float())
    whole = torch.ones(len(batch.rewards), dtype=torch.bool)
    for portion in policy_portions(row, batch, fixed, whole, whole, _cut):
        micro = portion.micro
        now = logprobs[micro.tokens].requires_grad_()
        scores = TokenScores(
            now,
            torch.zeros_like(now),
            torch.zeros_like(now, requires_grad=True) if row.uses_values else None,
        )
        portion.terms(row, scores).loss.backward()


def _cut(batch: Batch, episodes: Tensor) -> list[MicroBatch]:
    return batch.micro_batches(4096, episodes)


def measure_credit(repeats: int, tokens: int = 100_000) -> dict[str, object]:
    groups = make_episodes(tokens)
    for group in groups:
        for place, trajectory in enumerate(group.finished):
            trajectory.outcome = float(place % 3 == 0)
    batch = Batch.from_groups(groups)
    learner = Updater(make_model(), ALGORITHMS["grpo"], OptimizerConfig(lr=1e-5))
    learner.update(groups)
    whole = min(cpu_seconds(lambda: learner.update(groups)) for _ in range(2))
    # Beside the rows' own micro-batches, which the model needs as well.
    cut = min(cpu_seconds(lambda: list(batch.micro_batches(4096))) for _ in range(repeats))
    shares = {}
    for name, row in ALGORITHMS.items():
        credit_and_loss(row, batch)
        seconds = [cpu_seconds(lambda row=row: credit_and_loss(row, batch)) for _ in range(repeats)]
        shares[name] = round((statistics.median(seconds) - cut) / whole, 5)
    return {
        "tokens": batch.num_tokens,
        "episodes": len(batch.rewards),
        "update_s": round(whole, 2),
        "largest_share": max(shares.values()),
        "shares": shares,
    }


def plain_update(
    model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, groups: list[TrajectoryGroup]
) -> None:
    rewards = torch.tensor([[t.reward for t in group.trajectories] for group in groups])
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
    flat = advantages.flatten()
    rows = [t.segments[0] for group in groups for t in group.trajectories]
    for start in range(0, len(rows), 16):
        part = rows[start : start + 16]
        width = max(len(row) for row in part)
        ids = torch.tensor([row.token_ids + [0] * (width - len(row)) for row in part])
        mask = torch.tensor([row.loss_mask + [0] * (width - len(row)) for row in part])[:, 1:]
        real = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in part])
        log_p = model(input_ids=ids, attention_mask=real).logits[:, :-1].log_softmax(-1)
        logprobs = log_p.gather(2, ids[:, 1:, None])[..., 0]
        with torch.no_grad():
            (log_p.exp() * log_p).sum(-1)
        ratio = (logprobs - logprobs.detach()).exp()
        advantage = flat[start : start + 16, None]
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)) * mask
        ((loss.sum(1) / mask.sum(1)).sum() / len(rows)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def measure_update(kind: str, repeats: int) -> dict[str, float]:
    groups = make_groups(kind)
    learner = Updater(make_model(), ALGORITHMS["grpo"], OptimizerConfig(lr=1e-5))
    rival = make_model()
    optimizer = torch.optim.AdamW(rival.parameters(), lr=1e-5, fused=True)
    ours, plain = [], []
    for round_ in range(repeats + 1):
        times = (
            cpu_seconds(lambda: learner.update(groups)),
            cpu_seconds(lambda: plain_update(rival, optimizer, groups)),
        )
        if round_:  # the first one warms up
            ours.append(times[0])
            plain.append(times[1])
    return {
        "tokens": sum(len(t.segments[0]) for group in groups for t in group.trajectories),
        "learner_median_s": round(statistics.median(ours), 3),
        "plain_median_s": round(statistics.median(plain), 3),
        "ratio_of_medians": round(statistics.median(plain) / statistics.median(ours), 2),
    }


def plain_head(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    log_p = (hidden @ weight.T).float().log_softmax(-1)
    return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1).detach()


def measure_head(kind: str, answer: multiprocessing.SimpleQueue[dict[str, float]]) -> None:
    """Run in a separate process, whose peak memory is not shared."""
    torch.set_num_threads(1)
    hidden = torch.randn(POSITIONS, WIDTH, requires_grad=True)
    weight = (torch.randn(LARGE_VOCABULARY, WIDTH) * 0.02).requires_grad_()
    weight.grad, hidden.grad = torch.zeros_like(weight), torch.zeros_like(hidden)
    targets = torch.randint(LARGE_VOCABULARY, (POSITIONS,))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def work() -> None:
        if kind == "chunked":
            logprobs, _ = token_head(hidden, weight, None, targets, 1.0)
        else:
            logprobs, _ = plain_head(hidden, weight, targets)
        logprobs.sum().backward()

    seconds = cpu_seconds(work)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    answer.put({"cpu_s": round(seconds, 2), "peak_growth_mib": round(peak / 1024)})


def head_in_a_process(kind: str) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    answer = context.SimpleQueue()
    process = context.Process(target=measure_head, args=(kind, answer))
    process.start()
    process.join(600)
    if process.exitcode != 0:
        raise RuntimeError(f"the {kind} head ended with exit code {process.exitcode}")
    result: dict[str, float] = answer.get()
    return result


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.set_num_threads(1)
    result: dict[str, object] = {"repeats": repeats, "torch": torch.__version__}
    for kind in ("even", "ragged"):
        result[kind] = measure_update(kind, repeats)
    result["credit"] = measure_credit(repeats)
    for kind in ("chunked", "plain"):
        result[f"{kind}_head"] = head_in_a_process(kind)
    print(json.dumps({**result, **versions()}))


if __name__ == "__main__":
    main()
