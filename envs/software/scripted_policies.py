"""Scripted policies: one that mends every repository, and one that often mends it wrongly."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

import numpy as np

from envs.software.faults import faults
from envs.software.programs import Program, parse
from tools.calls import written

DONE = "Done."
WRONG = 0.5
"""Probability with which the careless policy writes another wrong line."""
_NUMBERED = re.compile(r"^\D*?(\d+)\t(.*)$", re.MULTILINE)
_RESULT_END = re.compile(r"\s*</(?:result|tool_response)>\s*$")


class GoldPolicy:
    """Reads one module after the other until a line is wrong, mends the line, and says so.

    The words of the task determine every line.

    Args:
        tools: names of the tools that the agent can call.
        num_files: number of modules.
        shown: whether the first observation shows ``main.py``.
        tagged: whether calls stand between tags; otherwise they are JSON.
    """

    def __init__(
        self, tools: Collection[str], num_files: int, *, shown: bool, tagged: bool
    ) -> None:
        self._tools = tools
        self._num_files = num_files
        self._shown = shown
        self._tagged = tagged
        self._program: Program | None = None
        self._right: dict[str, str] = {}
        self._left: list[str] = []

    def __call__(self, observation: str) -> str:
        """The next action.

        Raises:
            ValueError: the first observation describes no program.
        """
        if self._program is None:
            self._program = parse(observation)
            self._right = self._program.files(self._num_files)
            self._left = list(self._right)
            if not self._shown:
                return self._read(self._left[0])
        if not self._left:
            return DONE
        path = self._left.pop(0)
        shown = dict(_NUMBERED.findall(_RESULT_END.sub("", observation)))
        for number, line in enumerate(self._right[path].splitlines(), 1):
            if (found := shown.get(str(number), "")).rstrip() != line:
                self._left = []
                return self._replace(path, number, found.rstrip(), self._mended(path, number, line))
        return self._read(self._left[0]) if self._left else DONE

    def _mended(self, path: str, number: int, line: str) -> str:
        """The line to write in place of the wrong one."""
        return line

    def _read(self, path: str) -> str:
        if "read" in self._tools:
            return self._call("read", {"path": path}, path)
        command = f"cat -n {path}"
        return self._call("bash", {"command": command}, command)

    def _replace(self, path: str, number: int, wrong: str, right: str) -> str:
        if "fix" in self._tools:
            change = f"{number} {right.strip()}"
            return self._call("fix", {"change": change}, change)
        if "edit" in self._tools:
            arguments = {"path": path, "old_str": wrong, "new_str": right}
            return self._call("edit", arguments, json.dumps(arguments))
        code = f"lines = open({path!r}).read().split('\\n'); lines[{number - 1}] = {right!r}"
        command = f"python - <<'END'\n{code}\nopen({path!r}, 'w').write('\\n'.join(lines))\nEND"
        return self._call("bash", {"command": command}, command)

    def _call(self, tool: str, arguments: dict[str, str], inside: str) -> str:
        if self._tagged:
            return f"<{tool}> {inside} </{tool}>"
        return written(tool, arguments)


class CarelessPolicy(GoldPolicy):
    """Finds the wrong line, but often writes another wrong line in its place.

    Args:
        rng: draws the errors.
    """

    def __init__(
        self,
        tools: Collection[str],
        num_files: int,
        rng: np.random.Generator,
        *,
        shown: bool,
        tagged: bool,
    ) -> None:
        super().__init__(tools, num_files, shown=shown, tagged=tagged)
        self._rng = rng

    def _mended(self, path: str, number: int, line: str) -> str:
        known = [one.wrong for one in faults(self._right) if (one.path, one.line) == (path, number)]
        if not known or self._rng.random() >= WRONG:
            return line
        return known[int(self._rng.integers(len(known)))]
