"""The shell of a container: one process per command, which inherits the state of the last one.

Each command runs in a new bash. When bash exits, it saves its folder, variables, functions, aliases
and options to a file, which the next bash loads. A command that sets its own EXIT trap, replaces
the shell by ``exec`` or is killed saves no state.
"""

from __future__ import annotations

import codecs
import re
import shlex

FOLDER = "/.turnwise"
"""Folder in the container with the shell's state."""
MAX_ARGUMENT = 100_000
"""Maximum number of bytes of a command that is passed as an argument; the kernel's limit is 128
KiB."""
COMMAND_FILE = f"{FOLDER}/command"
"""File with a command that is too long for an argument."""
_SHELL_OWN = (
    "BASH_EXECUTION_STRING BASH_COMMAND RANDOM SRANDOM SECONDS LINENO EPOCHSECONDS EPOCHREALTIME"
)
"""Variables that bash sets itself and that a saved state must not override."""


def script(command: str | None, marker: str) -> str:
    """The script that loads the state, runs a command and saves the state.

    Args:
        command: the command, or None to run the file ``COMMAND_FILE``.
        marker: a word that appears in no output. A line with it and the exit code ends the output.
    """
    given = f". {COMMAND_FILE}" if command is None else f"eval {shlex.quote(command)}"
    state = f"{FOLDER}/state"
    # The positional parameters hold the exit code: variables of the trap would be saved as well.
    save = (
        f'{{ set -- "$?"; {{ shopt -p; set +o; }} >{state}.options; set +eux; '
        f"trap - ERR DEBUG RETURN; unset {_SHELL_OWN}; "
        f'{{ printf "cd -- %q\\n" "$PWD"; umask -p; declare -p; declare -f; alias -p; '
        f"cat {state}.options; }} >{state}.next && mv -f {state}.next {state}; }} 2>/dev/null; "
        f'printf "\\n{marker} %s\\n" "$1"'
    )
    return "\n".join(
        [
            "exec 2>&1 </dev/null",
            f'printf "%s" "$$" >{FOLDER}/pid',
            f"trap {shlex.quote(save)} EXIT",
            "shopt -s expand_aliases",
            f"{{ [ -r {state} ] && . {state}; }} 2>/dev/null",
            "true",
            given,
        ]
    )


STOP = (
    f'read -r pid <{FOLDER}/pid && kill -INT -- "-$pid"; '
    f'for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$pid" 2>/dev/null || exit 0; sleep 0.1; done; '
    f'kill -KILL -- "-$pid"; exit 0'
)
"""Script that interrupts the running command and, after a second, kills it."""


class CommandOutput:
    """The output of a command, with at most ``max_chars`` characters, from both ends.

    Args:
        marker: the word that :func:`script` got.
        max_chars: maximum number of characters of the text.
    """

    def __init__(self, marker: str, max_chars: int) -> None:
        self._pattern = re.compile(rb"\n" + marker.encode() + rb" (\d+)\n")
        self._longest = len(marker) + 8
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._half = max_chars // 2
        self._head, self._tail, self._count = "", "", 0
        self._pending = b""
        self.exit_code: int | None = None
        """The command's exit code, or None if the shell did not report one."""

    def feed(self, data: bytes) -> bool:
        """Add a part of the output. Returns True when the shell has reported its end."""
        data = self._pending + data
        found = self._pattern.search(data)
        if found is not None:
            self.exit_code = int(found[1])
            self._pending = b""
            self._add(data[: found.start()])
            return True
        # The marker may continue in the next part.
        cut = data.rfind(b"\n", max(0, len(data) - self._longest))
        self._pending = data[cut:] if cut >= 0 else b""
        self._add(data[:cut] if cut >= 0 else data)
        return False

    def result(self) -> tuple[str, int]:
        """The text, and the number of characters that it leaves out."""
        self._add(self._pending, final=True)
        self._pending = b""
        left_out = self._count - len(self._head) - len(self._tail)
        if left_out <= 0:
            return self._head + self._tail, 0
        return f"{self._head}\n[{left_out} characters left out]\n{self._tail}", left_out

    def _add(self, data: bytes, final: bool = False) -> None:
        text = self._decoder.decode(data, final)
        self._count += len(text)
        room = self._half - len(self._head)
        self._head += text[:room] if room > 0 else ""
        rest = text[room:] if room > 0 else text
        self._tail = (self._tail + rest)[-self._half :]
