"""
The speech worker process: the models of the local engine, for all calls of one gateway.

The gateway starts it as `python -m gateway.speech.worker` and talks to it through stdin and stdout. One thread owns the
recognition streams; transcription and synthesis run in a thread pool. The process ends when its stdin closes.
"""

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import httpx

from gateway.errors import GatewayError
from gateway.speech.config import DEFAULT_RECOGNISER, DEFAULT_VOICE, SpeechConfig
from gateway.speech.endpointing import TurnDetector
from gateway.speech.models import Models, VoiceActivityDetector
from gateway.speech.protocol import MessageKind, SpeechMessage, SpeechReader
from gateway.speech.stt_stream import SpeechEnded, SpeechStarted, SttEvent, SttStream, TranscribeRequest

_CHUNK_BYTES: Final = 8000
"""Audio is sent in chunks of a second, so that other calls do not wait behind a long text."""
_MAX_THREADS: Final = 4
_REMOTE_THREADS: Final = 16
"""With models behind a URL threads mostly wait; a slow server must not hold up every call."""


class SpeechWorker:
    """Everything but the pipes."""

    def __init__(self, models: Models, send: Callable[[SpeechMessage], None]) -> None:
        self._models = models
        self._send = send
        self._streams: dict[int, SttStream] = {}
        self._first_wanted: dict[int, int] = {}
        """The lowest number of a text that is not cancelled, by call."""
        self._inbox: queue.SimpleQueue[SpeechMessage | tuple[int, int, str] | None] = queue.SimpleQueue()
        threads = _REMOTE_THREADS if models.are_remote else min(_MAX_THREADS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="speech")

    def receive(self, message: SpeechMessage | None) -> None:
        """A message of the gateway, on any thread. None ends `run`."""
        self._inbox.put(message)

    def run(self) -> None:
        while (item := self._inbox.get()) is not None:
            if isinstance(item, SpeechMessage):
                self._handle(item)
            elif stream := self._streams.get(item[0]):
                self._report(item[0], stream.transcribed(item[1], item[2]))
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _handle(self, message: SpeechMessage) -> None:
        call = message.call
        match message.kind:
            case MessageKind.OPEN:
                self._streams[call] = SttStream(VoiceActivityDetector(self._models.silero), TurnDetector())
                self._first_wanted[call] = 0
            case MessageKind.AUDIO if stream := self._streams.get(call):
                self._report(call, stream.feed(message.body))
            case MessageKind.END_TURN if stream := self._streams.get(call):
                self._report(call, stream.end_turn())
            case MessageKind.PATIENCE if stream := self._streams.get(call):
                stream.set_patience(message.text)
            case MessageKind.SAY:
                self._pool.submit(self._synthesize, call, message.number, message.text)
            case MessageKind.CANCEL:
                self._first_wanted[call] = message.number
            case MessageKind.CLOSE:
                self._streams.pop(call, None)
                self._first_wanted.pop(call, None)
            case _:
                pass  # sent before the gateway knew that the call had ended

    def _report(self, call: int, events: list[SttEvent]) -> None:
        for event in events:
            match event:
                case SpeechStarted():
                    self._send(SpeechMessage(MessageKind.SPEECH_STARTED, call))
                case SpeechEnded(text):
                    self._send(SpeechMessage(MessageKind.SPEECH_ENDED, call, body=text.encode()))
                case TranscribeRequest():
                    self._pool.submit(self._transcribe, call, event)

    # On the threads of the pool

    def _transcribe(self, call: int, request: TranscribeRequest) -> None:
        text = ""
        try:
            if (stream := self._streams.get(call)) and stream.needs(request.number):
                text = self._models.recogniser.transcribe(request.samples)
        except Exception as error:  # the edge of a request: the session ends, the process goes on
            self._send(SpeechMessage(MessageKind.FAILED, call, body=_problem("recogniser", error)))
        self._inbox.put((call, request.number, text))

    def _synthesize(self, call: int, number: int, text: str) -> None:
        audio = b""
        try:
            if self._is_wanted(call, number):
                audio = self._models.voice.synthesize(text)
        except Exception as error:  # the edge of a request, as above
            self._send(SpeechMessage(MessageKind.FAILED, call, body=_problem("voice", error)))
        for at in range(0, len(audio), _CHUNK_BYTES):
            if self._is_wanted(call, number):
                self._send(SpeechMessage(MessageKind.SYNTHESIZED, call, number, audio[at : at + _CHUNK_BYTES]))
        self._send(SpeechMessage(MessageKind.SPOKEN, call, number))

    def _is_wanted(self, call: int, number: int) -> bool:
        first = self._first_wanted.get(call)
        return first is not None and number >= first


def _problem(model: str, error: Exception) -> bytes:
    """For the log. An error's text may quote the caller; its HTTP status does not."""
    status = f" {error.response.status_code}" if isinstance(error, httpx.HTTPStatusError) else ""
    return f"{model} failed: {type(error).__name__}{status}".encode()


def main() -> None:
    """Load the models, report READY or UNUSABLE, and serve."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not mix with our messages
    writing = threading.Lock()

    def send(message: SpeechMessage) -> None:
        with writing:
            out.write(message.encoded())

    recogniser = os.environ.get("LOCAL_RECOGNISER", DEFAULT_RECOGNISER)
    voice = os.environ.get("LOCAL_VOICE", DEFAULT_VOICE)
    try:
        models = Models.load(SpeechConfig.read(recogniser, voice), os.environ.get("LOCAL_SPEECH_API_KEY", ""))
    except Exception as error:  # whatever a library raises: a restart would fail in the same way
        reason = str(error) if isinstance(error, GatewayError | ImportError) else f"no models: {type(error).__name__}"
        send(SpeechMessage(MessageKind.UNUSABLE, body=reason.encode()))
        return
    worker = SpeechWorker(models, send)

    def read() -> None:
        reader = SpeechReader()
        while data := os.read(sys.stdin.fileno(), 65536):
            for message in reader.feed(data):
                worker.receive(message)
        worker.receive(None)

    threading.Thread(target=read, daemon=True).start()
    send(SpeechMessage(MessageKind.READY))
    with contextlib.suppress(BrokenPipeError):
        worker.run()
    os._exit(0)  # does not wait for models that still compute


if __name__ == "__main__":
    main()
