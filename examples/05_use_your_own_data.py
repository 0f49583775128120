"""Your own rows as tasks: a file with columns of any name, splits by hash, one mapping.

Run with: python examples/05_use_your_own_data.py

The same file trains: python -m rl.train env=math env.tasks=FILE model=... env.columns=...

Prints:
    train 31 validation 4 test 5 (40 in all)
    What is 7 plus 8?
    15 earns 1.0
    wrong earns 0.0
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import envs

COLUMNS = "question=frage answer=info.antwort"


def write_rows(path: Path) -> None:
    rows = [
        {"frage": f"What is {n} plus {n + 1}?", "info": {"antwort": 2 * n + 1}} for n in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sums.jsonl")
        write_rows(path)
        sizes = {}
        for split in ("train", "validation", "test", "all"):
            env = envs.make("math", tasks=str(path), columns=COLUMNS, split=split)
            sizes[split] = len(env.tasks)
        parts = " ".join(f"{split} {size}" for split, size in sizes.items() if split != "all")
        print(f"{parts} ({sizes['all']} in all)")
        question, _ = env.reset(options={"task": 7})
        print(question)
        for answer in (str(2 * 7 + 1), "wrong"):
            env.reset(options={"task": 7})
            result = env.step(f"So it is \\boxed{{{answer}}}")
            print(f"{answer} earns {result.reward}")
        env.close()


if __name__ == "__main__":
    main()
