"""Studies, each with tables of means and 95% intervals over seeds.

    python -m benchmarks.studies NAME ... [--seeds 0 1 2] [--out runs/studies]

Writes benchmarks/results/studies/NAME.json. A run whose folder is complete is not repeated.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

from benchmarks.studies.tables import as_text
from rl.run.folder import versions

NAMES = ("difficulty", "length", "transfer", "reflection", "crosscheck", "compaction")
RESULTS = Path(__file__).parents[1] / "results" / "studies"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", choices=NAMES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/studies"))
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in options.names:
        module = importlib.import_module(f"benchmarks.studies.{name}")
        sys.stdout.write(f"{module.__doc__.strip()}\n")
        tables = module.study(options.seeds, (options.out / name).resolve())
        for title, rows in tables.items():
            sys.stdout.write(f"\n{title}\n\n{as_text(rows)}")
        record = {"tables": tables, "seeds": options.seeds, "runs": module.RUNS, **versions()}
        (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
