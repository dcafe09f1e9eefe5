"""
The speech process: all models of the local engine, for all calls of one gateway.

It is started by the gateway as `python -m gateway.speech.worker`, hears it on stdin and answers on stdout. One thread
owns the ears; the models that take long, recognition and voice, run in a few more. When stdin ends, it ends.
"""

import os
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, Final

from gateway.errors import GatewayError
from gateway.speech.config import DEFAULT_RECOGNISER, DEFAULT_VOICE, SpeechConfig
from gateway.speech.models import Models
from gateway.speech.protocol import MessageKind, SpeechMessage, SpeechReader
from gateway.speech.stt_stream import Heard, SpeechEnded, SpeechStarted, SttStream, TranscribeRequest
from gateway.speech.vad import SpeechMeter

_PIECE_BYTES: Final = 8000
"""Sound goes out in pieces of a second, so that another call's need not wait behind a long one."""
_MOST_THREADS: Final = 4
_WAITING_THREADS: Final = 16
"""Where servers do the work: a slow one must not hold up every call."""

ENVIRONMENT: Final = {
    "LOCAL_RECOGNISER": DEFAULT_RECOGNISER,
    "LOCAL_VOICE": DEFAULT_VOICE,
    "LOCAL_SPEECH_API_KEY": "",
}
"""How the gateway tells this process its settings."""


class SpeechProcess:
    """Everything but the pipes. `run` returns when there is nothing more to read."""

    def __init__(self, models: Models, put: Callable[[SpeechMessage], None]) -> None:
        self._models = models
        self._put = put
        self._ears: dict[int, SttStream] = {}
        self._wanted: dict[int, int] = {}
        """For each call the first thing said that is still wanted: a hush voids all before."""
        self._inbox: queue.SimpleQueue[SpeechMessage | tuple[int, int, str] | None] = queue.SimpleQueue()
        threads = _WAITING_THREADS if models.are_remote else min(_MOST_THREADS, os.cpu_count() or 1)
        self._work = ThreadPoolExecutor(threads, thread_name_prefix="speech")

    def receive(self, message: SpeechMessage | None) -> None:
        """From the gateway, on any thread; None for no more."""
        self._inbox.put(message)

    def run(self) -> None:
        while (item := self._inbox.get()) is not None:
            if isinstance(item, SpeechMessage):
                self._handle(item)
            elif stt_stream := self._ears.get(item[0]):
                self._tell(item[0], stt_stream.words_are(item[1], item[2]))
        self._work.shutdown(wait=False, cancel_futures=True)

    def _handle(self, message: SpeechMessage) -> None:
        call = message.call
        match message.kind:
            case MessageKind.OPEN:
                self._ears[call] = SttStream(SpeechMeter(self._models.silero))
                self._wanted[call] = 0
            case MessageKind.AUDIO if stt_stream := self._ears.get(call):
                self._tell(call, stt_stream.hear(message.body))
            case MessageKind.END_TURN if stt_stream := self._ears.get(call):
                self._tell(call, stt_stream.end_turn())
            case MessageKind.SAY:
                self._work.submit(self._say, call, message.number, message.text)
            case MessageKind.CANCEL:
                self._wanted[call] = message.number
            case MessageKind.CLOSE:
                self._ears.pop(call, None)
                self._wanted.pop(call, None)
            case _:
                pass  # what was on its way when its call ended

    def _tell(self, call: int, heard: list[Heard]) -> None:
        for event in heard:
            match event:
                case SpeechStarted():
                    self._put(SpeechMessage(MessageKind.SPEECH_STARTED, call))
                case SpeechEnded(text):
                    self._put(SpeechMessage(MessageKind.SPEECH_ENDED, call, body=text.encode()))
                case TranscribeRequest():
                    self._work.submit(self._recognise, call, event)

    # On the working threads

    def _recognise(self, call: int, wanted: TranscribeRequest) -> None:
        text = ""
        try:
            if (stt_stream := self._ears.get(call)) and stt_stream.wants(wanted.number):
                text = self._models.recogniser.text_of(wanted.samples)
        except Exception as error:  # the edge of a request: the call is told, and takes it from there
            self._put(SpeechMessage(MessageKind.FAILED, call, body=_trouble("recogniser", error)))
        self._inbox.put((call, wanted.number, text))

    def _say(self, call: int, number: int, text: str) -> None:
        sound = b""
        try:
            if self._is_wanted(call, number):
                sound = self._models.voice.say(text)
        except Exception as error:  # the edge of a request, as above
            self._put(SpeechMessage(MessageKind.FAILED, call, body=_trouble("voice", error)))
        for at in range(0, len(sound), _PIECE_BYTES):
            if self._is_wanted(call, number):
                self._put(SpeechMessage(MessageKind.SYNTHESIZED, call, number, sound[at : at + _PIECE_BYTES]))
        self._put(SpeechMessage(MessageKind.SPOKEN, call, number))

    def _is_wanted(self, call: int, number: int) -> bool:
        first = self._wanted.get(call)
        return first is not None and number >= first


def _trouble(who: str, error: Exception) -> bytes:
    """For the log. What a server says may quote the caller; its status does not."""
    status = getattr(error, "code", None)
    return f"{who} failed: {type(error).__name__}{f' {status}' if isinstance(status, int) else ''}".encode()


def main() -> None:
    """Load the models, say so, and listen. What can't be loaded is told in one message."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints must not get among our messages
    writing = threading.Lock()

    def put(message: SpeechMessage) -> None:
        with writing:
            out.write(message.encoded())

    ears, tts_queue, api_key = (os.environ.get(name, default) for name, default in ENVIRONMENT.items())
    try:
        models = Models.load(SpeechConfig.read(ears, tts_queue), api_key)
    except Exception as error:  # also what a library raises: another start would come to the same end
        told = str(error) if isinstance(error, GatewayError | ImportError) else f"no models: {type(error).__name__}"
        put(SpeechMessage(MessageKind.UNUSABLE, body=told.encode()))
        return
    process = SpeechProcess(models, put)
    threading.Thread(target=_read, args=(sys.stdin.buffer, process), daemon=True).start()
    put(SpeechMessage(MessageKind.READY))
    try:
        process.run()
    except BrokenPipeError:
        pass
    os._exit(0)  # models that still run are of no use to anybody


def _read(stdin: BinaryIO, process: SpeechProcess) -> None:
    reader = SpeechReader()
    while data := os.read(stdin.fileno(), 65536):
        for message in reader.feed(data):
            process.receive(message)
    process.receive(None)


if __name__ == "__main__":
    main()
