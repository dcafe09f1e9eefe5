"""`gateway completion`: the script that lets a shell complete commands, options, session ids and callers."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.invocation import command, typed_path

PLACES: Final = {
    "bash": (command("completion bash"), "~/.local/share/bash-completion/completions", "gateway"),
    "zsh": (command("completion zsh"), "~/.zfunc", "_gateway"),
    "fish": (command("completion fish"), "~/.config/fish/completions", "gateway.fish"),
}
"""What prints the script, and where the shell finds it; zsh only if the folder is in its fpath."""
DESCRIPTION: Final = "Print the completion script of a shell, also for session ids and callers."

_SESSIONS: Final = "gateway sessions 2>/dev/null | grep -oE '^[0-9a-f]{8}'"
_CALLERS: Final = "gateway memory list 2>/dev/null | grep -o '+[0-9]*'"
_VALUES: Final = {"session": _SESSIONS, "caller": _CALLERS, "filter": _CALLERS}
"""For arguments by name: the shell command that prints their values."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=list(PLACES))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter  # a path that is broken into lines can't be copied
    parser.epilog = "\n\n".join(f"{shell}:\n{_instructions(shell)}" for shell in PLACES)


def _instructions(shell: str) -> str:
    printing, folder, name = PLACES[shell]
    lines = [f"mkdir -p {folder}", f"{printing} > {folder}/{name}"]
    if shell == "zsh":
        lines.append("echo 'fpath+=~/.zfunc; autoload -Uz compinit && compinit' >> ~/.zshrc")
    return "\n".join(f"  {line}" for line in lines)


def run(options: argparse.Namespace) -> int:
    import shtab

    from gateway.cli.main import COMMANDS, build_parser

    parser = build_parser(COMMANDS)
    for action in _arguments(parser):  # shtab reads the attribute `complete`
        if isinstance(action.choices, dict):
            action.choices = list(action.choices)  # shtab takes a dict for commands
        is_session = action.dest == "action" and action.choices is None and not action.option_strings
        if action.type is typed_path:
            action.complete = shtab.DIRECTORY if action.dest == "folder" else shtab.FILE  # type: ignore[attr-defined]
        elif values := _SESSIONS if is_session else _VALUES.get(action.dest):
            action.complete = _completer(shtab.cmd(values), values)  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=options.shell))
    return 0


def _completer(of_shells: Mapping[str, Any], values: str) -> dict[str, Any]:
    """For zsh a function: shtab's own runs `values` for each argument as soon as the script is loaded."""
    name = "_gateway_sessions" if values == _SESSIONS else "_gateway_callers"
    preamble = {**of_shells["preamble"], "zsh": f"{name}() {{ compadd -- $({values}) }}"}
    return {**of_shells, "zsh": name, "preamble": preamble}


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All arguments of a parser and its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from _arguments(one)
        elif action.nargs != 0:
            yield action
