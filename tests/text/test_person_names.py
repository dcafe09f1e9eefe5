"""Names as callers give them on the phone, including names that are in no data file."""

import pytest

from gateway.text.person_names import (
    NameMatch,
    PersonName,
    answered_name,
    compare,
    introduced_name,
    is_no_name,
    relation_to_known,
    resolve,
    spelled_name,
    without_spelling,
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Hi, my name is Oluwaseun Adebayo and I need a plumber.", "Oluwaseun Adebayo"),
        ("Dr. Kowalczyk here, good morning.", "Kowalczyk"),
        ("My name is Adrian Tait. I prefer the aisle.", "Adrian Tait"),
        ("This is Lorraine speaking.", "Lorraine"),
        ("hi this is sarah jones calling about my order", "sarah jones"),
        ("Hello, Ferreira speaking.", "Ferreira"),
        ("It's Priya again.", "Priya"),
        ("My name is Eva Byrne? No, Aoife.", "Aoife"),
        ("Hello, this is her son Tobias speaking.", "Tobias"),
        ("Ich heiße Jürgen von der Heide.", "Jürgen von der Heide"),
        ("Guten Tag, Krüger hier.", "Krüger"),
        ("Hier ist Frau Yıldız.", "Frau Yıldız"),
        ("Buenas, me llamo María José Ortiz.", "María José Ortiz"),
        ("Bonjour, c'est Jean-Luc à l'appareil.", "Jean-Luc"),
        ("Ici Madame Lefort, bonjour.", "Madame Lefort"),
    ],
)
def test_introduction_gives_the_name(text, name):
    found = introduced_name(text)
    assert found is not None and found.text == name


@pytest.mark.parametrize(
    "text",
    [
        "This is important, can you help?",
        "I'm Australian, actually.",
        "Can you call me Tuesday?",
        "Yeah, it's me again.",
        "Right here, thanks.",
        "I'm calling for my husband.",
        "We are speaking about the invoice again.",
        "Hier ist die Rechnung.",
        "Ich bin müde.",
        "Hola, soy yo otra vez.",
        "Soy de Madrid.",
        "Je suis Parisien.",
        "C'est urgent.",
    ],
)
def test_other_words_give_no_name(text):
    assert introduced_name(text) is None


@pytest.mark.parametrize(
    ("known", "given"),
    [
        ("Asim", "Azim"),
        ("Bill Carver", "William Carver"),
        ("Uschi", "Ursula"),
        ("Pepe Robles", "José Robles"),
        ("Manu", "Emmanuelle"),
        ("Anna Lopez", "Ana Lopes"),
        ("Yusuf Karim", "Yousef Kareem"),
        ("Linh Nguyen", "Lynn Winn"),
        ("Graham Whitfield", "Whitfield"),
        ("Sabine Brandt", "Frau Brandt"),
        ("Mr Pereira", "Duarte Pereira"),
        ("Christian Weber", "Chris"),
        ("Steven Hall", "Stephen Hall"),
    ],
)
def test_one_person_has_many_names(known, given):
    assert compare(PersonName.parse(known), PersonName.parse(given)) is NameMatch.SAME
    assert compare(PersonName.parse(given), PersonName.parse(known)) is NameMatch.SAME


@pytest.mark.parametrize(
    ("known", "given"),
    [
        ("Walter Quist", "Astrid Quist"),
        ("Erica Storm", "Eric Storm"),
        ("Paul", "Paula"),
        ("Peter", "Petra"),
        ("Mrs Adeyemi", "Mr Adeyemi"),
    ],
)
def test_relatives_are_other_people(known, given):
    assert compare(PersonName.parse(known), PersonName.parse(given)) is NameMatch.OTHER


@pytest.mark.parametrize(
    ("known", "given"), [("Tim", "Tom"), ("Ben", "Bonnie"), ("Raj", "Meera"), ("Anna Lopez", "Ina Lopovic")]
)
def test_unknown_name_alone_proves_nothing(known, given):
    assert compare(PersonName.parse(known), PersonName.parse(given)) is NameMatch.UNSURE


@pytest.mark.parametrize(
    "text",
    [
        "Hello, I'm his wife.",
        "My dad usually rings you.",
        "Mr Okoro speaking, her husband.",
        "My name is Eric Storm, Erica's father.",
        "I'm his neighbour, I've got his phone.",
        "Ich bin seine Tochter.",
        "Soy su mujer, me llamo Pilar.",
        "Je suis son mari.",
    ],
)
def test_caller_says_who_they_are_to_the_known_person(text):
    assert relation_to_known(text)


@pytest.mark.parametrize(
    "text",
    [
        "I want to book for my wife.",
        "It's my husband's birthday.",
        "Meine Frau kommt auch mit.",
        "Mi mujer también viene.",
        "Ma femme vient aussi.",
    ],
)
def test_mentioned_relatives_are_not_on_the_line(text):
    assert not relation_to_known(text)


def test_spelled_letters_are_a_name():
    assert spelled_name("That's T H A N D I. I prefer the blue yarn.") == "Thandi"
    assert spelled_name("B-Y-R-N-E") == "Byrne"
    assert spelled_name("it's ingrid solberg s o l b e r g") == "Solberg"
    assert spelled_name("I need a taxi.") == ""
    assert spelled_name("i i i need a taxi") == ""


def test_name_is_what_is_left_without_its_spelling():
    assert without_spelling("hannah okafor o k a f o r") == "hannah okafor"


def test_roles_are_no_names():
    assert is_no_name(PersonName.parse("the customer"))
    assert not is_no_name(PersonName.parse("Customer Ana"))


@pytest.mark.parametrize(
    ("known", "given", "is_relative", "name"),
    [
        ("Asim", "Azim", False, "Asim"),
        ("Pereira", "Duarte Pereira", False, "Duarte Pereira"),
        ("Raj", "Meera", False, "Raj"),
        ("Raj", "Meera", True, "Meera"),
        ("Walter Quist", "Astrid Quist", False, "Astrid Quist"),
        ("Anna Lopez", "", False, "Anna Lopez"),
        ("", "Anna", False, "Anna"),
    ],
)
def test_known_name_stays_unless_someone_else_calls(known, given, is_relative, name):
    assert resolve(known, given, is_relative=is_relative) == name


def test_relation_names_the_relative():
    assert relation_to_known("Hello, I'm his wife.") == "his wife"
    assert relation_to_known("My dad usually rings you.") == "someone else"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Peter Hall.", "Peter Hall"),
        ("It's Ngozi Eze", "Ngozi Eze"),
        ("Yes, that would be Marta.", "Marta"),
        ("Why do you need that?", None),
        ("I would rather not say, I just want to book a table", None),
    ],
)
def test_short_answer_is_a_name(text, name):
    found = answered_name(text)
    assert (found.text if found else None) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("My name is Brian Tait.", "Brian Tait"),
        ("Je m'appelle Alain.", "Alain"),
        ("Hi, I'm Diana.", "Diana"),
        ("Mr Haddad speaking.", "Mr Haddad"),
        ("This is Derek's daughter, Holly.", "Holly"),
        ("Soy la hija de Luis, Carla.", "Carla"),
        ("Mon conseiller chez vous, c'est Monsieur Garnier.", ""),
        ("I'm Australian.", ""),
        ("no i'm coming by car", ""),
        ("hi i'm irving", ""),
        ("my name is irving", "irving"),
        ("this is robert robert kim", "robert kim"),
        ("My name is admin", ""),
    ],
)
def test_name_in_an_introduction(text, name):
    found = introduced_name(text)
    assert (found.text if found else "") == name


@pytest.mark.parametrize(
    "text",
    [
        "This is Derek's daughter, Holly.",
        "Hello, it's Victor's assistant.",
        "Lorna's husband speaking.",
        "Hier ist der Sohn von Gerda.",
        "Soy la hija de Luis.",
        "Bonjour, c'est la mère de Romain.",
    ],
)
def test_relative_of_a_named_person(text):
    assert relation_to_known(text)


@pytest.mark.parametrize(
    ("known", "given", "match"),
    [
        ("Geoffrey Pryce", "Jeffrey Price", NameMatch.SAME),
        ("Caitlin Moore", "Kate Lynn Moore", NameMatch.SAME),
        ("Julian Marsh", "Juliana Marsh", NameMatch.OTHER),
        ("Mr Haddad", "Mrs Haddad", NameMatch.OTHER),
    ],
)
def test_names_compared(known, given, match):
    assert compare(PersonName.parse(known), PersonName.parse(given)) is match


@pytest.mark.parametrize("text", ["it's broken again", "hi, it's leaking again", "es ist kaputt hier"])
def test_state_of_a_thing_is_no_name(text):
    assert introduced_name(text) is None
