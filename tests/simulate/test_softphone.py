"""The softphone's play-out queue."""

from gateway.audio import SILENCE_FRAME
from gateway.simulate.softphone import SoftphonePlayout

FRAME = b"\x01" * 160


def test_audio_is_played_frame_by_frame():
    playout = SoftphonePlayout()
    playout.add_audio(FRAME + FRAME[:80])
    playout.add_audio(FRAME)
    assert [playout.take()[0] for _ in range(4)] == [FRAME, FRAME, FRAME[:80] + SILENCE_FRAME[:80], SILENCE_FRAME]
    assert not playout.is_playing


def test_a_mark_is_reached_with_the_audio_before_it():
    playout = SoftphonePlayout()
    playout.add_audio(FRAME * 2)
    playout.add_mark("m1")
    playout.add_audio(FRAME)
    playout.add_mark("m2")
    assert [playout.take()[1] for _ in range(4)] == [[], ["m1"], ["m2"], []]


def test_a_mark_behind_nothing_is_reached_at_once():
    playout = SoftphonePlayout()
    playout.add_mark("m1")
    assert playout.take() == (SILENCE_FRAME, ["m1"])


def test_clear_drops_audio_and_returns_its_marks():
    playout = SoftphonePlayout()
    playout.add_audio(FRAME * 9)
    playout.add_mark("m1")
    playout.take()
    assert playout.clear() == ["m1"]
    assert playout.take() == (SILENCE_FRAME, [])
