import numpy as np
import pytest

from gateway.speech.noise_reduction import reduce_noise
from gateway.speech.samples import RATE

NOISE = np.random.default_rng(1).normal(0, 0.05, 2 * RATE).astype(np.float32)
TONE = (np.sin(np.arange(2 * RATE) * 2 * np.pi * 440 / RATE) * 0.5).astype(np.float32)
BURSTS = np.where(np.arange(2 * RATE) // 1600 % 2, TONE, 0).astype(np.float32)
"""A tone with pauses, as speech has them."""


def loudness(samples):
    return float(np.sqrt(np.mean(np.square(samples))))


def test_noise_becomes_quieter():
    assert loudness(reduce_noise(NOISE)) < 0.65 * loudness(NOISE)


def test_sound_with_pauses_keeps_its_level_and_place():
    heard = reduce_noise(BURSTS + NOISE)
    assert loudness(heard[2000:2800]) == pytest.approx(loudness(TONE), rel=0.1)
    assert loudness(heard[400:1200]) < 0.65 * loudness(NOISE)
    assert float(np.corrcoef(heard[2000:2800], TONE[2000:2800])[0, 1]) > 0.99


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 256, 4001])
def test_every_length_is_kept(length):
    heard = reduce_noise(NOISE[:length])
    assert (len(heard), heard.dtype) == (length, np.float32)


def test_silence_stays_silent():
    assert not reduce_noise(np.zeros(RATE, np.float32)).any()


def test_quiet_line_is_left_as_it_is():
    heard = reduce_noise(BURSTS + NOISE * 0.02)
    assert (heard == (BURSTS + NOISE * 0.02).astype(np.float32)).all()
