"""Every kind of model of the installed transformers: sampler, learner, adapter and files.

    python -m benchmarks.models.sweep [KIND ...] [seed=N] [far=N] [page=FILE]

Each kind is built small, with random weights, in float32 and in bfloat16. What is compared with one
forward pass of transformers' own model in float32, with the same weights:

- sampler: the log-probabilities of tokens that ``policy=local`` sampled over two turns, near the
  start of the context and near position ``far`` (4,000).
- learner: the log-probabilities of sequences with shared prefixes, packed, padded and alone, and of
  one of ``far`` tokens; and the gradients of all weights.
- adapter: the default adapter, with weights that moved: as it is trained, and merged from its file.
- files: the model after saving and loading.

In float32 every difference is at most 1e-3 nats (gradients: 1e-3 of their length). In bfloat16 the
mean difference is at most 1.5 times that of transformers' own model in bfloat16; an adapter's three
times, because merged weights that are rounded again choose other experts. A verdict is "exact",
"refused" with one line, or what is wrong. Ends with 1 if anything is wrong.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from agents.completion import SamplingParams
from agents.local import LocalPolicy
from agents.segment import Segment
from benchmarks.models.kinds import VOCABULARY, kinds, move, tiny_model
from rl.credit.batch import Batch
from rl.learner.checkpoint import save_checkpoint
from rl.learner.lora import add_adapter, save_adapter, trained_state
from rl.learner.model import load_model
from rl.learner.scoring import ScoringModel
from rl.settings.lora import LoraConfig

EXACT, REFUSED = "exact", "refused"
NATS = 1e-3
"""Largest difference in float32, in nats; of gradients, as a share of their length."""
ROUNDING = 1.5
"""Largest mean difference in bfloat16, as a multiple of transformers' own."""
SLOW_S = 300.0
"""Seconds of a sampler's ten turns. Without kernels, some states take seconds a token."""
FLOOR = 2e-3
"""A mean difference in nats that is below any model's rounding to bfloat16."""


class Case(NamedTuple):
    """A model in a folder, and its own log-probabilities."""

    folder: Path
    dtype: torch.dtype
    exact: PreTrainedModel
    """In float32, with the folder's weights."""
    coarse: PreTrainedModel | None
    """In bfloat16, as transformers loads it; None where the case is float32."""
    sequences: list[list[int]]
    """Four sequences, three of which share a prompt, and a long one."""
    known: dict[tuple[int, ...], tuple[Tensor, Tensor | None]]
    """What these two say of sequences."""

    def expected(self, ids: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """The log-probabilities of a sequence's tokens: exact, and in bfloat16."""
        key = tuple(ids)
        if key not in self.known:
            coarse = None if self.coarse is None else _logprobs(self.coarse, ids)
            self.known[key] = _logprobs(self.exact, ids), coarse
        return self.known[key]

    def load(self) -> PreTrainedModel:
        """The model as a learner loads it."""
        return load_model(self.folder, dtype=self.dtype)


def main(words: Sequence[str]) -> int:
    """Print the verdicts of each kind; 1 if one is wrong."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    options = dict(word.split("=", 1) for word in words if "=" in word)
    named = [word for word in words if "=" not in word]
    rows = []
    for kind in named or kinds():
        found = verdicts(kind, int(options.get("seed", 0)), int(options.get("far", 4000)))
        rows.append((kind, found))
        sys.stdout.write(f"{kind}: {_line(rows[-1][1])}\n")
        sys.stdout.flush()
    wrong = sum(is_wrong(verdict) for _, found in rows for verdict in found.values())
    sys.stdout.write(f"{len(rows)} kinds, {wrong} wrong verdicts\n")
    if "page" in options:
        text = page(rows, int(options.get("far", 4000)))
        Path(options["page"]).write_text(text, encoding="utf-8")
    return min(wrong, 1)


def is_wrong(verdict: str) -> bool:
    """Whether a verdict is neither exact nor a refusal."""
    return not verdict.startswith((EXACT, REFUSED, "-"))


def verdicts(kind: str, seed: int, far: int) -> dict[str, str]:
    """The verdict of each check, by name.

    Args:
        kind: the model type.
        seed: seed of the weights.
        far: number of tokens of the longest sequence.
    """
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        try:
            model = tiny_model(kind, seed)
        except ValueError as error:
            return {"kind": f"- {str(error).splitlines()[0]}"}
        with tempfile.TemporaryDirectory() as folder:
            try:
                case = _case(Path(folder), model, dtype, _sequences(far))
            except Exception as error:
                return {"kind": f"- transformers: {_short(error)}"}
            for name, check in CHECKS.items():
                found[f"{name} {str(dtype).removeprefix('torch.')}"] = _tried(check, case)
    return found


def _tried(check: Callable[[Case], str], case: Case) -> str:
    try:
        return check(case)
    except Exception as error:
        # An error of transformers or torch, whatever its type, is not an answer.
        if isinstance(error, ValueError) and _is_ours(error):
            return f"{REFUSED}: {error}"
        return f"traceback: {_short(error)}"


def _is_ours(error: Exception) -> bool:
    raised = list(traceback.walk_tb(error.__traceback__))[-1][0].f_code.co_filename
    return "site-packages" not in raised


def _short(error: Exception) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def _case(
    folder: Path, model: PreTrainedModel, dtype: torch.dtype, sequences: list[list[int]]
) -> Case:
    model.to(dtype=dtype)  # type: ignore[call-arg]
    save_checkpoint(folder / "model", model)
    exact = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    coarse = None
    if dtype != torch.float32:
        coarse = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=dtype).eval()
    case = Case(folder / "model", dtype, exact, coarse, sequences, {})
    case.expected(sequences[0])
    return case


@torch.no_grad()
def _logprobs(model: PreTrainedModel, ids: Sequence[int]) -> Tensor:
    """What the model says of each token but the first, in one forward pass: ``[n - 1]``."""
    row = torch.tensor([list(ids)])
    logits = model(input_ids=row, use_cache=False).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, row[0, 1:, None])[:, 0]


def _sequences(far: int) -> list[list[int]]:
    """Four sequences, three of which share a prompt, and one of ``far`` tokens."""
    made = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(3, VOCABULARY, (count,), generator=made).tolist()

    prompt = tokens(40)
    return [*(prompt + tokens(n) for n in (120, 120, 200)), tokens(150), tokens(far)]


def _compare(
    case: Case,
    found: Sequence[Tensor],
    sequences: Sequence[Sequence[int]],
    rounding: float = ROUNDING,
) -> str:
    """The verdict on log-probabilities of sequences."""
    worst = ""
    for ours, ids in zip(found, sequences, strict=True):
        # Early and late tokens apart: an error that grows with the position is not to drown.
        theirs, coarse = case.expected(ids)
        # NaN where a token was not scored.
        scored = ~ours.isnan()
        off = (ours.float() - theirs).abs()[scored]
        if coarse is None:
            if not float(off.max()) <= NATS:
                worst = f"off by {float(off.max()):.2g} nats of {len(ids)} tokens"
            continue
        own = (coarse - theirs).abs()[scored]
        for part in (slice(0, 200), slice(-200, None)):
            limit = max(rounding * float(own[part].mean()), FLOOR)
            # Of a few dozen tokens, the mean itself is noise.
            if not float(off[part].mean()) <= limit * (1 if len(off) > 100 else 2):
                worst = (
                    f"off by {float(off[part].mean()):.2g} nats on average, transformers by "
                    f"{float(own[part].mean()):.2g}, of {len(ids)} tokens"
                )
    return worst or EXACT


def _sampler(case: Case) -> str:
    model = case.load()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({}, [])))

    async def play() -> list[tuple[Tensor, list[int]]]:
        policy = LocalPolicy(model, tokenizer, max_slots=4)
        *near, far = case.sequences
        prompts = [ids[:60] for ids in near] + [far[:-100]]
        try:
            async with asyncio.timeout(SLOW_S):
                return await asyncio.gather(*(_episode(policy, ids) for ids in prompts))
        finally:
            await policy.close()

    try:
        played = asyncio.run(play())
    except TimeoutError:
        return f"- slower than {SLOW_S:g} s"
    return _compare(case, [scores for scores, _ in played], [ids for _, ids in played])


async def _episode(policy: LocalPolicy, prompt: list[int]) -> tuple[Tensor, list[int]]:
    """Two turns: the scores of all tokens, NaN where one was not sampled, and the tokens."""
    ids, scores = list(prompt), [float("nan")] * len(prompt)
    for turn in range(2):
        params = SamplingParams(temperature=1.0, max_tokens=24, seed=turn)
        completion = await policy.generate(ids, params)
        ids += [*completion.token_ids, *prompt[:7]]
        scores += [*completion.logprobs, *[float("nan")] * 7]
    return torch.tensor(scores[1:]), ids


def _learner(case: Case) -> str:
    sequences = case.sequences
    model = case.load()
    # Padded beside the longest, the short ones would be as long.
    for name, rows in (("packed", sequences), ("alone", sequences[:1]), ("padded", sequences[:4])):
        scoring = ScoringModel(model, packing=name != "padded")
        batch = Batch.from_segments([_segment(ids) for ids in rows])
        scores = scoring.score_tokens(batch, 8192).logprobs
        verdict = _compare(case, scores.split([len(ids) - 1 for ids in rows]), rows)
        if verdict != EXACT:
            return f"{name}: {verdict}"
    return EXACT


def _segment(ids: Sequence[int]) -> Segment:
    count = len(ids)
    return Segment(list(ids), [0] + [1] * (count - 1), [0.0] * count, [0] * count, [0] * count)


def _gradients(case: Case) -> str:
    sequences = case.sequences[:4]
    model = case.load().requires_grad_(True)
    scoring = ScoringModel(model, packing=True)
    batch = Batch.from_segments([_segment(ids) for ids in sequences])
    for micro in scoring.micro_batches(batch, 1024):
        scoring.score(micro).logprobs.sum().backward()
    expected = _gradient(case.exact, sequences)
    ours = _vector(model, expected)
    off = _distance(ours, expected)
    if case.coarse is None:
        return EXACT if off <= NATS else f"gradients are off by {off:.2g} of their length"
    own = _distance(_vector(case.coarse, _gradient(case.coarse, sequences)), expected)
    if off <= max(ROUNDING * own, 0.02):
        return EXACT
    return f"gradients are off by {off:.2g} of their length, transformers' by {own:.2g}"


def _gradient(model: PreTrainedModel, sequences: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    model.zero_grad()
    for ids in sequences:
        row = torch.tensor([list(ids)])
        logits = model(input_ids=row, use_cache=False).logits[0, :-1].float()
        logits.log_softmax(-1).gather(1, row[0, 1:, None]).sum().backward()
    return {n: p.grad.float() for n, p in model.named_parameters() if p.grad is not None}


def _vector(model: PreTrainedModel, like: dict[str, Tensor]) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    zero = {name: torch.zeros_like(one) for name, one in like.items()}
    return {n: zero[n] if (g := named[n].grad) is None else g.float() for n in like}


def _distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    off = sum(float((found[n] - x).pow(2).sum()) for n, x in expected.items())
    return float((off / sum(float(x.pow(2).sum()) for x in expected.values())) ** 0.5)


def _adapter(case: Case) -> str:
    model = case.load()
    add_adapter(model, LoraConfig(rank=4), str(case.folder), seed=0)
    drawn = torch.Generator().manual_seed(0)
    for tensor in trained_state(model).values():
        tensor.add_(torch.randn(tensor.shape, generator=drawn) * 0.02)
    sequences = case.sequences[:4]
    trained = [_logprobs(model, ids) for ids in sequences]
    folder = case.folder.parent / "adapter"
    save_adapter(folder, model)
    loaded = load_model(folder, dtype=torch.float32)
    coarse = None if case.coarse is None else load_model(folder, dtype=case.dtype)
    merged = case._replace(exact=loaded, coarse=coarse, known={})
    return _compare(merged, trained, sequences, 2 * ROUNDING)


def _files(case: Case) -> str:
    model = case.load()
    move(model)
    folder = case.folder.parent / "saved"
    save_checkpoint(folder, model)
    ids = case.sequences[2]
    off = (_logprobs(load_model(folder, dtype=case.dtype), ids) - _logprobs(model, ids)).abs().max()
    return EXACT if float(off) == 0 else f"a saved model is off by {float(off):.2g} nats"


CHECKS: dict[str, Callable[[Case], str]] = {
    "sampler": _sampler,
    "learner": _learner,
    "gradients": _gradients,
    "adapter": _adapter,
    "files": _files,
}


def _line(found: dict[str, str]) -> str:
    found_wrong = [f"{name}: {verdict}" for name, verdict in found.items() if verdict != EXACT]
    return "; ".join(found_wrong) or EXACT


def page(rows: Sequence[tuple[str, dict[str, str]]], far: int) -> str:
    """The page of docs: a table of verdicts, and the kinds that were left out.

    Args:
        rows: each kind with its verdicts.
        far: number of tokens of the longest sequence.
    """
    built = [(kind, found) for kind, found in rows if "kind" not in found]
    left = [f"`{kind}`" for kind, found in rows if "kind" in found]
    unrun = [f"`{kind}`" for kind in kinds() if kind not in dict(rows)]
    table = [f"| model type | {' | '.join(CHECKS)} | why not |", f"|{'---|' * (len(CHECKS) + 2)}"]
    for kind, found in built:
        cells = [_cell(found, name) for name in CHECKS]
        table.append(f"| `{kind}` | {' | '.join(cells)} | {_reason(found)} |")
    return _PAGE.format(
        version=transformers.__version__,
        far=far,
        count=len(built),
        exact=sum(all(v == EXACT for v in found.values()) for _, found in built),
        table="\n".join(table),
        left=", ".join(left),
        unrun=f"\nNot run yet: {', '.join(unrun)}.\n" if unrun else "",
    )


def _cell(found: dict[str, str], name: str) -> str:
    """The verdict of a check in both types, or one for each."""
    words = [verdict.split(":")[0] for key, verdict in found.items() if key.split()[0] == name]
    words = ["slow" if word.startswith("-") else word for word in words]
    words = [word if word in (EXACT, REFUSED, "slow") else "**off**" for word in words]
    return words[0] if len(set(words)) == 1 else f"{words[0]}, bfloat16: {words[1]}"


def _reason(found: dict[str, str]) -> str:
    """What the first verdict that is not exact says, in short."""
    first = next((verdict for verdict in found.values() if verdict != EXACT), "")
    return next((why for words, why in _REASONS.items() if words in first), first[:80])


_REASONS = {
    "changes its logits": "its logits are not its last layer's output",
    "later tokens": "its tokens read later ones",
    "whose cache it does not support": "its cache, or its positions with a cache",
    "states no context window": "its configuration states no context window",
    "no linear layer": "it has no linear layer that an adapter fits",
}
"""Words of a refusal, and the reason in a few words."""
_PAGE = """# Kinds of models

What each kind of model that transformers {version} loads as a causal language model can do here. Each was made small, with random weights that all differ from their initial values, and compared with transformers' own model in float32: `python -m benchmarks.models.sweep`. Of {count} kinds, {exact} are exact in all checks; the others are refused in one line, or off by what the last column says.

- **sampler**: the log-probabilities of tokens that `policy=local` sampled over two turns, also behind {far} tokens. "Slow" took more than five minutes for them, without kernels for its states. Servers of vLLM sample other kinds as well.
- **learner**, **gradients**: log-probabilities of packed, padded and single rows of up to {far} tokens, and the gradients of all weights.
- **adapter**: the default adapter, as it is trained and merged from its file.
- **files**: the model after saving and loading.

"Exact" means: at most 1e-3 nats in float32; in bfloat16 on average at most 1.5 times what transformers' own model differs by (an adapter: three times).

{table}

Left out, because they are not built from a small configuration of text alone: {left}.
{unrun}"""  # noqa: E501


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
