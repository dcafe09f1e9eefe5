"""What tools can do in a live call, and what the call records about them."""

from collections.abc import Sequence

from gateway.calls.call_end import CallEnd
from gateway.calls.caller_identity import CallerIdentity
from gateway.calls.speech_output import Say
from gateway.calls.transcript import Transcript
from gateway.engines.interface import FunctionCall, HistoryToolCall
from gateway.history.live_events import CallEvents
from gateway.session import Turn, VoiceSession


class ToolActions:
    """The ToolHost of a live call."""

    def __init__(
        self,
        session: VoiceSession,
        transcript: Transcript,
        identity: CallerIdentity,
        end: CallEnd,
        say: Say,
        events: CallEvents,
    ) -> None:
        self._session = session
        self._transcript = transcript
        self._identity = identity
        self._end = end
        self._say = say
        self._events = events

    def say(self, text: str) -> None:
        self._say(text)

    def hang_up(self, request: str = "") -> None:
        self._end.hang_up(request)

    def transfer(self, target: str, request: str | None = None) -> None:
        self._end.transfer(target, request)

    def turns(self) -> Sequence[Turn]:
        return self._transcript.so_far

    def tool_started(self, call: FunctionCall) -> None:
        self._events.publish("function_called", function=call.name)

    def tool_finished(self, call: FunctionCall, content: str, *, ok: bool, seconds: float) -> None:
        self._transcript.tool_called(HistoryToolCall(call, content))
        self._events.publish("function_finished", function=call.name, ok=ok, seconds=seconds)

    def state_changed(self) -> None:
        self._events.set_state(self._session.state)
        self._identity.state_changed()
