import pytest

from gateway.finalization.summary.passing import is_passing
from gateway.memory.facts import CallerFact
from gateway.text.plain_text import SpokenLine


def passing(text, *said):
    fact = CallerFact(text, "identity", 0.9, tuple(range(len(said))))
    return is_passing(fact, [SpokenLine("caller", line) for line in said])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Prefers late tables", "Do you have a late table on Friday?"),
        ("Asked about parking", "I was wondering where to park."),
        ("Has a weak signal", "The signal is terrible out here."),
        ("Needs a minute", "Hold on, I need a minute."),
        ("Ruft gleich an", "Ich verstehe Sie nicht, ich rufe gleich noch mal an."),
        ("Quiere mesa", "¿Tienen una mesa para dos personas?"),
        ("Rappelle", "Je vous entends mal, je rappelle plus tard."),
    ],
)
def test_question_or_remark_leaves_no_fact(text, said):
    assert passing(text, said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Lives in Leeds", "I live in Leeds, up on the hill."),
        ("Prefers mornings", "Do you have a slot? I prefer mornings if possible."),
        ("Is called Ana", "Ana."),
    ],
)
def test_statement_stays(text, said):
    assert not passing(text, said)
