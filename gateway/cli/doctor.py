"""`gateway doctor`: checks everything that a call needs and says what to fix."""

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from gateway import logs, settings
from gateway.app import Config
from gateway.cli import terminal
from gateway.cluster.open import check_redis_url
from gateway.diagnostics import report
from gateway.diagnostics.report import CheckGroup
from gateway.diagnostics.results import CheckState
from gateway.errors import InvalidSettings, SettingsError
from gateway.history import traces
from gateway.history.stores import check_database_url
from gateway.llm import agent_llm
from gateway.settings import Secret, Settings, existing_token
from gateway.telephony.phone_numbers import AllowList, DialingRules
from gateway.telephony.signatures import TelnyxVerifier
from gateway.text.figures import count

DESCRIPTION: Final = (
    "Check settings, this machine, carriers, public address, engines, every agent, language models and stores. Each "
    "agent's language model gets one short request. Exit code 0: nothing is wrong, 1: problems, 2: settings that "
    "gateway serve refuses. Changes nothing."
)
_STYLES: Final = {
    CheckState.OK: "green",
    CheckState.OFF: "dim",
    CheckState.WARNING: "yellow",
    CheckState.PROBLEM: "bold red",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    logs.keep_quiet()
    try:
        loaded = settings.load(os.environ, Path.cwd())
    except SettingsError as error:
        mistakes = list(error.mistakes) if isinstance(error, InvalidSettings) else [str(error)]
        groups, refused = [report.refused(mistakes)], True
    else:
        with terminal.progress("Checking settings") as line:
            config, mistakes = _configuration(loaded)
            refused = _refuses_folders(loaded)
            groups = asyncio.run(_examine(loaded, config, mistakes, line))
    rows = [{"group": group.name.lower(), **asdict(one)} for group in groups for one in group.results]
    terminal.output(options.json, rows, _text(groups))
    states = {one.state for group in groups for one in group.results}
    return 2 if mistakes or refused else 1 if CheckState.PROBLEM in states else 0


def _refuses_folders(loaded: Settings) -> bool:
    """Whether `gateway serve` can't use one of its folders. The check of this machine says why."""
    try:
        for name, folder in settings.folders(loaded).items():
            settings.use_folder(name, folder, how=settings.check_private)
    except SettingsError:
        return True
    return False


def _configuration(loaded: Settings) -> tuple[Config | None, list[str]]:
    """
    The configuration, or everything that `gateway serve` refuses, in its words.

    Serve stops at the first mistake. So that all are found, parts are tried alone: settings, and one agent after the
    other.
    """
    token = Secret("")
    try:
        existing_token(loaded)
        return Config.from_settings(loaded, token), []
    except SettingsError as error:
        mistakes = [str(error)]
    empty: frozenset[str] = frozenset()
    others = {
        "allowed_callers": empty,
        "outbound_allowed": empty,
        "telnyx_public_key": "",
        "redis_url": None,
        "database_url": None,
    }
    of_one = ({}, *({name: table} for name, table in loaded.agents.items()))
    alone: list[Callable[[], object]] = [
        lambda: check_redis_url(loaded),
        lambda: check_database_url(loaded.database_url),
        lambda: traces.check(loaded),
        lambda: AllowList(loaded.allowed_callers),
        lambda: DialingRules(loaded.outbound_allowed),
        lambda: loaded.telnyx_public_key and TelnyxVerifier(loaded.telnyx_public_key),
        *(partial(Config.from_settings, loaded.model_copy(update=others | {"agents": one}), token) for one in of_one),
    ]
    for check in alone:
        try:
            check()
        except SettingsError as error:
            mistakes.append(str(error))
    return None, list(dict.fromkeys(mistakes))


async def _examine(
    loaded: Settings, config: Config | None, mistakes: Sequence[str], line: terminal.ProgressLine
) -> list[CheckGroup]:
    def on_progress(running: Sequence[str]) -> None:
        line.step(f"Checking {', '.join(running).lower()}")

    try:
        return await report.examine(loaded, config, mistakes, on_progress=on_progress)
    finally:
        if config is not None:
            await agent_llm.close(config.agent_llms)


def _text(groups: Iterable[CheckGroup]) -> Iterator[RenderableType]:
    results = [one for group in groups for one in group.results]
    width = max(len(one.check) for one in results)
    for group in groups:
        rows: list[Sequence[terminal.Cell]] = []
        for one in group.results:
            rows.append((Text(f"{one.state:<7}", _STYLES[one.state]), Text(one.check.ljust(width)), one.found))
            if one.todo:
                is_optional = one.state is CheckState.OFF
                rows.append(
                    ("", "", Text(f"{'optional' if is_optional else 'to do'}: {one.todo}", "dim" * is_optional))
                )
        yield Text(group.name, "bold")
        yield terminal.table(rows, indent=2)
    counts = Counter(one.state for one in results)
    yield ""
    yield ", ".join(_number(counts[state], state) for state in CheckState if counts[state])


def _number(number: int, state: CheckState) -> str:
    """`ok` and `off` are no nouns."""
    return count(number, state) if state in (CheckState.WARNING, CheckState.PROBLEM) else f"{number} {state}"
