import numpy as np
import pytest

from gateway.speech.samples import RATE, decode, encode
from gateway.speech.stt_stream import DtmfFilter

ROWS, COLUMNS = (697, 770, 852, 941), (1209, 1336, 1477, 1633)
AT = np.arange(256) / RATE


def wave(*frequencies, level=0.2):
    sound = sum(level * np.sin(2 * np.pi * hertz * AT + hertz) for hertz in frequencies)
    return decode(encode(np.asarray(sound, np.float32)))


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("column", COLUMNS)
def test_every_key_is_a_tone(row, column):
    dtmf_filter = DtmfFilter(256)
    assert dtmf_filter.is_tone(wave(row, column))
    assert dtmf_filter.is_tone(wave(row * 1.015, column * 0.985, level=0.05))


@pytest.mark.parametrize("frequencies", [(697,), (1336,), (697, 770), (440, 480), (200, 400, 600, 770, 1336)])
def test_other_tones_are_not_keys(frequencies):
    assert not DtmfFilter(256).is_tone(wave(*frequencies))


def test_noise_and_silence_are_not_keys():
    dtmf_filter = DtmfFilter(256)
    noise = np.random.default_rng(1).normal(0, 0.1, (200, 256)).astype(np.float32)
    assert not any(dtmf_filter.is_tone(frame) for frame in noise)
    assert not dtmf_filter.is_tone(np.zeros(256, np.float32))
