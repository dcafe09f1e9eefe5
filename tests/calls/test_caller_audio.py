"""The way of the caller's frames, and the last voiced one, found in speech on lines of all kinds."""

import asyncio
import math
import random
from collections.abc import Iterable

import pytest

from gateway.audio import BYTES_PER_SECOND, FRAME_BYTES, SILENCE_FRAME, bundled_sound, linear_to_mulaw, mulaw_to_linear
from gateway.calls.caller_audio import CallerVoice, IncomingAudio
from gateway.calls.monitoring import CallMonitor

pytestmark = pytest.mark.virtual_time

FRAME = 0.02
FIRST, SECOND = bytes([1]) * 160, bytes([2]) * 160
SPEECH = [mulaw_to_linear(sample) for sample in bundled_sound("apology")]


def last_spoken_frame(samples: list[int]) -> int:
    """By the mean level of whole frames, which is not how the gateway measures: 40 dB below the loudest frame."""
    frames = [samples[start : start + FRAME_BYTES] for start in range(0, len(samples), FRAME_BYTES)]
    levels = [math.sqrt(sum(sample**2 for sample in frame) / len(frame)) for frame in frames]
    return max(number for number, level in enumerate(levels) if level > max(levels) / 100)


def noise(seconds: float, sigma: float, seed: int = 1) -> list[int]:
    randomness = random.Random(seed)
    return [round(randomness.gauss(0, sigma)) for _ in range(int(seconds * BYTES_PER_SECOND))]


def mulaw(samples: Iterable[int]) -> bytes:
    return bytes(linear_to_mulaw(max(-32000, min(32000, sample))) for sample in samples)


def tones(seconds: float, *frequencies: float, amplitude: float = 4000.0) -> list[int]:
    return [
        round(sum(amplitude * math.sin(2 * math.pi * frequency * n / BYTES_PER_SECOND) for frequency in frequencies))
        for n in range(int(seconds * BYTES_PER_SECOND))
    ]


class Line:
    """Plays audio to the gateway in real time, on virtual time."""

    def __init__(self) -> None:
        self.audio = IncomingAudio(CallMonitor())
        self.voice = CallerVoice(self.audio)
        self.loop = asyncio.get_running_loop()
        self.frames = 0

    async def play(self, audio: bytes) -> float:
        """Returns when its last frame came."""
        for start in range(0, len(audio) // FRAME_BYTES * FRAME_BYTES, FRAME_BYTES):
            await asyncio.sleep(FRAME)
            self.audio.pass_on(audio[start : start + FRAME_BYTES])
            self.frames += 1
            if self.frames % 5 == 0:
                self.voice.tick()
        return self.loop.time()


def mixed(speech: list[int], background: list[int]) -> bytes:
    return mulaw(map(sum, zip(speech, background, strict=True)))


@pytest.mark.parametrize("quiet", [b"\xff", b"\x7f"])
async def test_last_frame_of_speech_before_silence(quiet: bytes) -> None:
    line = Line()
    await line.play(quiet * BYTES_PER_SECOND)
    began = line.loop.time()
    await line.play(mulaw(SPEECH))
    await line.play(quiet * BYTES_PER_SECOND)
    voiced_at = line.voice.last_voiced()
    assert voiced_at is not None
    frame = round((voiced_at - began) / FRAME) - 1
    assert abs(frame - last_spoken_frame(SPEECH)) <= 2


@pytest.mark.parametrize(
    "sigma, early",
    [
        pytest.param(20, 2, id="a good line, -64 dB"),
        pytest.param(60, 3, id="comfort noise, -55 dB"),
        pytest.param(200, 4, id="a noisy line, -44 dB"),
        pytest.param(500, 8, id="a street, -36 dB"),
    ],
)
async def test_noise_of_a_line_is_not_a_voice(sigma: float, early: int) -> None:
    """The end of a word that the noise covers is not found; what is found is never later than the speech."""
    speech = [*[0] * 3 * BYTES_PER_SECOND, *SPEECH, *[0] * 2 * BYTES_PER_SECOND]
    line = Line()
    began = line.loop.time()
    await line.play(mixed(speech, noise(len(speech) / BYTES_PER_SECOND, sigma)))
    voiced_at = line.voice.last_voiced()
    assert voiced_at is not None
    missed = last_spoken_frame(speech) - (round((voiced_at - began) / FRAME) - 1)
    assert -2 <= missed <= early


@pytest.mark.parametrize("sigma", [0, 20, 60, 90])
async def test_silent_line_has_no_voice(sigma: float) -> None:
    line = Line()
    await line.play(mulaw(noise(10.0, sigma)))
    assert line.voice.last_voiced() is None


async def test_caller_on_hold_is_heard_all_the_time() -> None:
    """Music has no end that could be the end of speech: the tracker counts from the engine's report then."""
    line = Line()
    chords = [tones(0.5, *chord) for chord in ((262, 330, 392), (294, 349, 440), (247, 311, 370), (262, 330, 392))]
    end = await line.play(mulaw(sample for _ in range(4) for chord in chords for sample in chord))
    assert line.voice.last_voiced() == pytest.approx(end, abs=FRAME)


async def test_click_is_not_a_voice() -> None:
    line = Line()
    await line.play(SILENCE_FRAME * 50 + b"\x80" + SILENCE_FRAME[1:] + SILENCE_FRAME * 50)
    assert line.voice.last_voiced() is None


@pytest.mark.parametrize("reported_after", [0.1, 0.25])
async def test_tone_of_a_key_is_not_a_voice(reported_after: float) -> None:
    """Carriers report the key during its tone of 0.15 s or after it."""
    line = Line()
    await line.play(SILENCE_FRAME * 50 + mulaw(SPEECH) + SILENCE_FRAME * 50)
    spoken = line.voice.last_voiced()
    pressed = mulaw(tones(0.15, 770, 1336)) + SILENCE_FRAME * 10
    reported = int(reported_after * BYTES_PER_SECOND)
    await line.play(pressed[:reported])
    line.voice.key_pressed(line.loop.time())
    await line.play(pressed[reported:] + SILENCE_FRAME * 10)
    assert line.voice.last_voiced() == spoken


async def test_key_without_a_tone_leaves_the_voice() -> None:
    line = Line()
    await line.play(SILENCE_FRAME * 50 + mulaw(SPEECH) + SILENCE_FRAME * 50)
    spoken = line.voice.last_voiced()
    line.voice.key_pressed(line.loop.time())
    assert line.voice.last_voiced() == spoken is not None


async def test_pause_of_the_carrier_does_not_move_the_frame() -> None:
    """Some carriers send nothing in silence: each frame counts when it came."""
    line = Line()
    await line.play(SILENCE_FRAME * 50)
    end = await line.play(mulaw(tones(1.0, 200)))
    await asyncio.sleep(2.0)
    await line.play(SILENCE_FRAME * 3)
    assert line.voice.last_voiced() == pytest.approx(end, abs=FRAME)


# The way of a frame


async def test_frames_go_where_they_are_sent() -> None:
    """Until the engine connection is there, they are dropped."""
    audio, taken = IncomingAudio(CallMonitor()), list[bytes]()
    audio.pass_on(FIRST)
    audio.send = taken.append
    audio.pass_on(SECOND)
    assert (taken, audio.last_frame) == ([SECOND], SECOND)
    assert [*audio.frames] == [FIRST, SECOND]
    assert len(audio.times) == 2


async def test_listeners_hear_frames_that_nothing_takes() -> None:
    monitor = CallMonitor()
    audio = IncomingAudio(monitor)
    with monitor.tapped() as tap:
        audio.pass_on(FIRST)
    audio.pass_on(SECOND)
    assert tap.take(160)[0] == FIRST
    assert tap.take(160)[0] != SECOND
