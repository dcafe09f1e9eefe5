import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gateway.diagnostics.checklist import SERVICE_SECONDS, SetupChecklist
from gateway.diagnostics.http_probe import HttpProbe
from gateway.errors import EngineRefused
from gateway.settings import Settings

pytestmark = pytest.mark.virtual_time


class Engine:
    """An engine whose probe takes this many seconds."""

    def __init__(self, seconds: float = 0.0, problem: str = "") -> None:
        self.seconds, self.problem, self.asked = seconds, problem, 0
        self.is_ready = False

    def health(self) -> dict[str, str]:
        return {"engine": "cloud"}

    async def probe(self) -> str:
        self.asked += 1
        await asyncio.sleep(self.seconds)
        if self.problem:
            raise EngineRefused(self.problem)
        return "answers"


class BrokenEngine(Engine):
    async def probe(self) -> str:
        self.asked += 1
        raise ZeroDivisionError


class LocalEngine(Engine):
    def health(self) -> dict[str, str]:
        return {"engine": "local", "engine_state": "loading"}


def a_checklist(engine: Any, **settings: Any) -> SetupChecklist:
    engines = SimpleNamespace(engines={"cloud": SimpleNamespace(engine=engine)})
    configuration: Any = SimpleNamespace(settings=Settings(**settings), agents=[], engines=engines)
    return SetupChecklist(configuration, HttpProbe(httpx.AsyncClient()), lambda: {"me"})


async def states(checklist: SetupChecklist, *, has_calls: bool = False, patience: float = 1.0) -> dict[str, str]:
    return {step.name: step.state for step in await checklist.steps(has_calls, patience=patience)}


async def test_keyless_system_needs_only_a_call() -> None:
    checklist = a_checklist(Engine())
    assert await states(checklist) == {"engine": "done", "call": "open", "address": "open", "carrier": "open"}
    assert (await states(checklist, has_calls=True))["call"] == "done"


async def test_slow_check_holds_up_no_page() -> None:
    engine = Engine(seconds=3.0)
    checklist = a_checklist(engine)
    assert (await states(checklist, patience=0))["engine"] == "checking"
    assert engine.asked == 0
    assert (await states(checklist, patience=1.0))["engine"] == "checking"
    assert (await states(checklist, patience=5.0))["engine"] == "done"
    assert engine.asked == 1
    await checklist.close()


async def test_results_are_remembered_for_a_while() -> None:
    engine = Engine(problem="rejects the key")
    checklist = a_checklist(engine)
    assert (await states(checklist))["engine"] == "problem"
    engine.problem = ""
    assert (await states(checklist))["engine"] == "problem"
    await asyncio.sleep(SERVICE_SECONDS)
    assert (await states(checklist))["engine"] == "done"
    assert engine.asked == 2


async def test_check_that_fails_is_a_problem_and_repeated() -> None:
    engine = BrokenEngine()
    checklist = a_checklist(engine)
    assert (await states(checklist))["engine"] == "problem"
    await asyncio.sleep(SERVICE_SECONDS)
    assert (await states(checklist))["engine"] == "problem"
    assert engine.asked == 2


async def test_local_engine_is_not_asked() -> None:
    engine = LocalEngine()
    checklist = a_checklist(engine)
    assert (await states(checklist))["engine"] == "open"
    engine.is_ready = True
    await asyncio.sleep(SERVICE_SECONDS)
    assert (await states(checklist))["engine"] == "done"
    assert engine.asked == 0
