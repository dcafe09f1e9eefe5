"""Calls that wait for another stream."""

import asyncio
from typing import Any

import pytest

from gateway.agents import Agent
from gateway.calls import stream_recovery
from gateway.calls.background_tasks import BackgroundTasks
from gateway.calls.call_table import CallTable
from gateway.calls.pending_call import PendingCall
from gateway.calls.stream_recovery import StreamRecovery
from gateway.session import CallKey

KEY = ("telnyx", "v3:1")


class Desk:
    """Remembers what it is asked to do."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []

    def carrier_ended(self, key: CallKey) -> None:
        self.told.append(("ended", key[1]))

    def drop(self, key: CallKey) -> None:
        self.told.append(("drop", key[1]))

    def stream_failed(self, key: CallKey, token: str = "") -> None:
        self.told.append(("stream failed", key[1], token))


class Carrier:
    """Has the call, or not."""

    asks_to_resume = stop_ends_call = False

    def __init__(self, alive: bool | None) -> None:
        self.alive = alive

    async def is_alive(self, call_id: str) -> bool | None:
        return self.alive


class OtherNodes:
    """One of them has the call."""

    async def is_ours_now(self, key: CallKey) -> bool:
        return False


async def restarted(monkeypatch: pytest.MonkeyPatch, *, alive: bool) -> tuple[list[tuple[str, ...]], PendingCall]:
    monkeypatch.setattr(stream_recovery, "HANGUP_GRACE", 0.0)
    manager, background_tasks = Desk(), BackgroundTasks()
    pending = PendingCall(KEY, "", "", "", Agent("maya", "You are Maya."), "wss://voice.example.com/telnyx/media", 0.0)
    nobody: Any = None
    StreamRecovery(
        manager, CallTable(), {"telnyx": Carrier(alive)}, nobody, nobody, background_tasks, OtherNodes()
    ).restart_stream(pending)
    await asyncio.wait(background_tasks.under_way)
    return manager.told, pending


async def test_lost_stream_of_another_nodes_call_is_told_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call went there with this very stream, and its node may be dead: else the caller would hear nobody."""
    told, pending = await restarted(monkeypatch, alive=True)
    assert told == [("drop", "v3:1"), ("stream failed", "v3:1", pending.token)]


async def test_caller_who_has_gone_gets_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    told, _ = await restarted(monkeypatch, alive=False)
    assert told == [("ended", "v3:1")]
