from gateway.audio import SILENCE_FRAME
from gateway.simulate.playout import SoftphonePlayout

FRAME = b"\x01" * 160


def test_sound_is_played_frame_by_frame():
    stt_stream = SoftphonePlayout()
    stt_stream.sound(FRAME + FRAME[:80])
    stt_stream.sound(FRAME)
    assert [stt_stream.take()[0] for _ in range(4)] == [FRAME, FRAME, FRAME[:80] + SILENCE_FRAME[:80], SILENCE_FRAME]
    assert not stt_stream.is_playing


def test_a_mark_is_reached_with_the_sound_before_it():
    stt_stream = SoftphonePlayout()
    stt_stream.sound(FRAME * 2)
    stt_stream.mark("m1")
    stt_stream.sound(FRAME)
    stt_stream.mark("m2")
    assert [stt_stream.take()[1] for _ in range(4)] == [[], ["m1"], ["m2"], []]


def test_a_mark_behind_nothing_is_reached_at_once():
    stt_stream = SoftphonePlayout()
    stt_stream.mark("m1")
    assert stt_stream.take() == (SILENCE_FRAME, ["m1"])


def test_clear_drops_sound_and_tells_its_marks():
    stt_stream = SoftphonePlayout()
    stt_stream.sound(FRAME * 9)
    stt_stream.mark("m1")
    stt_stream.take()
    assert stt_stream.clear() == ["m1"]
    assert stt_stream.take() == (SILENCE_FRAME, [])
