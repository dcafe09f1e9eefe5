"""The voice engine of the bench: greets, takes settings, hears stamped sound and speaks it. Lean on purpose."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_create_server

from gateway.audio import SILENCE_FRAME
from gateway.bench.frame_stamps import Ledger, call_of

_WELCOME: Final = b'{"type":"Welcome","request_id":"00000000-0000-0000-0000-000000000000"}'
_APPLIED: Final = b'{"type":"SettingsApplied"}'
_TURNS: Final = (
    b'{"type":"UserStartedSpeaking"}',
    b'{"type":"ConversationText","role":"user","content":"Could you tell me whether my order has left the workshop?"}',
    b'{"type":"ConversationText","role":"assistant","content":"It has. The parcel should be with you on Friday."}',
)
_DONE: Final = b'{"type":"AgentAudioDone"}'

CYCLE_FRAMES: Final = 150
"""Three seconds: each side takes its turn once in them."""
SPOKEN_FRAMES: Final = 90
"""Of the cycle the agent speaks so many, in frames of 20 ms: small ones are what costs."""


class ScriptedConversation(Protocol):
    """A simulated call, as its engine sees it."""

    up: Ledger
    down: Ledger

    def engine_came(self, engine: "SimulatedEngineConnection") -> None: ...


class SimulatedEngineConnection(WSListener):
    """One call's engine. Whose call it is, the first frame of sound tells."""

    def __init__(self, find_call: Callable[[int], ScriptedConversation]) -> None:
        self._find_call = find_call
        self._call: ScriptedConversation | None = None
        self._transport: WSTransport | None = None
        self._position = 0
        self.settings = b""
        """As the gateway sent them."""
        self.settings_ns = 0
        self.turns = 0
        """Of each side."""
        self.silent = False

    # The load's side

    def begin(self, position: int) -> None:
        """Say the first turns, then go on from `position` of the cycle: calls do not speak all at once."""
        self._take_turns()
        self._position = position

    def beat(self) -> None:
        """Twenty milliseconds have passed."""
        if self._transport is None or self._call is None or self.silent:
            return
        position, self._position = self._position, (self._position + 1) % CYCLE_FRAMES
        if position == 0:
            self._take_turns()
        if position < SPOKEN_FRAMES:
            self._transport.send(WSMsgType.BINARY, self._call.down.send(time.monotonic_ns()))
        elif position == SPOKEN_FRAMES:
            self._say(_DONE)

    # picows' side

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._say(_WELCOME)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        now_ns = time.monotonic_ns()
        if frame.msg_type == WSMsgType.BINARY:
            self._hear(frame.get_payload_as_bytes(), now_ns)
        elif frame.msg_type == WSMsgType.TEXT and self.settings_ns == 0:
            self.settings, self.settings_ns = frame.get_payload_as_bytes(), now_ns
            self._say(_APPLIED)
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()

    def _hear(self, audio: bytes, now_ns: int) -> None:
        if self._call is not None:
            if audio != SILENCE_FRAME:  # the gateway's own, for a carrier that pauses
                self._call.up.arrive(audio, now_ns)
            return
        number = call_of(audio)
        if number is not None:
            self._call = self._find_call(number)
            self._call.up.arrive(audio, now_ns)
            self._call.engine_came(self)

    def _take_turns(self) -> None:
        self.turns += 1
        self._say(*_TURNS)

    def _say(self, *messages: bytes) -> None:
        if self._transport is not None:
            for message in messages:
                self._transport.send(WSMsgType.TEXT, message)


async def start_engine(find_call: Callable[[int], ScriptedConversation]) -> asyncio.Server:
    """Listen on a free port of the loopback."""

    def listener(request: WSUpgradeRequest) -> SimulatedEngineConnection:
        return SimulatedEngineConnection(find_call)

    return await ws_create_server(listener, "127.0.0.1", 0, backlog=1024)
