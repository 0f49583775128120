"""Episodes as text, for a terminal without a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rl.errors import UsageError
from rl.rollout.trajectory import BY_PARTNER
from rl.viewer.api import list_episodes, list_runs, show_episode, show_run
from rl.viewer.finding import plural
from rl.viewer.runs import MAKE, Runs

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Characters that move the cursor, are invisible, or change the direction of text."""
_LONGEST = 4000
_INDEXING_S = 600.0
"""Seconds that the command spends on reading new files, so that it lists all episodes."""


def printable(text: str) -> str:
    """``text`` with its control characters as ``<U+202E>``."""
    return _CONTROLS.sub(lambda found: f"<U+{ord(found[0]):04X}>", text)


def overview_text(runs: Runs, run: str, most: int = 40) -> str:
    """A run's findings and its newest episodes, each with the name that ``episode=`` takes."""
    runs.run(run).index.update(_INDEXING_S)
    runs.run(run).problems(_INDEXING_S)
    shown = show_run(runs, {"run": run})
    lines = _head(shown)
    for problem in shown["problems"]:
        effect = f", an effect of {problem['cause']}" if problem["cause"] else ""
        lines += [f"  {problem['severity']}{effect}: {problem['title']}"]
        lines += [f"    {problem['detail']}"]
        lines += [f"    try: {problem['advice']}"] if problem["advice"] else []
    lines += [f"  not read: {error}" for error in shown["errors"]]
    listed = list_episodes(runs, {"run": run, "limit": str(most)})
    unread, total = shown["files_left"], listed["total"]
    left = f" ({plural(unread, 'file')} not read yet)" if unread else ""
    hint = ", the newest first; show one with episode=NAME" if total else ""
    lines += ["", f"{plural(total, 'episode')}{left}{hint}"]
    for row in listed["rows"]:
        ending = row["failure"] or row["ending"]
        name, answer = f"{row['file']}/{row['line']}", " ".join(row["answer"].split())
        lines.append(f"  {name:<22} {_number(row['reward'])}  {ending:<14} {answer[:60]}")
    return printable("\n".join(lines)) + "\n"


def _number(value: float | None) -> str:
    """A reward. One that is no number is null in the index."""
    return f"{'nan':>8}" if value is None else f"{value:>8.3f}"


def runs_text(runs: Runs) -> str:
    """The names of all runs with their results and their most important findings."""
    lines = []
    for run in list_runs(runs, {})["runs"]:
        rates = [run[key] for key in ("before", "after")]
        shown = " -> ".join("?" if rate is None else f"{rate['success']:.2f}" for rate in rates)
        lines += _head(run, shown if any(rates) else "", widths=(40, 11))
        lines += [f"  {run['worst']['severity']}: {run['worst']['title']}"] if run["worst"] else []
    if not lines:
        return printable(f"{runs.root} holds no run: {MAKE}") + "\n"
    return printable("\n".join(lines)) + "\n"


def _head(run: Mapping[str, Any], tests: str = "", widths: Sequence[int] = (0, 0)) -> list[str]:
    """A run in one line, and why it ended too early in a second one.

    Args:
        run: the run's summary.
        tests: success on test tasks.
        widths: the least widths of the name and of the state.
    """
    of = f"/{run['of_steps']}" if run["of_steps"] else ""
    state, cause = run["state"]["verdict"], run["state"]["cause"]
    columns = [text.ljust(width) for text, width in zip((run["name"], state), widths, strict=True)]
    parts = [*columns, run["env_name"], run["algo"], f"step {run['steps']}{of}", tests]
    return ["  ".join(filter(None, parts)), *([f"  {cause}"] if cause else [])]


def episode_text(runs: Runs, run: str, name: str) -> str:
    """One episode: turns, tool calls and rewards.

    Args:
        runs: the runs.
        run: the run's name.
        name: the file and the line of the episode, such as ``step-000012/3``.

    Raises:
        UsageError: there is no such episode.
    """
    file, _, line = name.rpartition("/")
    if not file or not line.isdigit():
        raise UsageError(f"episode ({name}) must have the form step-000012/3")
    episode = show_episode(runs, {"run": run, "file": file, "line": line})
    return printable("\n".join(_lines(episode))) + "\n"


def _lines(episode: Mapping[str, Any]) -> Iterator[str]:
    row = episode["row"]
    yield (
        f"{row['env']}  task {row['task']}  {row['file']}/{row['line']}  member {row['member']} "
        f"of {len(episode['group'])}"
    )
    advantage = "" if row["advantage"] is None else f"  advantage {row['advantage']:+.3f}"
    yield f"reward {episode['reward']:.3f}{advantage}  {episode['failure'] or episode['ending']}"
    if episode.get("system"):
        yield from _block("system", episode["system"])
    yield from _block("environment", episode["observation"])
    for number, turn in enumerate(episode["turns"], 1):
        seconds = f"{turn.get('generate_s', 0.0):.2f} s"
        title = f"turn {number} {turn.get('role', '')}".rstrip()
        partner = turn["finish_reason"] == BY_PARTNER
        size = "played by the partner" if partner else plural(turn["num_tokens"], "token")
        yield from _block(f"{title}  {size}  {seconds}", turn["action"])
        for call in turn.get("tool_calls", ()):
            arguments = json.dumps(call["arguments"], ensure_ascii=False, default=str)
            failed = f"  error: {call['error']}" if call.get("error") else ""
            title = f"  {call['name']} {arguments}{_measures(call)}{failed}"
            yield from _block(title, call["text"])
        rewards = "".join(f"  {key} {value:g}" for key, value in turn["rewards"].items())
        seconds = f"{turn.get('env_s', 0.0):.2f} s"
        yield from _block(f"environment  {seconds}{rewards}", turn["observation"])


def _measures(call: Mapping[str, Any]) -> str:
    """Duration, retries and status of a tool call, as far as they are recorded."""
    seconds, retries = call.get("seconds"), call.get("retries", 0)
    found = [
        "" if seconds is None else f"{seconds:.2f} s",
        f"retries {retries}" if retries else "",
        call.get("status", ""),
    ]
    return "".join(f"  {one}" for one in found if one)


def _block(title: str, text: str) -> list[str]:
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"
    return ["", f"--- {title}", *([cut] if cut else [])]
