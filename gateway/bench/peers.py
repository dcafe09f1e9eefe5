"""
Both ends of one call under load: Twilio's side of the media stream, and the voice engine.

They send a frame every 20 ms in either direction. Each frame carries its call, its number and the time it was sent; a
`FrameLedger` checks that it arrives once, in order, unchanged.

Separate from `gateway.simulate` and on picows, because the load generator has one core for all calls: each frame is
formatted by hand and never becomes an object.
"""

import asyncio
import struct
import time
from array import array
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Callable, Sequence
from typing import Final
from uuid import uuid4

import httpx
import orjson
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect, ws_create_server

from gateway.audio import FRAME_BYTES, FRAME_MS, SILENCE_FRAME
from gateway.bench.results import FrameCount
from gateway.simulate.carriers import twilio_form, twilio_signature, twilio_start, twilio_stream

ACCOUNT_SID: Final = "AC" + "0" * 32
AUTH_TOKEN: Final = "0123456789abcdef0123456789abcdef"
"""Invented; valid only for the gateway that the bench starts."""
CALLED: Final = "+12025550100"
CALLERS: Final = 100
"""+1 202 555 0100 to 0199, the numbers reserved for examples. With more calls, several share one."""

CYCLE_FRAMES: Final = 150
"""Three seconds, in which each side has one turn."""
SPOKEN_FRAMES: Final = 90
"""Frames of the cycle in which the agent speaks. They last 20 ms each: small frames cost the gateway most."""

_MEDIA: Final = (
    b'{"event":"media","sequenceNumber":"%d","streamSid":"%b","media":{"track":"inbound","chunk":"%d",'
    b'"timestamp":"%d","payload":"%b"}}'
)
_WELCOME: Final = b'{"type":"Welcome","request_id":"00000000-0000-0000-0000-000000000000"}'
_APPLIED: Final = b'{"type":"SettingsApplied"}'
_TURNS: Final = (
    b'{"type":"UserStartedSpeaking"}',
    b'{"type":"ConversationText","role":"user","content":"Could you tell me whether my order has left the workshop?"}',
    b'{"type":"ConversationText","role":"assistant","content":"It has. The parcel should be with you on Friday."}',
)
_DONE: Final = b'{"type":"AgentAudioDone"}'
_SESSION: Final = (
    b'{"type":"session.%b","event_id":"e","session":{"id":"s","audio":{"input":{"format":{"type":"audio/pcmu"}},'
    b'"output":{"format":{"type":"audio/pcmu"}}}}}'
)
_IDS: Final = b'"event_id":"event_CKvJQw3SKSJz4w2Rbz9zX","response_id":"r%d","item_id":"a%d","output_index":0'
_REALTIME_TURNS: Final = (
    b'{"type":"input_audio_buffer.speech_started","event_id":"e","item_id":"u%d","audio_start_ms":0}',
    b'{"type":"input_audio_buffer.speech_stopped","event_id":"e","item_id":"u%d","audio_end_ms":900}',
    b'{"type":"input_audio_buffer.committed","event_id":"e","item_id":"u%d","previous_item_id":null}',
    b'{"type":"conversation.item.input_audio_transcription.completed","event_id":"e","item_id":"u%d",'
    b'"content_index":0,"transcript":"Could you tell me whether my order has left the workshop?"}',
    b'{"type":"response.created","event_id":"e","response":{"id":"r%d","status":"in_progress","metadata":null}}',
)
_REALTIME_TEXT: Final = (
    b'{"type":"response.output_audio_transcript.delta",%b,"content_index":0,"delta":"It has. "}',
    b'{"type":"response.output_audio_transcript.delta",%b,"content_index":0,"delta":"The parcel should be with "}',
    b'{"type":"response.output_audio_transcript.delta",%b,"content_index":0,"delta":"you on Friday. "}',
)
_APPENDED: Final = b'{"type":"input_audio_buffer.append","audio":"'
_REALTIME_AUDIO: Final = b'{"type":"response.output_audio.delta",%b,"content_index":0,"delta":"%b"}'
_REALTIME_DONE: Final = (
    b'{"type":"response.done","event_id":"e","response":{"id":"r%d","status":"completed","output":[],"usage":'
    b'{"input_tokens":900,"output_tokens":70,"total_tokens":970}}}'
)
_SAID: Final = b'{"type":"response.%b","event_id":"e","response":{"id":"s%d","metadata":{"purpose":"say"}}}'
_BUSY: Final = b'{"type":"error","event_id":"e","error":{"code":"conversation_already_has_active_response"}}'
_STAMP: Final = struct.Struct(">HIQ")  # call, number, nanoseconds of the monotonic clock
_FILLER: Final = bytes((37 * sample + 11) % 256 for sample in range(FRAME_BYTES - _STAMP.size))


# Stamped frames


def stamped(call: int, number: int, at_ns: int) -> bytes:
    return _STAMP.pack(call, number, at_ns) + _FILLER


def stamp_of(audio: bytes) -> tuple[int, int, int] | None:
    """The call, the number and the time in a frame; None for audio without a stamp."""
    if len(audio) != FRAME_BYTES or not audio.endswith(_FILLER):
        return None
    call, number, sent_ns = _STAMP.unpack_from(audio)
    return call, number, sent_ns


class Delays:
    """Transit times of the frames sent within a time window."""

    def __init__(self) -> None:
        self.values_ns = array("q")
        self._since_ns = self._until_ns = 0

    def open_window(self, since_ns: int, until_ns: int) -> None:
        self._since_ns, self._until_ns = since_ns, until_ns

    def add(self, sent_ns: int, arrived_ns: int) -> None:
        if self._since_ns <= sent_ns < self._until_ns:
            self.values_ns.append(arrived_ns - sent_ns)


class FrameLedger:
    """The frames of one direction of one call."""

    __slots__ = ("_call", "_delays", "arrived", "changed", "expected", "reordered", "sent")

    def __init__(self, call: int, delays: Delays) -> None:
        self._call = call
        self._delays = delays
        self.sent = self.arrived = self.expected = self.reordered = self.changed = 0

    def send(self, now_ns: int) -> bytes:
        """Stamp the next frame."""
        frame = stamped(self._call, self.sent, now_ns)
        self.sent += 1
        return frame

    def receive(self, audio: bytes, now_ns: int) -> None:
        if (stamp := stamp_of(audio)) is None:
            self.changed += 1
            return
        call, number, sent_ns = stamp
        if call != self._call or number >= self.sent:
            self.changed += 1
        elif number < self.expected:
            self.reordered += 1
        else:
            self.expected = number + 1
            self.arrived += 1
            self._delays.add(sent_ns, now_ns)


def count_frames(ledgers: Sequence[FrameLedger]) -> FrameCount:
    return FrameCount(
        sent=sum(ledger.sent for ledger in ledgers),
        lost=sum(ledger.sent - ledger.arrived for ledger in ledgers),
        reordered=sum(ledger.reordered for ledger in ledgers),
        changed=sum(ledger.changed for ledger in ledgers),
    )


# The peers


class _Peer(WSListener):
    """One end of a WebSocket."""

    _transport: WSTransport | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None

    def _send(self, *messages: bytes) -> None:
        if self._transport is not None:
            for message in messages:
                self._transport.send(WSMsgType.TEXT, message)


class SimulatedCall(_Peer):
    """One phone call, with a ledger for each direction."""

    def __init__(self, number: int, *, phase: float, up: Delays, down: Delays) -> None:
        """`phase`, from 0 to 1, shifts the call's turns within the cycle, independent of when the call begins."""
        self.up = FrameLedger(number, up)
        self.down = FrameLedger(number, down)
        self.caller = f"+120255501{number % CALLERS:02}"
        self.engine: LoadEngineConnection | None = None
        self.started_ns = 0
        self.talking = asyncio.Event()
        """Set when audio has reached the engine."""
        self._phase = phase
        self._call_sid = f"CA{uuid4().hex}"
        self._stream_sid = f"MZ{uuid4().hex}"
        self._sequence = 1

    @property
    def connected(self) -> bool:
        return self._transport is not None and self.engine is not None

    async def place(self, http: httpx.AsyncClient) -> None:
        """Announce the call and open its stream. Raises httpx.HTTPError, ValueError or picows.WSError."""
        form = twilio_form(ACCOUNT_SID, self._call_sid, "ringing", caller=self.caller, called=CALLED)
        webhook = http.build_request("POST", "/twilio/incoming", data=form)
        webhook.headers.update(twilio_signature(AUTH_TOKEN, str(webhook.url), form))
        answer = await http.send(webhook)
        stream_url, token = twilio_stream(answer.raise_for_status().text)
        # TwiML names the public wss: address; on loopback there is no proxy that terminates TLS.
        signature = twilio_signature(AUTH_TOKEN, stream_url, {})
        await ws_connect(lambda: self, stream_url.replace("wss:", "ws:", 1), extra_headers=signature)
        self._send(b'{"event":"connected","protocol":"Call","version":"1.0.0"}')
        self.started_ns = time.monotonic_ns()
        self._send(orjson.dumps(twilio_start(ACCOUNT_SID, self._call_sid, self._stream_sid, token)))

    def beat(self) -> None:
        """Send the next frame. Called every 20 ms."""
        if self._transport is None:
            return
        chunk = self.up.sent + 1
        payload = b64encode(self.up.send(time.monotonic_ns()))
        self._sequence += 1
        stream_sid, timestamp = self._stream_sid.encode(), chunk * FRAME_MS
        self._transport.send(WSMsgType.TEXT, _MEDIA % (self._sequence, stream_sid, chunk, timestamp, payload))

    def hang_up(self) -> None:
        """Send `stop` and close the socket."""
        stop = {"accountSid": ACCOUNT_SID, "callSid": self._call_sid}
        self._send(orjson.dumps({"event": "stop", **self._envelope(), "stop": stop}))
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.send_close(WSCloseCode.OK)
            self._transport.disconnect()
            self._transport = None

    def engine_connected(self, engine: "LoadEngineConnection") -> None:
        self.engine = engine
        passed = time.monotonic_ns() // (FRAME_MS * 1_000_000)
        engine.begin((passed + int(self._phase * CYCLE_FRAMES)) % CYCLE_FRAMES)
        self.talking.set()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        now_ns = time.monotonic_ns()
        if frame.msg_type == WSMsgType.TEXT:
            message = orjson.loads(frame.get_payload_as_memoryview())
            if (media := message.get("media")) is not None:
                self.down.receive(a2b_base64(media["payload"]), now_ns)
            elif (mark := message.get("mark")) is not None:
                self._send(orjson.dumps({"event": "mark", **self._envelope(), "mark": mark}))
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()

    def _envelope(self) -> dict[str, str]:
        self._sequence += 1
        return {"sequenceNumber": str(self._sequence), "streamSid": self._stream_sid}


class LoadEngineConnection(_Peer):
    """One call's engine. The first stamped frame identifies the call."""

    def __init__(self, find_call: Callable[[int], SimulatedCall]) -> None:
        self._find_call = find_call
        self._call: SimulatedCall | None = None
        self._position = 0
        self.settings = b""
        """The Settings message that the gateway sent."""
        self.settings_ns = 0
        self.turns = 0
        """Turns of each side."""
        self.silent = False

    def begin(self, position: int) -> None:
        """Send the first turns and continue at `position` of the cycle, so that calls do not speak in step."""
        self._take_turns()
        self._position = position

    def beat(self) -> None:
        """Send the next frame, if the agent speaks now. Called every 20 ms."""
        if self._transport is None or self._call is None or self.silent:
            return
        position, self._position = self._position, (self._position + 1) % CYCLE_FRAMES
        if position == 0:
            self._take_turns()
        if position < SPOKEN_FRAMES:
            self._speak(self._transport, self._call.down.send(time.monotonic_ns()))
        elif position == SPOKEN_FRAMES:
            self._send(self._done())

    def on_ws_connected(self, transport: WSTransport) -> None:
        super().on_ws_connected(transport)
        self._send(_WELCOME)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        now_ns = time.monotonic_ns()
        if frame.msg_type == WSMsgType.BINARY:
            self._hear(frame.get_payload_as_bytes(), now_ns)
        elif frame.msg_type == WSMsgType.TEXT and self.settings_ns == 0:
            self.settings, self.settings_ns = frame.get_payload_as_bytes(), now_ns
            self._send(_APPLIED)
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()

    def _hear(self, audio: bytes, now_ns: int) -> None:
        if self._call is None and (stamp := stamp_of(audio)) is not None:
            self._call = self._find_call(stamp[0])
            self._call.engine_connected(self)
        if self._call is not None and audio != SILENCE_FRAME:  # the gateway sends it while the carrier pauses
            self._call.up.receive(audio, now_ns)

    def _take_turns(self) -> None:
        self.turns += 1
        self._send(*_TURNS)

    def _speak(self, transport: WSTransport, audio: bytes) -> None:
        transport.send(WSMsgType.BINARY, audio)

    def _done(self) -> bytes:
        return _DONE


class RealtimeLoadConnection(LoadEngineConnection):
    """The same with OpenAI's Realtime protocol: audio as base64 in JSON."""

    _ids = b""
    _speaks = False

    def on_ws_connected(self, transport: WSTransport) -> None:
        _Peer.on_ws_connected(self, transport)
        self._send(_SESSION % b"created")

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        now_ns = time.monotonic_ns()
        if frame.msg_type == WSMsgType.TEXT:
            data = frame.get_payload_as_bytes()
            if data.startswith(_APPENDED):
                self._hear(a2b_base64(data[len(_APPENDED) : -2]), now_ns)
                return
            match orjson.loads(data)["type"]:
                case "session.update" if self.settings_ns == 0:
                    self.settings, self.settings_ns = data, now_ns
                    self._send(_SESSION % b"updated")
                case "response.create" if self._speaks:
                    self._send(_BUSY)
                case "response.create":  # the greeting, which has no audio here
                    self._send(_SAID % (b"created", now_ns), _SAID % (b"done", now_ns))
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()

    def _take_turns(self) -> None:
        if self._speaks:
            self._send(self._done())
        self._speaks = True
        self.turns += 1
        self._ids = _IDS % (self.turns, self.turns)
        self._send(*(event % self.turns for event in _REALTIME_TURNS), *(text % self._ids for text in _REALTIME_TEXT))

    def _speak(self, transport: WSTransport, audio: bytes) -> None:
        transport.send(WSMsgType.TEXT, _REALTIME_AUDIO % (self._ids, b64encode(audio)))

    def _done(self) -> bytes:
        self._speaks = False
        return _REALTIME_DONE % self.turns


_CONNECTIONS: Final = {"deepgram": LoadEngineConnection, "openai": RealtimeLoadConnection}


async def start_engine(find_call: Callable[[int], SimulatedCall], engine: str = "deepgram") -> asyncio.Server:
    """Listen on a free loopback port, with the protocol of this engine."""
    connection = _CONNECTIONS[engine]
    return await ws_create_server(lambda request: connection(find_call), "127.0.0.1", 0, backlog=1024)
