"""Streams to speech services over real sockets: what survives a lost connection, and what does not."""

import asyncio
import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audio import SILENCE_FRAME
from gateway.engines.cartesia_voice import CartesiaCodec, speak_path
from gateway.engines.deepgram_speech import AuraCodec, FluxCodec, FluxVoiceCodec, NovaCodec, listen_path
from gateway.engines.elevenlabs_voice import ElevenLabsCodec
from gateway.engines.interface import WordEnd
from gateway.engines.openai_transcription import OpenAiTranscriptionCodec
from gateway.engines.streaming import (
    LEAD_FRAMES,
    ServiceEndpoint,
    StreamingRecogniserService,
    StreamingVoiceService,
    StreamTimeouts,
    TextWindow,
    VoiceWords,
)
from gateway.errors import EngineRefused, EngineUnavailable, RemoteProtocolError
from gateway.settings import Secret
from gateway.websocket import picows
from tests.fakes.speech_services import KEY, FakeSpeech, speech
from tests.stage import until

FRAME = b"\x01" * 160
TIMEOUTS = StreamTimeouts(reconnect_pauses=(0.0, 0.0), tick=0.02, idle=60.0, answer=60.0)


class Listener:
    """A session that writes down what its parts report."""

    def __init__(self):
        self.log, self.audio, self.failed = [], b"", None

    def on_speech_started(self):
        self.log.append("started")

    def on_speech_ended(self, text):
        self.log.append(text)

    def on_audio(self, number, audio):
        self.audio += audio

    def on_word_ends(self, number, ends):
        self.log += ends

    def on_spoken(self, number):
        self.log.append(number)

    def on_speech_failed(self, problem, *, retryable=True):
        self.failed = (problem, retryable)


@pytest.fixture
async def service():
    async with FakeSpeech() as service:
        yield service
    assert service.problems == []


def endpoint(service, path, scheme="Token", **timeouts):
    credentials = Secret(f"{scheme} {KEY}")
    return ServiceEndpoint(
        "deepgram/test",
        f"{service.url}{path}",
        "Authorization",
        credentials,
        "DEEPGRAM_API_KEY",
        connect=picows.connect,
        timeouts=replace(TIMEOUTS, **timeouts),
    )


def flux(service, **timeouts):
    return StreamingRecogniserService(
        endpoint(service, listen_path("flux-general-en", "en", "normal"), **timeouts), FluxCodec
    )


def cartesia(service, **timeouts):
    at = endpoint(service, speak_path(), "Bearer", **timeouts)
    return StreamingVoiceService(at, lambda: CartesiaCodec("voice", "sonic-3.5", "en"))


async def recogniser(service, make=flux, **timeouts):
    listener = Listener()
    return await make(service, **timeouts).open_recogniser(listener), listener


async def voice(service, **timeouts):
    listener = Listener()
    return await cartesia(service, **timeouts).open_voice(listener), listener


async def test_turn_is_recognised(service):
    stream, listener = await recogniser(service)
    stream.send_audio(FRAME)
    socket = await service.recogniser()
    assert await socket.hears(160) == FRAME
    await socket.says("Hello there.")
    await until(lambda: listener.log == ["started", "Hello there."])
    stream.close()


async def test_unfinished_turn_goes_to_the_next_socket(service):
    """The caller began to speak, the socket is lost, and the caller goes on: the turn is whole."""
    stream, listener = await recogniser(service)
    for number in range(LEAD_FRAMES + 10):
        stream.send_audio(bytes([number]) * 160)
    first = await service.recogniser()
    await first.hears(160 * (LEAD_FRAMES + 10))
    await first.updates()
    await first.begins()
    await until(lambda: listener.log)
    stream.send_audio(b"\xaa" * 160)
    first.abort()
    second = await service.recogniser(1)
    stream.send_audio(b"\xbb" * 160)
    heard = await second.hears(160 * (LEAD_FRAMES + 2))
    assert heard[:160] == bytes([10]) * 160
    assert heard[-320:] == b"\xaa" * 160 + b"\xbb" * 160
    await second.says("One whole turn.")
    await until(lambda: listener.log == ["started", "One whole turn."])
    stream.close()


async def test_audio_that_a_hung_service_ignored_goes_to_the_next_socket(service):
    """Nothing was reported, so that all of it may be speech."""
    stream, _ = await recogniser(service)
    for number in range(LEAD_FRAMES + 10):
        stream.send_audio(bytes([number]) * 160)
    (await service.recogniser()).abort()
    heard = await (await service.recogniser(1)).hears(160 * (LEAD_FRAMES + 10))
    assert heard[:160] == bytes(160)
    stream.close()


async def test_finished_turn_is_not_repeated(service):
    stream, listener = await recogniser(service)
    stream.send_audio(FRAME)
    await (await service.recogniser()).says("Yes.")
    await until(lambda: len(listener.log) == 2)
    service.recognisers[0].abort()
    second = await service.recogniser(1)
    stream.send_audio(b"\x02" * 160)
    assert await second.hears(160) == b"\x02" * 160
    stream.close()


async def test_turn_without_words_after_a_loss_ends(service):
    """It was a noise: the new socket reports nothing, and the agent goes on."""
    stream, listener = await recogniser(service, answer=0.05)
    await (await service.recogniser()).begins()
    await until(lambda: listener.log)
    service.recognisers[0].abort()
    await until(lambda: listener.log == ["started", ""])
    stream.close()


async def test_fatal_error_replaces_the_socket(service):
    stream, listener = await recogniser(service)
    await (await service.recogniser()).fails("INTERNAL_SERVER_ERROR")
    await (await service.recogniser(1)).says("Still here.")
    await until(lambda: listener.log == ["started", "Still here."])
    assert listener.failed is None
    stream.close()


async def test_service_that_stays_away_is_given_up(service):
    stream, listener = await recogniser(service)
    socket = await service.recogniser()
    service.refuses = 503
    socket.abort()
    await until(lambda: listener.failed)
    assert listener.failed == ("deepgram/test: the connection was lost", True)
    stream.send_audio(FRAME)  # ignored


async def test_rejected_key_is_not_tried_again(service):
    _, listener = await recogniser(service)
    socket = await service.recogniser()
    service.refuses = 401
    socket.abort()
    await until(lambda: listener.failed)
    assert listener.failed == ("deepgram/test: the engine answered the handshake with status 401", False)


async def test_first_connection_fails_with_its_reason(service):
    service.refuses = 403
    with pytest.raises(EngineRefused):
        await recogniser(service)
    service.refuses = 500
    with pytest.raises(EngineUnavailable):
        await voice(service)


async def test_silence_keeps_a_recogniser_open(service):
    stream, _ = await recogniser(service, idle=0.0)
    heard = await (await service.recogniser()).hears(320)
    assert heard[:320] == SILENCE_FRAME * 2
    stream.close()


async def test_names_are_given_to_every_socket(service):
    stream, _ = await recogniser(service)
    stream.set_keyterms(["Rohloff"])
    first = await service.recogniser()
    assert (await first.gets("Configure"))["keyterms"] == ["Rohloff"]
    first.abort()
    assert (await (await service.recogniser(1)).gets("Configure"))["keyterms"] == ["Rohloff"]
    stream.close()


async def test_turn_is_ended_by_force(service):
    stream, listener = await recogniser(service)
    stream.end_turn()  # the caller does not speak
    await (await service.recogniser()).begins()
    await until(lambda: listener.log)
    stream.end_turn()
    await until(lambda: listener.log == ["started", "as far as it was said"])
    assert [message["type"] for message in service.recognisers[0].messages] == ["ForceEndTurn"]
    stream.close()


async def test_audio_goes_out_as_text_where_the_service_wants_it(service):
    def openai(service, **timeouts):
        at = endpoint(service, "/v1/realtime?intent=transcription", "Bearer", **timeouts)
        return StreamingRecogniserService(at, lambda: OpenAiTranscriptionCodec("gpt-transcribe", "en", "normal"))

    stream, listener = await recogniser(service, openai)
    stream.send_audio(FRAME)
    socket = await service.recogniser()
    assert await socket.hears(160) == FRAME
    await socket.says("Hello.")
    await until(lambda: listener.log == ["started", "Hello."])
    stream.close()


async def test_text_is_spoken_with_the_times_of_its_words(service):
    stream, listener = await voice(service)
    assert stream.say("Hello, Anna.") == 1
    await until(lambda: 1 in listener.log)
    assert listener.log == [WordEnd(6, 1600), WordEnd(12, 3200), 1]
    assert listener.audio == speech("Hello, Anna.")
    stream.close()


async def test_cancelled_text_is_not_reported(service):
    stream, listener = await voice(service)
    service.speaks.clear()
    stream.say("One.")
    socket = await service.voice()
    await until(lambda: socket.texts)
    stream.cancel_speech()
    await until(lambda: socket.cancelled)
    stream.say("Two.")
    service.speaks.set()
    await until(lambda: 2 in listener.log)
    assert listener.audio == speech("Two.")
    assert 1 not in listener.log
    stream.close()


async def test_unfinished_texts_go_to_the_next_socket(service):
    """What was heard of the first text is not repeated, and the second is not lost."""
    stream, listener = await voice(service)
    socket = await service.voice()
    service.speaks.clear()
    stream.say("One two three four five.")
    stream.say("Six.")
    await until(lambda: len(socket.texts) == 2)
    context = socket.messages[0]["context_id"]
    chunk = {"type": "chunk", "data": "AQEB", "done": False, "step_time": 1.0, "status_code": 206}
    await socket.send({**chunk, "context_id": context})
    await until(lambda: listener.audio)
    socket.abort()
    service.speaks.set()
    await until(lambda: 2 in listener.log)
    assert listener.audio == b"\x01\x01\x01" + speech("One two three four five.")[3:] + speech("Six.")
    stream.close()


async def test_silent_voice_is_replaced(service):
    """A socket that takes a text and sends nothing is not waited for."""
    stream, listener = await voice(service, answer=0.2, reconnect_pauses=(0.0,) * 1000)
    service.speaks.clear()
    stream.say("Hello.")
    await service.voice(1)
    service.speaks.set()
    await until(lambda: 1 in listener.log)
    assert listener.audio == speech("Hello.")
    stream.close()


async def test_refused_request_ends_the_session(service):
    _, listener = await voice(service)
    await (await service.voice()).fails(404, "voice_not_found")
    await until(lambda: listener.failed)
    assert listener.failed == ("deepgram/test: voice_not_found", False)


async def test_nonsense_is_skipped(service, caplog):
    stream, listener = await recogniser(service)
    socket = await service.recogniser()
    for text in ("nonsense", "[]", '{"type": 7}', '{"type": "TurnInfo"}'):
        await socket._connection.send(text)
    await socket.says("Fine.")
    await until(lambda: listener.log == ["started", "Fine."])
    assert caplog.text.count("engine broke its protocol") == 1
    stream.close()


async def test_closed_stream_reports_nothing(service):
    stream, listener = await recogniser(service)
    socket = await service.recogniser()
    stream.close()
    await until(lambda: socket.is_over)
    assert (listener.log, listener.failed, len(service.recognisers)) == ([], None, 1)


async def test_stream_may_close_while_it_connects(service):
    stream, _ = await recogniser(service)
    (await service.recogniser()).abort()
    await until(lambda: stream._reconnecting is not None or len(service.recognisers) > 1)
    stream.close()
    await until(lambda: all(socket.is_over for socket in service.recognisers))


async def test_probe_says_what_to_correct(service):
    host = service.url.removeprefix("ws://")
    assert await flux(service).probe() == f"deepgram/test: {host} answers and accepts the key"
    service.refuses = 401
    with pytest.raises(EngineRefused, match=f"{host} rejects the key for deepgram/test; correct DEEPGRAM_API_KEY"):
        await flux(service).probe()
    service.refuses = 503
    with pytest.raises(EngineUnavailable, match="check the network"):
        await flux(service).probe()
    await asyncio.sleep(0)


CODECS = {
    "nova": lambda: NovaCodec(takes_keyterms=True),
    "flux": FluxCodec,
    "openai": lambda: OpenAiTranscriptionCodec("gpt-transcribe", "en", "normal"),
    "aura": lambda: AuraCodec(lambda: 0.0),
    "flux voice": FluxVoiceCodec,
    "elevenlabs": ElevenLabsCodec,
    "cartesia": lambda: CartesiaCodec("voice", "sonic-3.5", "en"),
}
TYPES = st.sampled_from(
    "SpeechStarted Results UtteranceEnd Error TurnInfo Flushed Cleared chunk timestamps done error session.updated "
    "input_audio_buffer.committed conversation.item.input_audio_transcription.completed".split()
)
WORDS = st.sampled_from(["One", "two.", "", " ", "\0"])
NUMBERS = st.sampled_from([0, 1, -1, 0.5, 1e308, -1e308, 2**63, True])
FIELDS = st.sampled_from(
    "event transcript timestamp start duration is_final speech_final channel alternatives last_word_end audio data "
    "alignment chars charStartTimesMs charDurationsMs words end word_timestamps isFinal status_code session item_id "
    "error code".split()
)
ANY = st.recursive(
    st.none() | WORDS | NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("name", CODECS)
@given(messages=st.lists(st.dictionaries(FIELDS, ANY, max_size=6), max_size=3), kind=TYPES)
def test_no_message_breaks_a_codec(name, messages, kind):
    codec = CODECS[name]()
    sent = [json.loads(frame) for frame in codec.say(1, "One two.")] if hasattr(codec, "say") else []
    context = sent[0].get("context_id") if sent else None
    for message in messages:
        frame = json.dumps({**message, "type": kind, "context_id": context}).encode()
        with contextlib.suppress(RemoteProtocolError):
            for event in codec.receive(frame):
                assert not isinstance(event, VoiceWords) or all(end.characters <= 8 for end in event.ends)


def test_voice_works_on_few_texts_at_a_time():
    texts = TextWindow(2, 3)
    for number in range(1, 5):
        texts.add(number, f"{number}.")
    assert texts.next() == [(1, "1."), (2, "2.")]
    texts.done(1)
    assert texts.next() == [(3, "3.")]
    assert texts.cancel() == [2, 3]
    texts.add(5, "5.")
    texts.add(6, "6.")
    assert texts.next() == [(5, "5.")]  # the service may still work on 2 and 3
    assert (texts.text(5), texts.text(6)) == ("5.", "")
    texts.done(2)
    assert texts.next() == [(6, "6.")]
