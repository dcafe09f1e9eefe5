"""The circuit breaker of an engine, the order in which a call tries its engines, and the audio that the next gets."""

from typing import Any, cast

from gateway.engines.failover import BACK_OFF, BreakerState, EngineChain, GuardedEngine, TurnAudio
from gateway.engines.interface import AgentSaid, TurnEnded, UserSaid, UserStartedSpeaking, VoiceEngine
from gateway.errors import EngineRefused, EngineUnavailable

LOST = EngineUnavailable("the engine closed the connection")


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


def guarded(name: str = "first") -> GuardedEngine:
    return GuardedEngine(cast(VoiceEngine, Named(name)))


def chain_of(*names: str) -> tuple[EngineChain, list[GuardedEngine]]:
    engines = [guarded(name) for name in names]
    return EngineChain(engines), engines


# The circuit breaker


def test_failed_engine_is_avoided_for_a_while() -> None:
    engine = guarded()
    assert engine.failed(LOST, 100)
    assert not engine.admits(100 + BACK_OFF[0] - 0.1)
    assert engine.admits(100 + BACK_OFF[0])
    assert engine.health(101) == {"state": "failing", "problem": "the engine closed the connection", "retry_in": 4}


def test_one_outage_counts_once() -> None:
    engine = guarded()
    assert [engine.failed(LOST, 100) for _ in range(50)] == [True] + 49 * [False]
    assert engine.retry_at == 100 + BACK_OFF[0]


def test_one_call_at_a_time_tries_again() -> None:
    engine = guarded()
    engine.failed(LOST, 100)
    engine.connecting(106)
    assert engine.state is BreakerState.HALF_OPEN
    assert not engine.admits(106)
    assert engine.admits(106 + BACK_OFF[0])  # the trial brought no result


def test_pauses_grow_up_to_the_longest() -> None:
    engine, now, pauses = guarded(), 0.0, []
    for _ in range(len(BACK_OFF) + 1):
        engine.connecting(now)
        engine.failed(LOST, now)
        pauses.append(engine.retry_at - now)
        now = engine.retry_at
    assert pauses == [*BACK_OFF, BACK_OFF[-1]]


def test_ready_session_closes_the_breaker() -> None:
    engine = guarded()
    engine.failed(LOST, 100)
    engine.connecting(105)
    assert (engine.connected(), engine.connected()) == (True, False)
    assert engine.admits(105)
    assert engine.health(105) == {"state": "ok"}


def test_engine_that_fails_after_it_was_ready_is_avoided_longer() -> None:
    """As with a used-up quota, which is reported after the connection."""
    engine = guarded()
    engine.failed(LOST, 100)
    engine.connecting(105)
    engine.connected()
    engine.failed(LOST, 106)
    assert engine.retry_at == 106 + BACK_OFF[1]


def test_working_session_resets_the_pauses() -> None:
    engine = guarded()
    engine.failed(LOST, 100)
    engine.connected()
    engine.worked()
    engine.failed(LOST, 200)
    assert engine.retry_at == 200 + BACK_OFF[0]


# The chain


def test_engines_are_tried_in_order() -> None:
    chain, engines = chain_of("first", "second", "third")
    tried = []
    while not chain.is_exhausted:
        tried.append(chain.next(100))
        chain.failed(LOST, 100)
    assert tried == engines


def test_engine_that_failed_in_another_call_comes_last() -> None:
    chain, [first, second] = chain_of("first", "second")
    first.failed(LOST, 100)
    assert chain.next(101) is second
    chain.failed(LOST, 101)
    assert chain.next(101) is first


def test_engine_that_failed_longest_ago_is_tried_if_none_works() -> None:
    chain, [first, second] = chain_of("first", "second")
    second.failed(LOST, 100)
    first.failed(LOST, 102)
    assert chain.next(103) is second


def test_preferred_engine_is_used_again_after_its_pause() -> None:
    chain, [first, _] = chain_of("first", "second")
    first.failed(LOST, 100)
    assert chain.next(100 + BACK_OFF[0]) is first


def test_alternative_is_an_engine_that_may_be_tried() -> None:
    chain, [first, second] = chain_of("first", "second")
    assert chain.next(100) is first
    assert chain.has_alternative(100)
    second.failed(LOST, 100)
    assert not chain.has_alternative(101)
    assert chain.has_alternative(100 + BACK_OFF[0])


def test_alone_an_engine_has_no_alternative() -> None:
    chain, [only] = chain_of("only")
    for now in (100.0, 100.2):
        assert chain.next(now) is only
        assert not chain.has_alternative(now)
        chain.failed(LOST, now)
        assert chain.is_exhausted
        chain.start_over()


def test_refusals_count_if_all_engines_refuse() -> None:
    refused: Any = EngineRefused("the key is wrong")
    chain, _ = chain_of("first", "second")
    chain.next(100)
    chain.failed(refused, 100)
    assert not chain.all_refused
    chain.next(100)
    chain.failed(refused, 100)
    assert chain.all_refused
    chain.failed(LOST, 100)
    assert not chain.all_refused


# The audio for another engine


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
