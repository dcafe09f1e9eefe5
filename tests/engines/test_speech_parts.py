"""Every recogniser and every voice has the interface of its kind."""

from typing import Any, cast

import pytest

from gateway.engines.cascade import CascadeSession
from gateway.engines.deepgram_speech import FluxCodec
from gateway.engines.elevenlabs_voice import ElevenLabsCodec
from gateway.engines.local import LocalSpeech, SpeechChannel, SpeechWorkerTimeouts
from gateway.engines.speech_parts import (
    RecogniserService,
    RecogniserStream,
    SpeechListener,
    VoiceService,
    VoiceStream,
)
from gateway.engines.streaming import (
    ServiceEndpoint,
    StreamingRecogniser,
    StreamingRecogniserService,
    StreamingVoice,
    StreamingVoiceService,
)
from gateway.settings import Secret

LOCAL = LocalSpeech({}, SpeechWorkerTimeouts())
ENDPOINT = ServiceEndpoint("deepgram/test", "", "", Secret(""), "", cast(Any, None))
RECOGNISERS: list[RecogniserService] = [  # the type checker compares each with the protocol
    LOCAL,
    StreamingRecogniserService(ENDPOINT, FluxCodec),
]
VOICES: list[VoiceService] = [LOCAL, StreamingVoiceService(ENDPOINT, ElevenLabsCodec)]
RECOGNISER_STREAMS: list[type[RecogniserStream]] = [SpeechChannel, StreamingRecogniser]
VOICE_STREAMS: list[type[VoiceStream]] = [SpeechChannel, StreamingVoice]
LISTENER: type[SpeechListener] = CascadeSession


def methods(protocol: type) -> set[str]:
    return {name for name in dir(protocol) if not name.startswith("_")}


@pytest.mark.parametrize("service", RECOGNISERS, ids=lambda service: service.name)
def test_recogniser_service_is_whole(service: RecogniserService) -> None:
    assert methods(RecogniserService) | {"name", "hearing"} <= set(dir(service))


@pytest.mark.parametrize("service", VOICES, ids=lambda service: service.name)
def test_voice_service_is_whole(service: VoiceService) -> None:
    assert methods(VoiceService) | {"name"} <= set(dir(service))


def test_streams_are_whole() -> None:
    assert all(methods(RecogniserStream) <= set(dir(stream)) for stream in RECOGNISER_STREAMS)
    assert all(methods(VoiceStream) <= set(dir(stream)) for stream in VOICE_STREAMS)
    assert methods(SpeechListener) <= set(dir(LISTENER))
