"""What the agent of one call does beside talking: it calls functions, hangs up, and puts the caller through."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from gateway.agents import Agent
from gateway.calls.graceful_hangup import GracefulHangup
from gateway.engines.interface import AgentFunction, EngineSession, FunctionCall
from gateway.errors import CarrierRefused
from gateway.history.live_events import CallEvents
from gateway.memory.state import Value
from gateway.metrics import FUNCTIONS
from gateway.session import EndReason, Turn, VoiceSession
from gateway.tools import builtin
from gateway.tools.conversation import Conversation
from gateway.tools.prepared import CallTools
from gateway.tools.runner import Builtin, FunctionRunner, is_error

NOT_TRANSFERRED: Final = "I'm sorry, I could not put you through."
NOT_WANTED: Final = "Not done: the caller has been answered already. Say nothing more."
GOODBYE_DUE: Final = {"status": "ok", "next": "say a short goodbye; the call ends after it"}


async def run_end_function(session: VoiceSession, call_tools: CallTools) -> None:
    """Run `end_function` for a call that ended when it had no media. What it sets is kept."""
    conv = Conversation(session, _EndedCallHost(session), memory=call_tools.memory, state=session.state)
    runner = FunctionRunner(
        asyncio.TaskGroup(),
        conv,
        tool_module=call_tools.tool_module,
        workers=call_tools.threads,
        answer=lambda call, content: None,
    )
    await runner.run_end()
    if not session.off_record:
        session.state = conv.state.fields()


class _EndedCallHost:
    """A call that is over, as its last function sees it: all that is left is what was said."""

    def __init__(self, session: VoiceSession) -> None:
        self._session = session

    def say(self, text: str) -> None: ...

    def hang_up(self) -> None: ...

    def transfer(self, target: str) -> None: ...

    def turns(self) -> Sequence[Turn]:
        return self._session.turns


class CallLeg(Protocol):
    """What can be done about the call itself, at its carrier. Both raise CarrierRefused."""

    @property
    def stop_ends_call(self) -> bool:
        """Whether the end of the stream is the end of the call."""

    async def hang_up(self) -> None: ...

    async def transfer(self, target: str) -> None:
        """Put the caller through to a number or SIP address; the stream ends."""


class ToolHost(Protocol):
    """The call that these hands belong to."""

    session: VoiceSession

    def end(self, reason: EndReason, *, carrier_over: bool = False) -> None: ...

    def say(self, text: str) -> None: ...

    def turns(self) -> Sequence[Turn]: ...

    def state_changed(self) -> None: ...

    def function_answered(self, call: FunctionCall, content: str) -> None: ...


class ToolExecutor:
    """The functions of one call, and what they do to it. Used on the gateway's loop."""

    def __init__(
        self,
        body: ToolHost,
        tasks: asyncio.TaskGroup,
        agent: Agent,
        call_tools: CallTools,
        *,
        line: CallLeg,
        graceful_hangup: GracefulHangup,
        call_events: CallEvents,
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._body = body
        self._tasks = tasks
        self._transfer_to = agent.transfer_to
        self._line = line
        self._graceful_hangup = graceful_hangup
        self._call_events = call_events
        self._log = log
        self._asked: dict[FunctionCall, tuple[EngineSession, float]] = {}
        self._conv = Conversation(body.session, self, memory=call_tools.memory, state=body.session.state)
        self._recall = call_tools.recall
        self._runner = FunctionRunner(
            tasks,
            self._conv,
            tool_module=call_tools.tool_module,
            workers=call_tools.threads,
            answer=self._answer,
            builtins=(*self._own(), *call_tools.builtins),
        )
        self._aside: dict[str, Any] = {}
        self._nobody_there = False
        self.handing_over = False
        """The caller is being put through: when the stream ends now, that is why."""

    @property
    def functions(self) -> tuple[AgentFunction, ...]:
        return self._runner.functions

    # What happens in the call

    def start_up(self) -> "asyncio.Task[None]":
        """Run the file's `start_function`. What it says in time is said with the greeting."""
        starting = self._tasks.create_task(self._runner.run_start(), name="start function")
        starting.add_done_callback(lambda _: self._keep_state())
        return starting

    def use(self, call: FunctionCall, link: EngineSession | None, *, answered_already: bool = False) -> None:
        """The agent calls a function, over this connection: not for an answer that another one stands in for."""
        if link is not None and answered_already:
            link.answer_tool(call.id, NOT_WANTED)
        elif link is not None:
            if call not in self._asked:
                self._call_events.publish("function_called", function=call.name)
            self._asked[call] = link, asyncio.get_running_loop().time()
            self._runner.start(call)

    def cancel(self, call_ids: Iterable[str]) -> None:
        self._runner.cancel(call_ids)

    def caller_spoke(self) -> None:
        self._runner.caller_spoke()
        self.recall()

    def recall(self, *, of_another: bool = False) -> None:
        """Read what earlier calls have kept: once a turn, and when the caller has turned out to be another."""
        if self._recall is not None:
            if of_another:
                self._conv.memory.clear()
            self._tasks.create_task(self._read_memory(self._recall), name="state")

    async def _read_memory(self, recall: Callable[[], Awaitable[Mapping[str, Value] | None]]) -> None:
        values = await recall()
        if values is not None and recall is self._recall:
            self._conv.memory.become(values)

    def off_record(self, off: bool) -> None:
        """What functions note while nothing is to be kept is not kept afterwards either."""
        if not off:
            kept = self._body.session.state
            self._aside |= {key: value for key, value in self._conv.state.fields().items() if kept.get(key) != value}

    def memory_is_gone(self) -> None:
        """Functions know nothing of earlier calls any more."""
        self._recall = None
        self._conv.memory.clear()

    async def rest(self, *, call_is_over: bool) -> None:
        """Nothing is begun any more. At the end of the call, and not only of its stream, `end_function` runs."""
        self._recall = None
        self._runner.close()
        if call_is_over:
            self._nobody_there = True
            await self._runner.run_end()
        self._keep_state()

    # What functions do to the call. An `end_function` has nobody to do it to.

    def say(self, text: str) -> None:
        if not self._nobody_there:
            self._body.say(text)

    def hang_up(self) -> None:
        if not self._nobody_there:
            self._graceful_hangup.wished("", lambda: self._body.end(EndReason.AGENT_HUNG_UP))

    def transfer(self, target: str) -> None:
        if not self._nobody_there:
            self._tasks.create_task(self._put_through(target), name="transfer")

    def turns(self) -> Sequence[Turn]:
        return self._body.turns()

    async def _put_through(self, target: str) -> None:
        self.handing_over = True  # the stream may end before the carrier has answered
        try:
            await self._line.transfer(target)
        except CarrierRefused as error:
            self.handing_over = False
            self._log.error("call could not be transferred", extra={"reason": str(error)})
            self._call_events.publish("error", what="call could not be transferred", reason=str(error))
            self._body.say(NOT_TRANSFERRED)
        else:
            self._body.end(EndReason.TRANSFERRED, carrier_over=True)

    # Itself

    def _own(self) -> list[Builtin]:
        own = [Builtin(builtin.END_CALL, self._end_call)]
        if self._transfer_to:
            own.append(Builtin(builtin.transfer_schema(tuple(self._transfer_to)), self._transfer_call))
        return own

    async def _end_call(self, call: FunctionCall, arguments: dict[str, Any]) -> object:
        self._graceful_hangup.wished(call.id, lambda: self._body.end(EndReason.AGENT_HUNG_UP))
        return GOODBYE_DUE

    async def _transfer_call(self, call: FunctionCall, arguments: dict[str, Any]) -> object:
        target = self._transfer_to[arguments["to"]]
        self._graceful_hangup.wished(call.id, lambda: self.transfer(target))
        return GOODBYE_DUE

    def _answer(self, call: FunctionCall, content: str) -> None:
        """To the connection that asked; a later one has not, and would not understand."""
        self._keep_state()
        if asked := self._asked.pop(call, None):
            link, at = asked
            link.answer_tool(call.id, content)
            self._body.function_answered(call, content)
            seconds = round(asyncio.get_running_loop().time() - at, 3)
            ok = not is_error(content)
            self._call_events.publish("function_finished", function=call.name, ok=ok, seconds=seconds)
            FUNCTIONS.labels("ok" if ok else "failed").inc()

    def _keep_state(self) -> None:
        if self._body.session.off_record:
            return
        kept = self._body.session.state
        noted = self._conv.state.fields().items()
        state = {key: value for key, value in noted if key not in self._aside or self._aside[key] != value}
        state |= {key: kept[key] for key in self._aside if key in kept and key not in state}
        if state != self._body.session.state:
            self._body.session.state = state
            self._call_events.set_state(state)
            self._body.state_changed()
