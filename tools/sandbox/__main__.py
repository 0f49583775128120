"""``python -m tools.sandbox``: test this machine's backends, or serve a sandbox over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tools.sandbox import doctor
from tools.sandbox.remote import serve


def main() -> int:
    """Run the command; ``doctor`` returns 1 if no confining backend works, 2 for a user error."""
    parser = argparse.ArgumentParser(prog="python -m tools.sandbox")
    commands = parser.add_subparsers(dest="command", required=True)
    examining = commands.add_parser("doctor", help="which backends work on this machine")
    serving = commands.add_parser("serve", help="offer this machine's sandbox over HTTP")
    for command in (examining, serving):
        command.add_argument("--python", default=None, help="interpreter that is to run programs")
    serve.add_arguments(serving)
    arguments = parser.parse_args()
    if arguments.command == "serve":
        return serve.command(arguments)
    try:
        findings = asyncio.run(doctor.examine(arguments.python))
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{doctor.report(findings)}\n")
    return 0 if any(one.works for one in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
