"""Behaviour of other systems in the situations of ``docs/pains.md``.

    python -m benchmarks.pains [--venvs FOLDER] [--peers NAME ...]

Installs the newest version of each system into its own virtual environment, which also sees the
packages that are installed here, so that torch is not downloaded again. A script under
``benchmarks/peers`` then reproduces the situations of the tests in ``tests/pains``. Writes
``benchmarks/results/pains.json`` and prints the table of ``docs/pains.md``.
"""

from __future__ import annotations

import argparse
import json
import platform
import site
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "pains.json"
SCRIPT_S = 600
PEERS: dict[str, tuple[str, ...]] = {
    "gem-llm": ("gem_llm.py", "pylatexenc"),
    "openenv": ("openenv_served.py",),
    "reasoning-gym": ("reasoning_gym_tasks.py",),
    "skyrl-gym": ("skyrl_gym_envs.py",),
    "textarena": ("textarena_games.py",),
    "trl": ("trl_grpo.py",),
    "verifiers": ("verifiers_math.py",),
}
"""Script of each distribution, and other packages that it needs."""
Finding = dict[str, Any]


def prepared(peer: str, venvs: Path) -> Path:
    """The interpreter of an environment in which the peer is installed."""
    home = venvs / peer
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
        minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
        shared = "\n".join(site.getsitepackages())
        (home / "lib" / minor / "site-packages" / "shared.pth").write_text(shared + "\n")
    constraints = home / "constraints.txt"
    constraints.write_text(f"torch=={version('torch').split('+')[0]}\n")
    words = ["-m", "pip", "install", "--quiet", "--upgrade", "-c", str(constraints)]
    subprocess.run([python, *words, peer, *PEERS[peer][1:]], check=True, timeout=SCRIPT_S)
    return python


def findings_of(peer: str, venvs: Path) -> list[Finding]:
    """The findings of the peer's script, or the reason why it could not run."""
    try:
        python = prepared(peer, venvs)
        done = subprocess.run(
            [python, HERE / "peers" / PEERS[peer][0]],
            cwd=tempfile.mkdtemp(),
            stdout=subprocess.PIPE,
            text=True,
            timeout=SCRIPT_S,
            check=True,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        why = f"{type(error).__name__}: {error}"
        return [{"peer": peer, "verdict": "could not be run", "saw": why}]
    return [json.loads(line) for line in done.stdout.splitlines()]


def table(results: Mapping[str, Any]) -> str:
    """The findings as a table in Markdown, ordered by complaint."""
    rows = ["| complaint | peer | verdict | what it did |", "|---|---|---|---|"]
    for found in results["findings"]:
        cells = (
            str(found.get("complaint", "")),
            f"{found['peer']} {found.get('version', '')}".strip(),
            found["verdict"],
            found["saw"].replace("|", r"\|").replace("<", r"\<"),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--venvs", type=Path, default=Path(tempfile.gettempdir()) / "turnwise-peers"
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    options = parser.parse_args(argv)
    results = {"benchmark": "pains", "python": platform.python_version(), "findings": []}
    if RESULTS.exists():
        results["findings"] = json.loads(RESULTS.read_text())["findings"]
    for peer in options.peers:
        others = [found for found in results["findings"] if found["peer"] != peer]
        found = findings_of(peer, options.venvs.absolute())
        results["findings"] = sorted(
            others + found, key=lambda one: (one.get("complaint", 0), one["peer"])
        )
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    sys.stdout.write(table(results))


if __name__ == "__main__":
    main()
