"""``python -m tools.sandbox doctor``: which backends work on this machine."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tools.sandbox import doctor


def main() -> int:
    """The command line; 1 where no confining backend works."""
    parser = argparse.ArgumentParser(prog="python -m tools.sandbox")
    parser.add_argument("command", choices=["doctor"])
    parser.add_argument("--python", default=None, help="interpreter that is to run programs")
    arguments = parser.parse_args()
    findings = asyncio.run(doctor.examine(arguments.python))
    sys.stdout.write(f"{doctor.report(findings)}\n")
    return 0 if any(one.works for one in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
