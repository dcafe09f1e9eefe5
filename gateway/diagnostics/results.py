"""The result of a check."""

import enum
from dataclasses import dataclass
from typing import Final

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
