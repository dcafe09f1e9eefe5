"""`gateway COMMAND`: finds the command, runs it, and turns a person's mistake into one line."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from gateway.cli import bench, call, demo, doctor, latency, memory, replay, serve, sessions, setup, tail
from gateway.errors import GatewayError

Command = Callable[[argparse.Namespace], int]

COMMANDS: Final = (serve, demo, call, doctor, setup, replay, tail, sessions, latency, memory, bench)
"""Modules with a `register(subparsers)` that adds one command and its `run`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 good, 1 the command found a difference or a fault, 2 a person's mistake."""
    options = _parser().parse_args(arguments)
    run: Command = options.run
    try:
        return run(options)
    except GatewayError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read our output has seen enough
        return 0


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="gateway", description="A self-hosted voice gateway that remembers its callers.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.register(commands)
    return parser
