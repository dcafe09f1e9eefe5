"""The result of a check."""

import enum
import logging
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import Final

_log = logging.getLogger(__name__)

TIMEOUT: Final = 5.0
"""Seconds for one request of a check."""


class CheckState(enum.StrEnum):
    OK = "ok"
    OFF = "off"
    """Optional and not configured."""
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class CheckResult:
    check: str
    state: CheckState
    found: str
    todo: str = ""


def ok(check: str, found: str) -> CheckResult:
    return CheckResult(check, CheckState.OK, found)


def off(check: str, found: str, todo: str = "") -> CheckResult:
    return CheckResult(check, CheckState.OFF, found, todo)


def warning(check: str, found: str, todo: str) -> CheckResult:
    return CheckResult(check, CheckState.WARNING, found, todo)


def problem(check: str, found: str, todo: str = "") -> CheckResult:
    return CheckResult(check, CheckState.PROBLEM, found, todo)


async def results_of(check: str, results: Awaitable[Iterable[CheckResult]]) -> tuple[CheckResult, ...]:
    """The results, or one problem if the check itself fails: what a server answers may be anything."""
    try:
        return tuple(await results)
    except Exception as error:
        _log.exception("set-up check failed", extra={"check": check})
        todo = "check the addresses in the settings; something else may answer there"
        return (problem(check, f"could not be checked ({type(error).__name__})", todo),)
