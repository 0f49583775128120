"""Whole training steps of turnwise and of TRL's trainer, with one and with two threads each.

    python -m benchmarks.speed.steps [rounds] [results.json] [workload ...]

Both train the Qwen3 with 0.8M parameters of ``benchmarks.speed.generation`` by GRPO in float32 on a
CPU, from messages to new weights, with their own samplers, tools, learners and logs:

- single: 16 prompts of 64 tokens, 8 samples each, one message of 128 tokens;
- tools: 4 prompts of about 700 tokens (723 with TRL's schema of the tool), 8 samples each, three
  messages of 80 tokens, of which the first two call a tool that waits for 20 ms and gives 64
  letters. The model is random: both sides sample each token, then replace it by the script's.

A side has a process for each of its settings: the number of threads, for turnwise the number of
sampling processes (``policy.processes``), and for TRL 16 rows a micro-batch or all of them. All
processes wait for their turn. Within a round each makes one step, so that a busy machine slows all.
The better setting of each side counts. Prints one line of JSON for each workload, and adds them to
the file: median and best seconds and CPU seconds of each setting, the ratios, and where our seconds
went. Without TRL installed, only ours are measured.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AddedToken, PreTrainedTokenizerFast

from benchmarks.speed.generation import make_model, make_tokenizer
from benchmarks.speed.workloads import END, EVERY, WORKLOADS
from rl.run.folder import versions

THREADS = (1, 2)
OURS = ((1, 1), (2, 1), (2, 2))
"""Our settings: threads, and processes of the policy."""
PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Side:
    """A process that makes one step at a time."""

    def __init__(self, name: str, threads: int, words: Sequence[str]) -> None:
        self.name = name
        self.made: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )

    def step(self) -> None:
        """Make one step, and keep what the process reports about it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(EVERY):
                self.made.append(json.loads(line.removeprefix(EVERY)))
                return
        raise RuntimeError(f"{self.name} ended with exit code {self._process.wait()}")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def summary(self) -> dict[str, Any]:
        """Medians and bests of the steps after the first, which warms up."""
        seconds, cpu = ([made[key] for made in self.made[1:]] for key in ("seconds", "cpu_s"))
        phases = {
            key: round(statistics.median(made["phases"][key] for made in self.made[1:]), 3)
            for key in self.made[-1]["phases"]
        }
        return {
            "median_s": round(statistics.median(seconds), 3),
            "best_s": round(min(seconds), 3),
            "median_cpu_s": round(statistics.median(cpu), 3),
            "phases_s": phases,
            "tokens": self.made[-1]["tokens"],
        }


def save_model(folder: Path, with_tools: bool) -> None:
    """The model with a tokenizer whose chat template both sides use."""
    model, plain = make_model(), make_tokenizer()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain.backend_tokenizer, eos_token=END, pad_token="<|endoftext|>"
    )
    specials = [AddedToken(t, special=True) for t in ("<|endoftext|>", "<|im_start|>", END)]
    tokenizer.add_special_tokens({"additional_special_tokens": specials})
    tokenizer.chat_template = PLAIN
    spec = importlib.util.find_spec("trl")
    if with_tools and spec is not None and spec.origin is not None:
        template = Path(spec.origin).parent / "chat_templates" / "qwen3.jinja"
        tokenizer.chat_template = template.read_text(encoding="utf-8")
    assert len(tokenizer) == model.config.vocab_size
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def sides(name: str, model: Path) -> list[Side]:
    """All settings of both sides."""
    ours = "benchmarks.speed.steps_ours"
    made = [
        Side(f"ours_{threads}_{processes}", threads, [ours, name, str(model), *map(str, setting)])
        for setting in OURS
        for threads, processes in [setting]
    ]
    if importlib.util.find_spec("trl") is not None:
        rows = WORKLOADS[name].rows
        made += [
            Side(
                f"trl_{n}_{micro}",
                n,
                ["benchmarks.speed.steps_trl", name, str(model), str(n), str(micro)],
            )
            for n in THREADS
            for micro in sorted({16, rows})
        ]
    return made


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Median and best steps of a workload."""
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), with_tools=WORKLOADS[name].turns > 1)
        processes = sides(name, Path(folder))
        try:
            for _ in range(rounds + 1):
                for process in processes:
                    process.step()
        finally:
            for process in processes:
                process.close()
    result: dict[str, Any] = {side.name: side.summary() for side in processes}
    ratios: dict[str, float] = {}
    for key in ("median_s", "best_s", "median_cpu_s"):
        own, other = (
            [value[key] for side, value in result.items() if side.startswith(kind)]
            for kind in ("ours", "trl")
        )
        if other:
            ratios[f"trl_{key}"] = round(min(other) / min(own), 2)
    return {**result, "ratios": ratios}


def main() -> None:
    """Measure the workloads, and write the results."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    results = json.loads(path.read_text()) if path is not None and path.exists() else {}
    for name in sys.argv[3:] or WORKLOADS:
        found = measure(name, rounds)
        load = round(os.getloadavg()[0], 1)
        results[name] = {**found, "rounds": rounds, "load": load, "versions": versions()}
        print(json.dumps({name: results[name]}), flush=True)
        if path is not None:
            path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
