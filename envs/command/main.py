"""``python -m envs list|info|check|new``: the command line."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from envs import CheckFailed
from envs.command.check import check
from envs.command.expected import EXPECTED_ERRORS
from envs.command.info import info
from envs.command.listing import listing, markdown
from envs.command.new import write_package

BROKEN, MISTAKE = 1, 2
"""Exit codes. BROKEN: the environment breaks the contract. MISTAKE: the command line is wrong."""


class _OneLine(argparse.ArgumentParser):
    """A parser that reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(MISTAKE, f"error: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code; without ``argv``, the process's arguments."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    chosen = _parser().parse_args(argv)
    try:
        text = _act(chosen)
    except CheckFailed as error:
        sys.stderr.write(f"{error}\n")
        return BROKEN
    except EXPECTED_ERRORS as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return MISTAKE
    sys.stdout.write(text)
    return 0


def _act(chosen: argparse.Namespace) -> str:
    match chosen.command:
        case "list":
            return markdown() if chosen.markdown else listing(fold=not chosen.all)
        case "info":
            return info(chosen.name, chosen.options)
        case "check":
            return check(chosen.name, chosen.options, chosen.tasks, chosen.rule_timeout)
        case _:
            home = write_package(chosen.name, Path.cwd())
            return f"{home}: pip install -e '{home}[test]' && pytest {home}\n"


def _parser() -> argparse.ArgumentParser:
    parser = _OneLine(prog="python -m envs", description="Environments: built in and installed.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_OneLine)
    command = commands.add_parser("list", help="every environment, a line each")
    command.add_argument("--all", action="store_true", help="every member of large families")
    command.add_argument("--markdown", action="store_true", help="the built-in ones, as a table")
    command = commands.add_parser("info", help="what one is: options, rewards, an example")
    command.add_argument("name", help="an id, or a bare name for its newest version")
    command.add_argument("options", nargs="*", metavar="option=value", help="of the example")
    command = commands.add_parser("check", help="hold one to the contract of environments")
    command.add_argument("name", help="an id, or a bare name for its newest version")
    command.add_argument("options", nargs="*", metavar="option=value", help="its options")
    command.add_argument("--tasks", type=int, default=3, help="how many tasks are played (3)")
    command.add_argument(
        "--rule-timeout",
        type=float,
        default=180.0,
        metavar="SECONDS",
        help="how long one rule may take (180)",
    )
    command = commands.add_parser("new", help="write a package with one of your own")
    command.add_argument("name", help="of the package and the environment: my-env")
    return parser
