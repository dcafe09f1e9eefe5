from gateway.audio import SILENCE_FRAME
from gateway.simulate.playout import SoftphonePlayout

FRAME = b"\x01" * 160


def test_sound_is_played_frame_by_frame():
    ear = SoftphonePlayout()
    ear.sound(FRAME + FRAME[:80])
    ear.sound(FRAME)
    assert [ear.take()[0] for _ in range(4)] == [FRAME, FRAME, FRAME[:80] + SILENCE_FRAME[:80], SILENCE_FRAME]
    assert not ear.is_playing


def test_a_mark_is_reached_with_the_sound_before_it():
    ear = SoftphonePlayout()
    ear.sound(FRAME * 2)
    ear.mark("m1")
    ear.sound(FRAME)
    ear.mark("m2")
    assert [ear.take()[1] for _ in range(4)] == [[], ["m1"], ["m2"], []]


def test_a_mark_behind_nothing_is_reached_at_once():
    ear = SoftphonePlayout()
    ear.mark("m1")
    assert ear.take() == (SILENCE_FRAME, ["m1"])


def test_clear_drops_sound_and_tells_its_marks():
    ear = SoftphonePlayout()
    ear.sound(FRAME * 9)
    ear.mark("m1")
    ear.take()
    assert ear.clear() == ["m1"]
    assert ear.take() == (SILENCE_FRAME, [])
