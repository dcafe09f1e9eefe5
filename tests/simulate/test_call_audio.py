import contextlib
import sys
import types
import wave

import numpy as np
import pytest

from gateway.audio import SILENCE_FRAME
from gateway.errors import SettingsError
from gateway.simulate.call_audio import (
    AudioDevice,
    check_place,
    open_audio_device,
    open_loudspeaker,
    read_wav,
    write_wav,
)
from gateway.speech.samples import decode, encode


def tone(rate, seconds=0.5):
    return 0.5 * np.sin(2 * np.pi * 500 * np.arange(int(rate * seconds)) / rate)


def written(path, rate, width=2, channels=1):
    scale = {1: 127, 2: 32767, 4: 2147483647}[width]
    values = np.repeat(tone(rate) * scale, channels) + (128 if width == 1 else 0)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(values.astype({1: "u1", 2: "<i2", 4: "<i4"}[width]).tobytes())
    return path


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 24000, 44100, 48000])
def test_any_rate_becomes_the_telephones(tmp_path, rate):
    sound = decode(read_wav(written(tmp_path / "in.wav", rate)))
    assert len(sound) == pytest.approx(4000, abs=2)
    assert np.abs(sound[200:-200] - tone(8000)[: len(sound)][200:-200]).max() < 0.03


@pytest.mark.parametrize("width, channels", [(1, 1), (2, 2), (4, 1)])
def test_any_width_and_channels(tmp_path, width, channels):
    sound = decode(read_wav(written(tmp_path / "in.wav", 8000, width, channels)))
    assert np.abs(sound - tone(8000)).max() < 0.03


def test_what_was_heard_can_be_read_again(tmp_path):
    heard = encode(tone(8000).astype(np.float32))
    write_wav(tmp_path / "out.wav", heard)
    assert read_wav(tmp_path / "out.wav") == heard


def test_mistakes_get_one_line(tmp_path):
    with pytest.raises(SettingsError, match="can't be read: No such file or directory; give a WAV file"):
        read_wav(tmp_path / "missing.wav")
    (tmp_path / "text.wav").write_text("not a sound")
    with pytest.raises(SettingsError, match="text.wav can't be read: file does not start with RIFF id"):
        read_wav(tmp_path / "text.wav")
    (tmp_path / "empty.wav").write_bytes(b"")
    with pytest.raises(SettingsError, match="empty.wav can't be read: it is empty"):
        read_wav(tmp_path / "empty.wav")
    with pytest.raises(SettingsError, match="can't be written: No such file or directory"):
        write_wav(tmp_path / "no" / "out.wav", b"\xff")


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_a_file_without_sound_is_refused(tmp_path, rate):
    with wave.open(str(tmp_path / "in.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
    with pytest.raises(SettingsError, match="in.wav holds no audio"):
        read_wav(tmp_path / "in.wav")


def test_a_file_that_was_cut_off_is_read_so_far(tmp_path):
    path = written(tmp_path / "in.wav", 8000, channels=2)
    path.write_bytes(path.read_bytes()[:-7])
    assert len(read_wav(path)) == 3998


def test_a_place_that_cannot_be_written_is_told_before(tmp_path):
    check_place(tmp_path / "out.wav")
    for place in (tmp_path, tmp_path / "no" / "out.wav"):
        with pytest.raises(SettingsError, match="can't be written; choose a folder that you can write to"):
            check_place(place)


def test_24_bits_are_read(tmp_path):
    values = np.round(tone(8000) * 8388607).astype("<i4")
    with wave.open(str(tmp_path / "in.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(3)
        file.setframerate(8000)
        file.writeframes(values.view("u1").reshape(-1, 4)[:, :3].tobytes())
    assert np.abs(decode(read_wav(tmp_path / "in.wav")) - tone(8000)).max() < 0.03


# Microphone and loudspeaker

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
    assert len(phone._heard) == 9


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    expected = (
        "no microphone can be used here: the package sounddevice is missing; "
        "run: scripts/install --no-dev --extra local; or use --in FILE.wav and --out FILE.wav"
    )
    with pytest.raises(SettingsError) as raised, open_audio_device():
        pass
    assert str(raised.value) == expected


# The loudspeaker

PLAYER = """#!/bin/sh
echo "$*" >"{0}/arguments"
exec {1}/cat >"{0}/played"
"""


@pytest.fixture
def players(tmp_path, monkeypatch):
    """A machine without PortAudio, and with these players."""
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    monkeypatch.setenv("PATH", str(tmp_path))

    def provide(name, script):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)

    return provide


def test_player_gets_what_is_played(players, tmp_path):
    players("aplay", PLAYER.format(tmp_path, "/bin"))
    with open_loudspeaker() as loudspeaker:
        for number in range(3):
            loudspeaker.play(bytes([number + 1]) * 640)
    assert (tmp_path / "arguments").read_text() == "-q -t raw -f S16_LE -r 8000 -c 2\n"
    head_start, played = (tmp_path / "played").read_bytes()[:6400], (tmp_path / "played").read_bytes()[6400:]
    assert head_start == bytes(6400)
    assert played == b"\1" * 640 + b"\2" * 640 + b"\3" * 640


def test_player_without_a_sound_card_is_not_used(players, tmp_path):
    players("aplay", "#!/bin/sh\nexit 1\n")
    with pytest.raises(SettingsError, match="no loudspeaker can be used here: .*(missing; run: |; connect one)"):
        with open_loudspeaker():
            pass
    players("paplay", PLAYER.format(tmp_path, "/bin"))
    with open_loudspeaker():
        pass
    assert "--rate=8000" in (tmp_path / "arguments").read_text()


def test_player_that_dies_stops_nothing(players):
    players("aplay", "#!/bin/sh\nexec /bin/sleep 0.4\n")
    with open_loudspeaker() as loudspeaker:
        for _ in range(100):
            loudspeaker.play(bytes(64_000))


def test_device_that_is_unplugged_ends_the_sound_alone(monkeypatch):
    """PortAudio's error must not print a traceback beside the demo's text."""

    class PortAudioError(Exception):
        pass

    class UnpluggedStream(contextlib.nullcontext):
        def __init__(self, **options):
            super().__init__(self)

        def write(self, audio):
            raise PortAudioError("device unavailable")

    module = types.SimpleNamespace(RawOutputStream=UnpluggedStream, PortAudioError=PortAudioError)
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    with open_loudspeaker() as loudspeaker:
        loudspeaker.play(bytes(640))
