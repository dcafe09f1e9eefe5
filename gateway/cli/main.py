"""`gateway COMMAND`: finds the command, runs it, and prints a user's mistake as one line."""

import argparse
import difflib
import errno
import importlib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, Final, NoReturn

from gateway import invocation
from gateway.errors import GatewayError

COMMANDS: Final[Mapping[str, str]] = {
    "serve": "answer calls",
    "demo": "two calls by one caller; no key needed",
    "init": "write a configuration of your own into a folder",
    "call": "phone the agent from this terminal",
    "doctor": "check the set-up and say what to fix",
    "setup": "point a phone number or a hosted agent at this gateway",
    "import": "import past calls of hosted agents",
    "replay": "play recorded calls and compare the results",
    "recordings": "make a key for recordings, or encrypt them with a new one",
    "tail": "follow calls as they happen",
    "sessions": "list and show calls; retry post-call processing",
    "latency": "show how long answers took",
    "login-link": "print a new login link for the dashboard",
    "token": "create, list and revoke API tokens",
    "memory": "show, correct and erase what is known about callers",
    "audit": "show who did what",
    "webhook": "make a webhook secret, send a test, list undelivered messages",
    "bench": "measure how many calls this machine can carry",
    "completion": "print the completion script of a shell",
}
"""
Each command is a module of this package with `DESCRIPTION`, `add_arguments(parser)` and `run(options)`.

Only the chosen one is imported: all of them together take a second.
"""

MODULES: Final = {"import": "import_calls", "login-link": "login_link"}
"""Where the command's name can't be the module's."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 success, 1 a difference or a fault was found, 2 a user's mistake."""
    _replace_closed_streams()
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if given[0] == "help":
        given = [*given[1:], "--help"]

    def run() -> int:
        options = build_parser([name for name in given if name in COMMANDS][:1]).parse_args(given)
        return int(options.run(options))

    return run_command(run)  # Ctrl-C may come during the command's import, too


def run_command(run: Callable[[], int]) -> int:
    """Run a command. Its mistakes are one line on stderr. Returns the exit code."""
    try:
        return run()
    except GatewayError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"gateway: {error.strerror}; free up disk space", file=sys.stderr)
        return 2


def _replace_closed_streams() -> None:
    """`>&-` leaves None in their place, and their numbers for the next files that are opened."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))


class _HelpFormatter(argparse.HelpFormatter):
    def format_help(self) -> str:
        """argparse forgets the indent of commands, and breaks the line after the longest names."""
        self._action_max_length += self._indent_increment
        return super().format_help()


class _Parser(argparse.ArgumentParser):
    """Prints a mistake as one line, without the usage, and with what was probably meant."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": _HelpFormatter, **options})

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        if args[0].startswith("-") and args[0] not in self._option_string_actions:
            self.error(f"unrecognized arguments: {args[0]}{_meant(args[0], self._option_string_actions)}")
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = options.parser
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(unknown[0], _options(parser))}")
        return options

    def error(self, message: str) -> NoReturn:
        if wrong := _INVALID_CHOICE.fullmatch(message):
            name, word, choices = wrong.groups()
            known = re.findall(r"[^', ]+", choices)
            is_option = name.startswith("-")
            meant = _meant(word, known if is_option else [*known, *self._option_string_actions])
            message = f"{f'{name} is {word!r}' if is_option else f'{word!r} is unknown'}{meant or _use(known)}"
        elif wrong := _INVALID_INT.fullmatch(message):
            message = f"{wrong[1]} is {wrong[2]}; use a whole number"
        elif missing := _REQUIRED.fullmatch(message):
            first = missing[1].partition(",")[0]
            known = [str(one) for action in self._actions if _name(action) == first for one in action.choices or ()]
            message = f"{missing[1]} {'are' if ',' in missing[1] else 'is'} missing{_use(known)}"
        see = " See" if message.endswith("?") else "; see"
        arguments = f"{self.prog} --help".partition(" ")[2]
        self.exit(2, f"{self.prog}: {message}{see} {invocation.command(arguments)}\n")


_INVALID_CHOICE: Final = re.compile(r"argument (.*): invalid choice: '(.*)' \(choose from (.*)\)")
_INVALID_INT: Final = re.compile(r"argument (.*): invalid int value: (.*)")
_REQUIRED: Final = re.compile(r"the following arguments are required: (.*)")
_MOST_CHOICES: Final = 8
"""More are not listed in a message."""


def _name(action: argparse.Action) -> str:
    """As argparse's messages name it."""
    return "/".join(action.option_strings) or str(action.metavar or action.dest)


def _use(known: Sequence[str]) -> str:
    listed = " or ".join(filter(None, (", ".join(known[:-1]), *known[-1:])))
    return f"; use {listed}" if 0 < len(known) <= _MOST_CHOICES else ""


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The names of all options of a parser and its commands."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _options(command)


def _meant(word: str, known: Iterable[str]) -> str:
    """Ask for the known word that begins like this one, or is most like it; "" if none is."""
    words = list(known)
    similar = difflib.get_close_matches(word, words, n=1, cutoff=0.7)
    longer = [known for known in words if len(word) > 3 and known.startswith(f"{word}-")]
    return f"; did you mean {[*similar, *longer][0]}?" if similar or longer else ""


def build_parser(chosen: Collection[str]) -> argparse.ArgumentParser:
    """A parser that knows all commands, and the arguments of the `chosen` ones."""
    parser = _Parser(prog="gateway", description="A self-hosted voice gateway that remembers its callers.")
    parser.add_argument("--version", action="version", version=f"voice-gateway {metadata.version('voice-gateway')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name in chosen:
            module = importlib.import_module(f"gateway.cli.{MODULES.get(name, name)}")
            command.description = module.DESCRIPTION
            module.add_arguments(command)
            command.set_defaults(run=module.run, parser=command)
    return parser
