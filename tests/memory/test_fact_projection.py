import pytest

from gateway.memory.fact_projection import FactState, Statement, project
from gateway.memory.fact_relations import StatementReading


def statements(*entries):
    """Statements of one call each, as (text, confidence)."""
    return [
        Statement(
            (f"s{number}", 0), f"2026-02-0{number + 1}", confidence, (1,), StatementReading.of(text, "preference")
        )
        for number, (text, confidence) in enumerate(entries)
    ]


def ops(*entries):
    return [(step.op, step.fact.source_id) for step in project(statements(*entries))[1]]


def test_nothing_said_is_nothing_known():
    assert project([]) == ([], [])


@pytest.mark.parametrize(
    ("first", "second", "both"), [(0.5, 0.5, 0.75), (0.9, 0.8, 0.98), (0.9, 0.99, 0.99), (1, 1, 1)]
)
def test_repeat_strengthens(first, second, both):
    (fact,), (_, step) = project(statements(("Prefers tea", first), ("Prefers tea", second)))
    assert (fact.confidence, fact.last_said_at) == (both, "2026-02-02")
    assert (step.before, step.after) == (FactState("Prefers tea", first), FactState("Prefers tea", both))


def test_contradiction_keeps_both_in_sight():
    (old, new), _ = project(statements(("Prefers mornings", 0.9), ("Prefers evenings", 0.6)))
    assert old.superseded_by is new and new.superseded_by is None
    assert new.instead_of == "Prefers mornings"


def test_correction_does_not_name_the_error():
    (old, new), _ = project(statements(("Is called Anne", 0.9), ("Is called Ana", 0.9)))
    assert old.superseded_by is new
    assert new.instead_of == ""


def test_superseded_fact_is_not_strengthened():
    back_and_forth = [("Prefers mornings", 0.9), ("Prefers evenings", 0.9), ("Prefers mornings", 0.9)]
    assert ops(*back_and_forth) == [("add", "s0#fact-0"), ("supersede", "s1#fact-0"), ("supersede", "s2#fact-0")]


def test_repeat_is_looked_for_before_opposites():
    """Two facts that stand side by side: the new one says one of them again, and the other not."""
    entries = [("Has two bikes", 0.9), ("Has two red bikes", 0.9), ("Has three old cars", 0.9), ("Has two bikes", 0.9)]
    assert ops(*entries)[-1] == ("strengthen", "s0#fact-0")


def test_refinement_extends_the_fact_it_details():
    (fact,), (_, step) = project(statements(("Has a parrot", 0.8), ("Has a parrot called Coco", 0.9)))
    assert fact.source_id == "s0#fact-0" and fact.state == FactState("Has a parrot called Coco", 0.98)
    assert (step.op, step.before) == ("strengthen", FactState("Has a parrot", 0.8))


def test_correction_replaces_every_fact_that_it_excludes():
    entries = [("Has locker 5 in Leeds", 0.9), ("Has locker 7", 0.9), ("Has locker 9", 0.9)]
    assert [fact.state.text for fact in project(statements(*entries))[0] if not fact.superseded_by] == ["Has locker 9"]


def test_last_word_of_one_call_stays():
    entries = [("Lives in Leeds", 0.9), ("Lives in York", 0.9), ("Lives in Hull", 0.9)]
    assert [fact.state.text for fact in project(statements(*entries))[0] if not fact.superseded_by] == ["Lives in Hull"]
