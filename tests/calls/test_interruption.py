import pytest

from gateway.agents import Agent
from gateway.calls.interruption import WORDS_SECONDS, InterruptionPolicy, TurnEffect


def policy(interrupt: str, language: str = "en") -> InterruptionPolicy:
    return InterruptionPolicy(Agent("maya", "You are Maya.", interrupt=interrupt, language=language))


def said(policy: InterruptionPolicy, text: str, *, audible: bool = True, asks: bool = False) -> TurnEffect:
    return policy.caller_said(text, agent_audible=audible, agent_asks=asks)


@pytest.mark.parametrize(
    ("interrupt", "audible", "cut"),
    [
        ("at_once", True, True),
        ("at_once", False, True),
        ("words", True, False),
        ("words", False, True),
        ("never", True, False),
        ("never", False, True),
    ],
)
def test_start_of_speech(interrupt, audible, cut):
    assert policy(interrupt).caller_starts(agent_audible=audible) is cut


@pytest.mark.parametrize(
    ("interrupt", "text", "effect"),
    [
        ("words", "Hold on, not Friday.", TurnEffect.CUT_OFF),
        ("words", "Stop.", TurnEffect.CUT_OFF),
        ("words", "Yeah, right.", TurnEffect.NONE),
        ("never", "Hold on, not Friday.", TurnEffect.ANSWER),
        ("never", "Uh-huh.", TurnEffect.NONE),
        ("at_once", "Uh-huh.", TurnEffect.ANSWER),
    ],
)
def test_turn_while_the_agent_speaks(interrupt, text, effect):
    line = policy(interrupt)
    line.caller_starts(agent_audible=True)
    assert said(line, text) is effect


@pytest.mark.parametrize("interrupt", ["words", "never"])
def test_turn_after_the_agent_is_answered(interrupt):
    line = policy(interrupt)
    line.caller_starts(agent_audible=False)
    assert said(line, "Okay.") is TurnEffect.ANSWER
    line.caller_starts(agent_audible=True)
    assert said(line, "Okay.", audible=False) is TurnEffect.ANSWER  # the agent has finished by now


def test_yes_to_a_question_is_an_answer():
    line = policy("words")
    line.caller_starts(agent_audible=True)
    assert said(line, "Yes.", asks=True) is TurnEffect.CUT_OFF


def test_backchannels_are_those_of_the_agents_language():
    line = policy("words", "de")
    line.caller_starts(agent_audible=True)
    assert said(line, "Jawohl, alles klar.") is TurnEffect.NONE
    line.caller_starts(agent_audible=True)
    assert said(line, "Très bien.") is TurnEffect.CUT_OFF


@pytest.mark.parametrize(("interrupt", "cut"), [("words", True), ("never", False)])
def test_long_speech_counts_as_words(interrupt, cut):
    line = policy(interrupt)
    line.caller_starts(agent_audible=True)
    ticks = [line.caller_goes_on(0.1 * tick) for tick in range(1, round(WORDS_SECONDS * 10) + 2)]
    assert any(ticks) is cut
    assert not any(ticks[:8])  # a backchannel is shorter


def test_long_speech_to_a_silent_agent_cuts_nothing():
    line = policy("words")
    line.caller_starts(agent_audible=False)
    assert not any(line.caller_goes_on(0.1 * tick) for tick in range(30))


def test_new_engine_session_forgets_the_turn():
    line = policy("words")
    line.caller_starts(agent_audible=True)
    line.reset()
    assert said(line, "Okay.") is TurnEffect.ANSWER
