import sys

import numpy as np
import pytest

from gateway.audio import SILENCE_FRAME
from gateway.errors import SettingsError
from gateway.simulate.audio_device import AudioDevice, open_audio_device
from gateway.speech.samples import encode

LOUD = np.full((160, 1), 0.5, np.float32)


def exchanged(phone, recorded):
    played = np.ones((160, 1), np.float32)
    phone.exchange(recorded, played, 160, None, None)
    return played[:, 0]


def test_sound_goes_both_ways():
    phone = AudioDevice()
    phone.listen(encode(LOUD[:, 0]))
    assert exchanged(phone, LOUD) == pytest.approx(0.5, abs=0.02)
    assert phone.speak() == encode(LOUD[:, 0])


def test_nothing_is_silence():
    phone = AudioDevice()
    assert phone.speak() == SILENCE_FRAME
    assert not exchanged(phone, LOUD).any()


def test_a_stalled_side_loses_the_oldest():
    phone = AudioDevice()
    for number in range(15):
        phone.listen(bytes([number]) * 160)
    assert (exchanged(phone, LOUD) == exchanged(AudioDevice(), LOUD)).sum() < 160
    assert phone._heard.qsize() == 9


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    expected = (
        "no microphone can be used here: the package sounddevice is missing; use --in FILE.wav and --out FILE.wav"
    )
    with pytest.raises(SettingsError) as raised, open_audio_device():
        pass
    assert str(raised.value) == expected
