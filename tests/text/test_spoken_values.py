"""Values in spoken sentences, and corrections in the same breath."""

import pytest

from gateway.text.spoken_values import outcome_language, spoken_language

ENGLISH = outcome_language("en")


def found(text, language="en"):
    return [(value.kind, value.text) for value in outcome_language(language).values(text)]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("A table for 4 at Lucca on Friday", [("count", "table for 4"), ("name", "Lucca"), ("weekday", "Friday")]),
        ("half past 3 in the afternoon", [("time", "half past 3 in the afternoon")]),
        ("the 3rd of March for two nights", [("date", "the 3rd of March"), ("count", "two nights")]),
        ("with Dr. Maya J. Osei at 10:15 am", [("name", "Dr. Maya J. Osei"), ("time", "10:15 am")]),
        ("ninety eight dollars to 14 Elm Grove", [("money", "ninety eight dollars"), ("name", "14 Elm Grove")]),
        ("my claim is NG 771 204", [("code", "NG 771 204")]),
        ("on Thursday the twelfth, around ten", [("weekday", "Thursday"), ("date", "the twelfth"), ("time", "ten")]),
        ("Make it eleven thirty.", [("time", "eleven thirty")]),
        ("on the second floor", []),
        ("the tag is BX 5 5 2 0 9 1", [("code", "BX 5 5 2 0 9 1")]),
        ("Call me back tomorrow.", [("day", "tomorrow")]),
        ("I'm fine, thank you", []),
        ("We'll see, Okay?", []),
    ],
)
def test_values_are_found(text, values):
    assert found(text) == values


@pytest.mark.parametrize(
    ("language", "text", "values"),
    [
        ("de", "am Donnerstag um 14 Uhr", [("weekday", "Donnerstag"), ("time", "14 Uhr")]),
        (
            "es",
            "el martes a las 11, son 80 euros",
            [("weekday", "el martes"), ("time", "a las 11"), ("money", "80 euros")],
        ),
        ("fr", "samedi à 18 heures 30", [("weekday", "samedi"), ("time", "18 heures 30")]),
    ],
)
def test_other_languages_have_values(language, text, values):
    assert found(text, language) == values


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("at 10:45", "10:45 am", True),
        ("half past 3 in the afternoon", "15:30", True),
        ("8 am", "8 pm", False),
        ("quarter to five", "4:45", True),
        ("at ten past one", "1:10", True),
        ("at twenty to one", "12:40", True),
        ("at two thirty", "2:30", True),
        ("the 9th", "March 9th", True),
        ("$65", "65 dollars", True),
        ("at the Lucca", "at Lucca", True),
    ],
)
def test_other_spellings_are_equal(first, second, same):
    (one,), (other,) = ENGLISH.values(f"it is {first}"), ENGLISH.values(f"it is {second}")
    assert one.equals(other) is same


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("on Tuesday, no, Wednesday", "on Wednesday"),
        ("a table at 12:15 pm, no wait, sorry, 7:30 in the evening", "a table at 7:30 in the evening"),
        ("I will leave on 6th of March, uh, no, the 11th", "I will leave on the 11th of March"),
        ("from Mexico City, no wait, sorry, Atlanta", "from Atlanta"),
        ("sizes 43 and 39, sorry, 38", "sizes 43 and 38"),
        ("um, it's it's four four seven one", "it's four four seven one"),
        ("No, I want Friday", "No, I want Friday"),
    ],
)
def test_corrections_are_resolved(said, meant):
    assert ENGLISH.cleaned(said) == meant


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        ("table for four", "six people", "table for six people"),
        ("four people", "six people", "six people"),
        ("BX 5 5 2 0 9 1", "5 5 2 0 9 7", "BX 5 5 2 0 9 7"),
        ("Friday", "Monday", "Monday"),
        ("the 4th of March", "the fifth", "the fifth of March"),
    ],
)
def test_a_value_takes_the_place_of_another(old, new, result):
    assert ENGLISH.in_place_of(old, new) == result


def test_language_is_recognised_by_its_words():
    assert spoken_language(["Ich möchte den Termin am Freitag nicht"]) is outcome_language("de")
    assert spoken_language([]) is ENGLISH
