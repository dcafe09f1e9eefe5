"""
The recorded call's memory and tools, which replace the store and the user's code.

Both are inputs of the call: what a store found and what a function returned cannot be computed again from a recording.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gateway.agents import Agent
from gateway.engines.deepgram_codec import first_think
from gateway.engines.interface import AgentFunction, FunctionCall
from gateway.memory.access import MemoryAccess
from gateway.memory.facts import Fact
from gateway.memory.pinned_topics import PinnedTopic
from gateway.memory.recall import Recall
from gateway.memory.summary_parser import PastCall
from gateway.replay.recording import Fields, RecordedMemory, RecordedNote, Recording
from gateway.simulate.frames import JsonFrame
from gateway.tools.builtin import END_CALL, TRANSFER_CALL, Builtin
from gateway.tools.executor import CallTools, ToolLoader
from gateway.tools.schema import GivenSchema

_OWN: Final = (END_CALL.definition.name, TRANSFER_CALL)
"""Functions that act on the call itself: they run again."""
_AFTER_ACTION: Final = 0.01
"""Least seconds between an action of a function and its result: a recording may have the same time for both."""
_LONGEST_FUNCTION: Final = 86_400.0

_CallName = tuple[str, str]
"""The id of a function call, and the function."""
_Item = TypeVar("_Item", PastCall, Fact, PinnedTopic)


class RecordedRecall(Recall):
    """
    Returns what the recorded call found. What arrived late in that call waits for `come_late`.

    For a caller identified by a function during the call, everything arrived late.
    """

    def __init__(self, recording: Recording, *parts: Any) -> None:
        super().__init__(*parts)
        self._in_time = defaultdict(RecordedMemory, {recording.header.identity: recording.memory})
        self._late = defaultdict(RecordedMemory, recording.late_memory)
        self._is_late: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._caller = recording.header.identity

    def come_late(self) -> None:
        self._is_late[self._caller].set()

    async def own_calls(self, agent: str, caller: str) -> list[PastCall]:
        self._caller = caller
        return list(self._in_time[caller].calls)

    async def remote_calls(self, agent: str, caller: str) -> list[PastCall]:
        in_time, late = self._in_time[caller].calls, self._late[caller].calls
        if {call.session_id for call in late} - {call.session_id for call in in_time}:  # perhaps in place of others
            await self._is_late[caller].wait()
            return list(late)
        return list(in_time)

    async def known_facts(self, agent: str, caller: str) -> list[Fact]:
        return await self._late_ones(caller, lambda memory: memory.facts)

    async def pinned_topics(self, agent: str, caller: str) -> list[PinnedTopic]:
        return await self._late_ones(caller, lambda memory: memory.pins)

    async def _late_ones(self, caller: str, part: Callable[[RecordedMemory], Sequence[_Item]]) -> list[_Item]:
        in_time, late = part(self._in_time[caller]), part(self._late[caller])
        if len(late) > len(in_time):
            await self._is_late[caller].wait()
            return list(late)
        return list(in_time)


@dataclass(frozen=True)
class _Result:
    """What a function returned, and after how many seconds; None if it was never answered."""

    content: str | None
    seconds: float


@dataclass(frozen=True)
class _RecordedSchema(GivenSchema):
    """Takes any arguments: a refusal of wrong ones is part of the recorded results."""

    def parse(self, text: str) -> dict[str, Any]:
        return {}


class RecordedToolLoader(ToolLoader):
    """The functions that the recorded agent had. They return what they returned then, after the same time."""

    def __init__(self, recording: Recording, *parts: Any) -> None:
        super().__init__(*parts)
        self._recording = recording
        self._results: dict[_CallName, deque[_Result]] = defaultdict(deque)
        for name, result in _results(recording):  # call ids may repeat in another session
            self._results[name].append(result)

    async def _load(self, agent: Agent, access: MemoryAccess) -> CallTools:
        tools = tuple(
            Builtin(_RecordedSchema(definition), self._answer, _LONGEST_FUNCTION)
            for definition in _functions(self._recording)
            if definition.name not in _OWN
        )
        return CallTools(
            builtins=tools,
            personas=self._recording.header.personas,
            timeouts=self.timeouts,
            disabled=agent.disabled_tools,
        )

    async def _answer(self, call: FunctionCall, arguments: dict[str, Any]) -> object:
        results = self._results[call.id, call.name]
        result = results.popleft() if results else _Result(None, 0.0)
        await asyncio.sleep(result.seconds)
        if result.content is None:
            await asyncio.Event().wait()  # it was cancelled, or the call was over
        return result.content


def _messages(recording: Recording) -> Iterator[tuple[float, Fields]]:
    for frame in recording.frames:
        if frame.peer == "engine" and isinstance(frame.content, JsonFrame):
            yield frame.at, frame.content.fields


def _functions(recording: Recording) -> Iterator[AgentFunction]:
    """The definitions in the first settings."""
    for _, message in _messages(recording):
        if message.get("type") == "Settings":
            for one in first_think(message).get("functions", ()):
                speculative = one.get("defer_until_eot") is False
                yield AgentFunction(one["name"], one["description"], one["parameters"], speculative=speculative)
            return


def _results(recording: Recording) -> Iterator[tuple[_CallName, _Result]]:
    asked: dict[str, float] = {}
    actions = [step.at for step in recording.steps if isinstance(step, RecordedNote) and step.name == "action"]
    for at, message in _messages(recording):
        match message:
            case {"type": "FunctionCallRequest", "functions": [*functions]}:
                asked |= {one["id"]: at for one in functions if "id" in one}
            case {"type": "FunctionCallResponse", "id": str(call_id), "name": str(name), "content": str(content)}:
                began = asked.get(call_id, at)
                acted = [moment for moment in actions if began <= moment <= at]
                yield (call_id, name), _Result(content, max(at, *(one + _AFTER_ACTION for one in acted), began) - began)
