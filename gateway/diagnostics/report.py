"""All checks of a set-up, run concurrently. Every group ends by its deadline. No result contains a key."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import httpx

from gateway.diagnostics.agents import check_agents
from gateway.diagnostics.carriers import check_telephony
from gateway.diagnostics.configuration import Configuration
from gateway.diagnostics.engines import check_engines
from gateway.diagnostics.hosted_agents import check_elevenlabs
from gateway.diagnostics.http_probe import HttpProbe
from gateway.diagnostics.language_models import check_language_models
from gateway.diagnostics.machine import check_machine
from gateway.diagnostics.public_address import check_public_address
from gateway.diagnostics.remote_tools import check_remote_tools
from gateway.diagnostics.results import TIMEOUT, CheckResult, ok, problem, results_of
from gateway.diagnostics.stores import check_stores
from gateway.settings import Settings

DEADLINE: Final = 60.0
"""Seconds for a group of checks. On a busy machine the models of the local engine take a while to load."""
MACHINE: Final = "This machine"

_OF_SETTINGS: Final[Mapping[str, Callable[[Settings, HttpProbe], Awaitable[Iterable[CheckResult]]]]] = {
    MACHINE: check_machine,
    "Telephony": check_telephony,
    "Public address": check_public_address,
    "Stores": check_stores,
}
_OF_AGENTS: Final[Mapping[str, Callable[[Configuration, HttpProbe], Awaitable[Iterable[CheckResult]]]]] = {
    "Voice engines": check_engines,
    "Agents": check_agents,
    "Tools": check_remote_tools,
    "Language models": check_language_models,
    "ElevenLabs": check_elevenlabs,
}


@dataclass(frozen=True)
class CheckGroup:
    name: str
    results: tuple[CheckResult, ...]


def probe_client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=TIMEOUT, follow_redirects=False)


async def examine(
    settings: Settings,
    configuration: Configuration | None,
    mistakes: Sequence[str],
    *,
    on_progress: Callable[[Sequence[str]], None] = lambda running: None,
    deadline: float = DEADLINE,
) -> list[CheckGroup]:
    """
    Run all checks. Without a configuration, because of mistakes in the settings, those of agents are left out.

    `on_progress` gets the names of the groups that are still running.
    """
    running: list[str] = []

    async def run(name: str, check: Awaitable[Iterable[CheckResult]]) -> CheckGroup:
        running.append(name)
        try:
            async with asyncio.timeout(deadline):
                return CheckGroup(name, await results_of(name.lower(), check))
        except TimeoutError:
            return CheckGroup(name, (problem(name.lower(), f"no result within {deadline:.0f} s", "run it again"),))
        finally:
            running.remove(name)
            on_progress(running)

    async with probe_client() as http:
        probe = HttpProbe(http)
        checks = [run(name, check(settings, probe)) for name, check in _OF_SETTINGS.items()]
        if configuration is not None:
            checks += [run(name, check(configuration, probe)) for name, check in _OF_AGENTS.items()]
        machine, *groups = await asyncio.gather(*checks)
    machine = CheckGroup(machine.name, (*machine.results, probe.clock()))
    return [group for group in (refused(mistakes), machine, *groups) if group.results]


def refused(mistakes: Iterable[str]) -> CheckGroup:
    """What `gateway serve` would refuse, in its words."""
    found = [problem("settings", mistake) for mistake in mistakes]
    return CheckGroup("Settings", tuple(found or [ok("settings", "complete; the gateway can start")]))
