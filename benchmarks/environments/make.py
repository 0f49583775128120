"""Time to create an environment, in milliseconds.

    python -m benchmarks.environments.make [ID ...]

Medians over fresh interpreters: ``import envs``, then the first ``envs.make`` and ``reset`` of the
process, then later ones. Wall time, and CPU time for busy machines. Modules are compiled
beforehand, as after an installation. Prints one JSON line.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

ROUNDS = 7
NUM_WARM = 20

PROGRAM = f"""
import json, sys, time
def now():
    return time.perf_counter(), time.process_time()
moments = [now()]
import envs
moments.append(now())
envs.make(sys.argv[1]).reset(seed=0)
moments.append(now())
for seed in range({NUM_WARM}):
    envs.make(sys.argv[1]).reset(seed=seed)
moments.append(now())
print(json.dumps(moments))
"""
PARTS = {"import": 1, "first_make_and_reset": 1, "make_and_reset": NUM_WARM}


def measure(env_id: str, cache: str) -> dict[str, float]:
    environment = os.environ | {"PYTHONPYCACHEPREFIX": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    rounds = []
    # The first round compiles and is not counted.
    for _ in range(ROUNDS + 1):
        command = [sys.executable, "-c", PROGRAM, env_id]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        rounds.append(json.loads(done.stdout))
    figures = {}
    for place, (part, count) in enumerate(PARTS.items()):
        for kind, clock in enumerate(("wall_ms", "cpu_ms")):
            spans = [one[place + 1][kind] - one[place][kind] for one in rounds[1:]]
            figures[f"{part}_{clock}"] = round(1000 * statistics.median(spans) / count, 2)
    return figures


def main() -> None:
    ids = sys.argv[1:] or ["code-sandbox-v0", "search-qa-v0"]
    with tempfile.TemporaryDirectory() as cache:
        results = {env_id: measure(env_id, cache) for env_id in ids}
    print(json.dumps({"benchmark": "make_env"} | results))


if __name__ == "__main__":
    main()
