"""
The steps from an empty system to calls, with their present state, for the dashboard of a running gateway.

Checks that ask a server run in the background and are remembered for a while: a page that is open asks for the state
every few seconds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.diagnostics.carriers import check_callers, check_carriers
from gateway.diagnostics.configuration import Configuration
from gateway.diagnostics.engines import probe_engine
from gateway.diagnostics.http_probe import HttpProbe
from gateway.diagnostics.public_address import compare, unset
from gateway.diagnostics.results import CheckResult, CheckState, off, ok, problem, results_of
from gateway.engines.failover import GuardedEngine

ADDRESS_SECONDS: Final = 5.0
SERVICE_SECONDS: Final = 30.0
"""How long a result counts. Carriers and engines are asked less often: they limit requests."""


@dataclass(frozen=True)
class SetupStep:
    """`results` is empty while its checks run for the first time."""

    name: str
    results: tuple[CheckResult, ...]

    @property
    def state(self) -> str:
        """checking, done, open or problem."""
        states = {one.state for one in self.results}
        if not states:
            return "checking"
        if CheckState.PROBLEM in states:
            return "problem"
        return "done" if states == {CheckState.OK} else "open"


class SetupChecklist:
    """`instances` returns the names of this process and of the nodes it knows. `close` ends running checks."""

    def __init__(
        self, configuration: Configuration, probe: HttpProbe, instances: Callable[[], Collection[str]]
    ) -> None:
        self._configuration = configuration
        self._probe = probe
        self._instances = instances
        self._checks = {
            "engine": _Remembered("engine", self._engines, SERVICE_SECONDS),
            "address": _Remembered("address", self._address, ADDRESS_SECONDS),
            "carrier": _Remembered("carrier", self._carrier, SERVICE_SECONDS),
        }

    async def steps(self, has_calls: bool, *, patience: float) -> list[SetupStep]:
        """
        The state of each step.

        Waits up to `patience` seconds for checks that run; then their last result counts. With 0, none are started.
        """
        found = await asyncio.gather(*(check.results(patience) for check in self._checks.values()))
        call = ok("first call", "done") if has_calls else off("first call", "none yet")
        engine, *phone = (SetupStep(name, tuple(one)) for name, one in zip(self._checks, found, strict=True))
        return [engine, SetupStep("call", (call,)), *phone]  # a call from the browser needs no phone number

    async def close(self) -> None:
        for check in self._checks.values():
            await check.close()

    async def _engines(self) -> list[CheckResult]:
        engines = self._configuration.engines.engines.items()
        return list(await asyncio.gather(*(_engine(name, one) for name, one in engines)))

    async def _address(self) -> list[CheckResult]:
        settings = self._configuration.settings
        if not settings.public_url:
            return [unset(settings)]
        return await compare(settings.public_url, self._instances(), self._probe)

    async def _carrier(self) -> list[CheckResult]:
        settings, agents = self._configuration.settings, self._configuration.agents
        return [*await check_carriers(settings, agents, self._probe), check_callers(settings)]


async def _engine(name: str, engine: GuardedEngine) -> CheckResult:
    """The local engine runs in this gateway, so its state is known; the others are asked."""
    health = engine.engine.health()
    if "engine_problem" in health:
        return problem(name, health["engine_problem"])
    if "engine_state" in health:
        return ok(name, "runs on this machine") if engine.engine.is_ready else off(name, "loads its models")
    return await probe_engine(name, engine)


class _Remembered:
    """A check that runs in the background, and its last results."""

    def __init__(self, name: str, check: Callable[[], Awaitable[Sequence[CheckResult]]], seconds: float) -> None:
        self._name = name
        self._check = check
        self._seconds = seconds
        self._last: Sequence[CheckResult] = ()
        self._until = 0.0
        self._task: asyncio.Task[None] | None = None

    async def results(self, patience: float) -> Sequence[CheckResult]:
        """The results; those of the last time, or none, if the check takes longer than `patience`."""
        if not patience:
            return self._last
        if (self._task is None or self._task.done()) and asyncio.get_running_loop().time() >= self._until:
            self._task = asyncio.create_task(self._run(), name="set-up check")
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=patience)
        return self._last

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        self._last = await results_of(self._name, self._check())
        self._until = asyncio.get_running_loop().time() + self._seconds
