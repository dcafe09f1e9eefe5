"""Which audio of the caller another engine gets."""

from gateway.calls.turn_audio import TurnAudio
from gateway.engines.interface import AgentSaid, TurnEnded, UserSaid, UserStartedSpeaking


def audio(*frames: bytes) -> TurnAudio:
    turn = TurnAudio(longest=10, before_speech=2)
    for frame in frames:
        turn.append(frame)
    return turn


def test_speech_without_text_is_kept_with_its_beginning() -> None:
    turn = audio(b"1", b"2", b"3", b"4")
    turn.observe(UserStartedSpeaking())
    turn.append(b"5")
    turn.observe(TurnEnded())
    turn.observe(AgentSaid("One moment."))
    assert b"".join(turn) == b"345"


def test_text_ends_a_turn() -> None:
    turn = audio(b"1", b"2")
    turn.observe(UserStartedSpeaking())
    turn.observe(TurnEnded())
    turn.observe(UserSaid("Hello."))
    assert list(turn) == []


def test_audio_that_the_engine_reported_nothing_about_is_kept() -> None:
    turn = audio(b"1", b"2", b"3", b"4")
    assert b"".join(turn) == b"1234"
    turn.observe(AgentSaid("Hello."))  # it works, and heard no speech
    assert b"".join(turn) == b"34"


def test_late_text_of_an_earlier_turn_leaves_the_present_one() -> None:
    turn = audio(b"1", b"2")
    turn.observe(UserStartedSpeaking())
    turn.observe(TurnEnded("a"))
    for frame in (b"3", b"4", b"5"):
        turn.append(frame)
    turn.observe(UserStartedSpeaking())
    turn.append(b"6")
    turn.observe(UserSaid("Hello.", "a"))
    assert b"".join(turn) == b"456"
    turn.observe(AgentSaid("Hello."))
    assert b"".join(turn) == b"456"
    turn.observe(TurnEnded("b"))
    turn.observe(UserSaid("Bye.", "b"))
    assert list(turn) == []


def test_audio_of_an_earlier_session_may_be_speech() -> None:
    turn = audio(b"1", b"2", b"3")
    turn.replayed()
    turn.observe(AgentSaid("Sorry."))
    assert b"".join(turn) == b"123"
    turn.new_session()
    assert list(turn) == []


def test_the_newest_audio_is_kept() -> None:
    assert len(list(audio(*[b"x"] * 20))) == 10
