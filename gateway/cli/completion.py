"""`gateway completion`: the script that lets a shell complete commands and options."""

import argparse
from typing import Final

SHELLS: Final = ("bash", "zsh")
DESCRIPTION = (
    "Print the completion script of a shell. For bash: gateway completion bash > "
    "~/.local/share/bash-completion/completions/gateway"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


def run(options: argparse.Namespace) -> int:
    import shtab

    from gateway.cli.main import COMMANDS, build_parser

    print(shtab.complete(build_parser(COMMANDS), shell=options.shell))
    return 0
