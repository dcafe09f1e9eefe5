"""
Answers of an agent's own language model in calls that another platform carries.

The platform has the call: its tools (hang up, transfer) are called by the answer and run by the platform. Our tools run
within the answer. Whose memory it is depends on the one-call token alone; without one, there is no memory.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from gateway.agents import Agent, AgentDirectory
from gateway.calls.hosted_calls import HostedCalls, PreparedCall
from gateway.engines.interface import FunctionCall
from gateway.llm.chat import ChatRequest, ToolCallDelta
from gateway.llm.completions_codec import write_json
from gateway.llm.responder import Responder
from gateway.llm.responder_factory import ResponderFactory
from gateway.memory.access import MemoryAccess
from gateway.session import Speaker, TrustLevel, Turn, VoiceSession
from gateway.tools.builtin import END_CALL, TRANSFER_CALL
from gateway.tools.executor import CallTools, ToolExecutor, ToolLoader

MOST_CALLS: Final = 1000
"""Calls with a responder here; the least recently used one is closed first."""
MOST_RESULTS: Final = 100
"""Results of a call's tools that are kept for a question that is asked again."""

_HANG_UP: Final = END_CALL.definition.name
"""The platform's tool has the same name."""
_NOBODY: Final = PreparedCall("", "", "", TrustLevel.NONE)
_SPEAKERS: Final = {"user": Speaker.CALLER, "assistant": Speaker.AGENT}

_log = logging.getLogger(__name__)


class HostedLlm:
    """Finds the responder for each request of a platform."""

    def __init__(
        self, agents: AgentDirectory, responders: ResponderFactory, tools: ToolLoader, calls: HostedCalls
    ) -> None:
        self._agents = agents
        self._responders = responders
        self._tools = tools
        self._calls = calls
        self._open: OrderedDict[str, Responder] = OrderedDict()

    async def responder(self, agent_name: str, token: str, conversation_id: str = "") -> Responder | None:
        """
        For one request. None if there is no such agent, or it has no language model of its own.

        A token that is wrong, another agent's, or of a call that was reported opens no memory.
        """
        agent = self._agents.get(agent_name)
        call = await self._calls.with_token(token)
        if agent is None:
            return None
        if call is None or call.agent != agent_name:
            return self._make(agent, _NOBODY, conversation_id)
        # One responder for all requests of a call, since equal requests share their answer.
        responder = self._open.pop(token, None) or self._make(agent, call, conversation_id)
        if responder is not None:
            self._open[token] = responder
        if len(self._open) > MOST_CALLS:
            self._open.popitem(last=False)[1].close()
        return responder

    def _make(self, agent: Agent, call: PreparedCall, conversation_id: str) -> Responder | None:
        access = MemoryAccess(TrustLevel(call.level), caller=call.caller)
        tools = _HostedTools(agent, call, access, conversation_id, self._tools, self._calls)
        return self._responders.hosted(agent, access, call.token, tools)


@dataclass
class _HostedTools:
    """The tools of an agent in one hosted call: its functions, knowledge and memory."""

    agent: Agent
    call: PreparedCall
    access: MemoryAccess
    conversation_id: str
    loader: ToolLoader
    calls: HostedCalls
    results: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """By conversation and tool call: a question that is broken off and asked again runs no function twice."""
    _loading: "asyncio.Task[CallTools] | None" = None

    @contextlib.asynccontextmanager
    async def open(self, request: ChatRequest, say: Callable[[str], None]) -> AsyncIterator["_ToolsInAnswer"]:
        if self._loading is None:
            self._loading = self.loader.load(self.agent, self.access)
        tools, session = await asyncio.shield(self._loading), self._session()
        if self.call.token:
            session.state = await self.calls.state(self.call.token)
        host = _HostedCallHost(request, say)
        async with asyncio.TaskGroup() as tasks:
            executor = ToolExecutor(host, tasks, session, tools, {})
            yield _ToolsInAnswer(self, request, host, executor, session)
            await executor.close(call_is_over=False)

    def _session(self) -> VoiceSession:
        session = VoiceSession(
            agent=self.agent.name,
            caller=self.call.caller,
            carrier="",
            number=self.call.number if self.call.number != self.call.caller else "",
            trust=TrustLevel(self.call.level),
        )
        if self.conversation_id:
            session.id = f"voice-session:{self.conversation_id}"
        return session


class _ToolsInAnswer:
    """AnswerTools of one request."""

    def __init__(
        self,
        tools: _HostedTools,
        request: ChatRequest,
        host: "_HostedCallHost",
        executor: ToolExecutor,
        session: VoiceSession,
    ) -> None:
        self._tools = tools
        self._host = host
        self._executor = executor
        self._session = session
        self._conversation = hashlib.sha256(write_json(request.messages)).hexdigest()
        self._asked: Counter[tuple[str, str]] = Counter()
        taken = {_HANG_UP, TRANSFER_CALL, *(tool["function"]["name"] for tool in request.tools)}
        functions = [function for function in executor.functions if function.name not in taken]
        self.definitions: tuple[Mapping[str, Any], ...] = tuple(
            {
                "type": "function",
                "function": {
                    "name": function.name,
                    "description": function.description,
                    "parameters": dict(function.parameters),
                },
            }
            for function in functions
        )

    @property
    def last_call(self) -> ToolCallDelta | None:
        """The platform's tool, after a function has called `conv.hang_up`."""
        wanted = self._host.hangs_up
        return ToolCallDelta(0, f"call_{self._conversation[:24]}", _HANG_UP, '{"reason":"done"}') if wanted else None

    async def run(self, calls: Sequence[ToolCallDelta]) -> list[str]:
        return list(await asyncio.gather(*(self._run(call) for call in calls)))

    async def _run(self, call: ToolCallDelta) -> str:
        self._asked[call.name, call.arguments] += 1
        key = f"{self._conversation} {self._asked[call.name, call.arguments]} {call.name} {call.arguments}"
        if (known := self._tools.results.get(key)) is not None:
            return known
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        answer = FunctionCall(call.id, call.name, call.arguments)
        self._executor.start(answer, lambda result: None if done.done() else done.set_result(result))
        result = await done
        if self._host.state_has_changed and self._tools.call.token:
            self._host.state_has_changed = False
            await self._tools.calls.keep_state(self._tools.call.token, self._session.state)
        self._tools.results[key] = result
        if len(self._tools.results) > MOST_RESULTS:
            self._tools.results.popitem(last=False)
        return result


class _HostedCallHost:
    """ToolHost of one request. The platform transfers callers, and PINs are not part of hosted calls."""

    def __init__(self, request: ChatRequest, say: Callable[[str], None]) -> None:
        self.hangs_up = False
        self.state_has_changed = False
        self._request = request
        self._can_hang_up = any(tool["function"]["name"] == _HANG_UP for tool in request.tools)
        self.say = say

    def hang_up(self, request: str = "") -> None:
        self.hangs_up = self._can_hang_up
        if not self._can_hang_up:
            _log.warning("platform offers no tool for this", extra={"tool": _HANG_UP})

    def transfer(self, target: str, request: str | None = None) -> None:
        _log.warning("platform offers no tool for this", extra={"tool": TRANSFER_CALL})

    def set_pin(self, pin: str) -> None: ...

    def turns(self) -> Sequence[Turn]:
        now = datetime.now(UTC)
        spoken = [one for one in self._request.messages if one["role"] in _SPEAKERS and one.get("content")]
        return [Turn(_SPEAKERS[message["role"]], message["content"], now) for message in spoken]

    def tool_started(self, call: FunctionCall) -> None: ...
    def tool_finished(self, call: FunctionCall, content: str, *, ok: bool, seconds: float) -> None: ...

    def state_changed(self) -> None:
        self.state_has_changed = True
