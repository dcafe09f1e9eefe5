import numpy as np
import pytest

from gateway.speech.samples import RATE, decode, downsample, encode, trim, upsample


def tone(hertz, seconds=0.5, rate=RATE):
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def level(samples):
    middle = samples[len(samples) // 4 : -len(samples) // 4]
    return float(np.sqrt(np.mean(middle**2)))


def test_every_byte_survives_the_round_trip():
    every = bytes(range(256))
    assert encode(decode(every)).replace(b"\x7f", b"\xff") == every.replace(b"\x7f", b"\xff")  # zero has two signs


def test_loud_samples_are_clipped():
    assert encode(np.array([9.0, -9.0], np.float32)) == b"\x80\x00"


@pytest.mark.parametrize("ratio", [2, 3])
def test_speech_band_survives_another_rate(ratio):
    wide = upsample(tone(1000), ratio)
    assert len(wide) == ratio * len(tone(1000))
    assert level(wide) == pytest.approx(level(tone(1000)), rel=0.02)
    assert level(downsample(tone(1000, rate=ratio * RATE), ratio)) == pytest.approx(level(tone(1000)), rel=0.02)


def test_frequencies_above_the_telephone_band_are_removed():
    assert level(downsample(tone(6000, rate=3 * RATE), 3)) < 0.001


def test_silence_at_the_ends_is_shortened():
    silence = np.zeros(RATE, np.float32)
    cut = trim(np.concatenate([silence, tone(500), silence]), before=0.1, after=0.2)
    assert len(cut) / RATE == pytest.approx(0.5 + 0.1 + 0.2, abs=0.01)
    assert len(trim(silence, before=0.1, after=0.2)) == 0
