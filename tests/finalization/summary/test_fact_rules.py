import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.finalization.summary.fact_rules import extract
from gateway.memory.facts import CallerFact
from gateway.text.plain_text import SpokenLine


def texts(*said):
    return [fact.text for fact in extract([SpokenLine("caller", text) for text in said])]


@pytest.mark.parametrize(
    ("said", "text", "type_"),
    [
        ("Hi, my name is Ana Diaz.", "Is called Ana Diaz", "identity"),
        ("my name's María José O'Neill, hello", "Is called María José O'Neill", "identity"),
        ("my name is ana and I have a question", "Is called Ana", "identity"),
        ("This is Ana calling about my bike.", "Is called Ana", "identity"),
        ("Please call me Annie.", "Wants to be called Annie", "identity"),
        ("I live in Boston but it's cold.", "Lives in Boston", "identity"),
        ("I live in the US.", "Lives in the US", "identity"),
        ("I work for Acme, by the way.", "Works for Acme", "identity"),
        ("I prefer a text message when it is ready.", "Prefers a text message when it is ready", "preference"),
        ("Well, I prefer my coffee black.", "Prefers their coffee black", "preference"),
        ("If you ask me, I prefer to pay by invoice", "Prefers to pay by invoice", "preference"),
        ("My customer number is 4471 A2.", "Has customer number 4471 A2", "identifier"),
        ("My booking code is XK-12.", "Has booking code XK-12", "identifier"),
        ("my mobile number is 202-555-0143", "Has mobile number 202-555-0143", "identifier"),
        ("Call me back on 202 555 0143, please.", "Can be reached on 202 555 0143", "identifier"),
        ("You can reach me at +1 202 555 0143.", "Can be reached on +1 202 555 0143", "identifier"),
        ("My email address is ana@example.com.", "Has email address ana@example.com", "identifier"),
        ("I only speak Spanish.", "Speaks only Spanish", "constraint"),
        ("I'm only available after five because of work", "Is only available after five", "constraint"),
        ("I can't take calls at work.", "Can't take calls at work", "constraint"),
        ("Please don't call me before nine.", "Does not want a call before nine", "constraint"),
        ("I need a new filter every month.", "Needs a new filter every month", "need"),
        ("I'll send you the form by Friday.", "Will send the form by Friday", "commitment"),
        ("I will call you back on Monday.", "Will call back on Monday", "commitment"),
    ],
)
def test_plain_statement_becomes_fact(said, text, type_):
    (fact,) = extract([SpokenLine("caller", said)])
    assert (fact.text, fact.type, fact.turns) == (text, type_, (0,))
    assert 0.5 <= fact.confidence <= 1


@pytest.mark.parametrize(
    ("said", "corrected", "text"),
    [
        ("My phone number is 202 555 0162.", "No, 202 555 0163.", "Has phone number 202 555 0163"),
        ("I live at 14 Fennel Street.", "Sorry, I meant 40 Fennel Street.", "Lives at 40 Fennel Street"),
        ("My phone number is 202 555 0162.", "No, 24 Fennel Street.", "Has phone number 202 555 0162"),
        ("My phone number is 202 555 0162.", "The order is 202 555 0163.", "Has phone number 202 555 0162"),
    ],
)
def test_a_corrected_number_is_the_fact(said, corrected, text):
    assert texts(said, corrected) == [text]


def test_a_number_that_the_script_has_changed_is_the_fact():
    said = [
        SpokenLine("caller", "My phone number is 202 555 0162."),
        SpokenLine("agent", "I heard 2, 0, 2, 5, 5, 5, 0, 1, 6, 2. Is that right?"),
        SpokenLine("caller", "No, it ends in six three."),
        SpokenLine("agent", "I've changed that to 2, 0, 2, 5, 5, 5, 0, 1, 6, 3. Is that right?"),
    ]
    (fact,) = extract(said)
    assert re.sub(r"\D", "", fact.text) == "2025550163"


@pytest.mark.parametrize(
    "said",
    [
        "My name is not important.",
        "my name is important",
        "my name is spelled wrong",
        "I prefer not to say.",
        "I prefer that one.",
        "I prefer the second.",
        "I would prefer Friday.",
        "I don't prefer mornings.",
        "I'd rather not say.",
        "My account number is wrong.",
        "Call me Monday.",
        "Call me back on Monday at ten.",
        "I can't take it any more.",
        "I can't take calls right now.",
        "I'll call you back when I know.",
        "I'll pay you.",
        "I used to live in Boston.",
        "I prefer you call my wife.",
    ],
)
def test_what_only_looks_like_a_statement_is_passed_over(said):
    assert texts(said) == []


@pytest.mark.parametrize(
    "said",
    [
        "Is it true that my name is Ana?",
        "Do you know if I prefer mornings?",
        "She said my name is Ana.",
        "My husband says I prefer tea.",
        "The letter said: my customer number is 4471.",
        'It goes "my name is Ana".',
        "If my name is Ana then it is wrong.",
        "Maybe I prefer mornings.",
        "I think I prefer mornings.",
        "I wish I live in Boston.",
    ],
)
def test_questions_quotes_and_doubts_are_passed_over(said):
    assert texts(said) == []


@pytest.mark.parametrize(
    "said", ["I prefer mornings and I'm allergic to nuts.", "I prefer mornings. I'm so happy today."]
)
def test_only_the_lasting_part_is_kept(said):
    assert texts(said) == ["Prefers mornings"]


@pytest.mark.parametrize(
    "said", ["I need insulin every day.", "I need tablets every night.", "I prefer calls after my dialysis."]
)
def test_sensitive_statement_is_dropped(said):
    assert texts(said) == []


def test_agent_states_nothing_about_the_caller():
    assert extract([SpokenLine("agent", "My name is Maya. I prefer mornings.")]) == ()


def test_each_fact_names_its_turn():
    lines = [
        SpokenLine("agent", "Hello."),
        SpokenLine("caller", "My name is Ana. I prefer mornings."),
        SpokenLine("caller", "I live in Boston."),
    ]
    assert extract(lines) == (
        CallerFact("Is called Ana", "identity", 0.95, (1,)),
        CallerFact("Prefers mornings", "preference", 0.9, (1,)),
        CallerFact("Lives in Boston", "identity", 0.85, (2,)),
    )


def test_endless_statement_is_dropped():
    assert texts("I prefer " + "word " * 500) == []


WORDS = st.sampled_from(
    "i prefer my name is not Ana mornings 202 555 0143 call me back on need every if you ? . ,".split()
)


@given(st.lists(WORDS, max_size=60).map(" ".join))
def test_facts_keep_their_bounds(said):
    facts = extract([SpokenLine("caller", said)])
    assert len(facts) <= 5 and all(len(fact.text) <= 160 and fact.turns == (0,) for fact in facts)


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("WhatsApp's best for me, I'm always on the road.", "WhatsApp"),
        ("Tuesdays suit me best.", "Tuesdays"),
        ("I'd go for oat milk every time.", "oat milk"),
        ("We always book the cabin by the lake.", "cabin by the lake"),
        ("My usual is a small margherita.", "margherita"),
        ("We can't stand coriander.", "coriander"),
        ("I like my eggs soft boiled.", "soft boiled"),
        ("I run a bike shop near the station.", "bike shop"),
        ("um i teach geography you know at a grammar school", "geography"),
        ("We've got a tabby called Minka.", "Minka"),
        ("I have three grandchildren.", "three grandchildren"),
        ("I'm the secretary of the rowing club.", "rowing club"),
        ("I've been a member of yours since 2015.", "2015"),
        ("We're based in Aarhus.", "Aarhus"),
        ("I'm retired.", "retired"),
        ("my husband and i breed ponies", "ponies"),
        ("My landlord is Piet Visser.", "Piet Visser"),
        ("Joan Hale is our accountant now.", "Joan Hale"),
        ("My brother lives in Leeds.", "brother"),
        ("My niece Carla goes to your pottery class.", "Carla"),
        ("My locker number is 17.", "17"),
        ("Our bakery opens at six.", "six"),
        ("We can't do Mondays.", "Mondays"),
        ("I'm away the last week of every month.", "last week"),
        ("A big truck can't turn in our yard.", "yard"),
        ("There's no doorbell at our house.", "doorbell"),
        ("There are six of us at home.", "six"),
        ("I need a haircut every six weeks.", "haircut"),
        ("We get through two sacks of flour a week.", "flour"),
        ("We always need a cot when we stay.", "cot"),
        ("I'll post the keys by Monday.", "keys"),
        ("I'll be bringing the drawings on Tuesday.", "drawings"),
        ("I don't smoke any more.", "smoke"),
        ("We haven't got a fax any longer.", "fax"),
        ("Text me when it's done.", "text"),
        ("Hello, this is Imogen Clarke.", "Imogen Clarke"),
        ("Ich heiße Jonas Brandt.", "Jonas Brandt"),
        ("Ich wohne in Lübeck.", "Lübeck"),
        ("ich arbeite ähm bei der post", "post"),
        ("Wir haben vier Hühner.", "Hühner"),
        ("Ich bin Schreiner von Beruf.", "Schreiner"),
        ("Meine Mitgliedsnummer ist die 88 12 40.", "88 12 40"),
        ("Mir ist ein Anruf am liebsten.", "Anruf"),
        ("Dienstags kann ich nie.", "ienstags"),
        ("Ich brauche jedes Jahr eine Wartung.", "Wartung"),
        ("Ich nehme immer den frühen Zug.", "frühen Zug"),
        ("Ich esse kein Fleisch.", "Fleisch"),
        ("Das Formular schicke ich Ihnen bis Freitag.", "Formular"),
        ("Meine Schwester wohnt in Ulm.", "Ulm"),
        ("Rufen Sie mich bitte nur nach achtzehn Uhr an.", "achtzehn"),
        ("Me llamo Nuria Campos.", "Nuria Campos"),
        ("Vivo en la calle Mayor.", "calle Mayor"),
        ("Trabajo en una panadería.", "panadería"),
        ("Tenemos dos caballos.", "caballos"),
        ("Mi número de cliente es el 4410.", "4410"),
        ("Prefiero pagar en efectivo.", "efectivo"),
        ("Los viernes no puedo nunca.", "viernes"),
        ("Siempre tomo el café sin azúcar.", "café"),
        ("Necesito un taxi cada jueves.", "taxi"),
        ("Ya no como carne.", "carne"),
        ("Mi hermano vive en Vigo.", "Vigo"),
        ("Llámeme siempre antes de las diez.", "diez"),
        ("Je m'appelle Hugo Lambert.", "Hugo Lambert"),
        ("J'habite à Nantes.", "Nantes"),
        ("Je travaille chez un fleuriste.", "fleuriste"),
        ("Nous avons trois chats.", "chats"),
        ("Mon numéro de client, c'est le 7781.", "7781"),
        ("Je préfère le matin.", "matin"),
        ("Je prends toujours le menu du jour.", "menu du jour"),
        ("Il me faut un reçu tous les mois.", "reçu"),
        ("Je ne mange plus de viande.", "viande"),
        ("Ma sœur habite à Lyon.", "Lyon"),
        ("Appelez-moi après dix-huit heures.", "dix-huit"),
        ("Je suis menuisier.", "menuisier"),
    ],
)
def test_lasting_statement_in_everyday_words_is_learned(said, word):
    assert any(word in text for text in texts(said))


@pytest.mark.parametrize(
    "said",
    [
        "I'm so tired today.",
        "It's snowing like mad here.",
        "I've got a question about my bill.",
        "I have a problem with the door.",
        "I'm in the car, I might lose you.",
        "I'll call you back in five minutes.",
        "I need a moment.",
        "Do you always close at six?",
        "do you have a table on friday",
        "I'm a bit early, sorry.",
        "You're very kind.",
        "My phone is nearly dead.",
        "Ich bin heute sehr müde.",
        "Es regnet hier ohne Ende.",
        "Ich habe eine Frage.",
        "Wann machen Sie auf?",
        "Ich rufe gleich zurück.",
        "Hoy estoy muy cansada.",
        "Tengo una pregunta.",
        "¿Tienen mesa para dos?",
        "No le oigo bien.",
        "Je suis en retard.",
        "J'ai une question.",
        "Il pleut beaucoup ici.",
        "Vous avez des places ?",
    ],
)
def test_passing_remark_is_not_learned(said):
    assert texts(said) == []


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("I live in Leeds, no, sorry, York.", "Lives in York"),
        ("I'm never in on Tuesdays, no, Wednesdays.", "Is never in on Wednesdays"),
    ],
)
def test_slip_of_the_tongue_is_corrected(said, text):
    assert [fact.text for fact in extract([SpokenLine("caller", said)])] == [text]


@pytest.mark.parametrize(
    ("said", "fact"),
    [
        ("I'd rather have the window seat, every time.", "Prefers the window seat"),
        ("I grew up in Nairobi.", "Grew up in Nairobi"),
        ("We moved house in June, we're in Ipswich now.", "Lives in Ipswich"),
        ("My other daughter is called Fern.", "Has another daughter called Fern"),
        ("I can only come after school pick-up.", "Can only come after school pick-up"),
        ("Ich komme aus Graz.", "Kommt aus Graz"),
        ("Am liebsten sitze ich am Gang.", "Sitzt am liebsten am Gang"),
        ("Me gusta más el café solo.", "Prefiere el café solo"),
        ("J'enseigne l'histoire à la fac.", "Enseigne l'histoire à la fac"),
    ],
)
def test_everyday_wording_is_understood(said, fact):
    assert fact in texts(said)


@pytest.mark.parametrize(
    ("question", "answer", "fact"),
    [
        (
            "What's the address?",
            "14 Mossbank Terrace, flat 3. Mind the step.",
            "Has address 14 Mossbank Terrace, flat 3",
        ),
        ("And where should it go?", "to my office please 200 harbor boulevard", "Has address 200 harbor boulevard"),
        ("Could I have a phone number for you?", "Sure, 202 555 0147.", "Has phone number 202 555 0147"),
        ("What is your email?", "It's ana@example.com.", "Has email address ana@example.com"),
        ("Wie ist Ihre Adresse?", "Lindenstraße 12, dritter Stock.", "Hat die Adresse Lindenstraße 12"),
        ("¿Cuál es su dirección?", "Calle Mayor, 8.", "Tiene la dirección Calle Mayor, 8"),
        ("Quelle est votre adresse ?", "5 rue des Lilas.", "A l'adresse 5 rue des Lilas"),
    ],
)
def test_answer_becomes_fact(question, answer, fact):
    assert [one.text for one in extract([SpokenLine("agent", question), SpokenLine("caller", answer)])] == [fact]


def test_address_of_another_person_is_not_the_callers():
    question = SpokenLine("agent", "What's the address?")
    facts = extract([question, SpokenLine("caller", "My mother lives at 8 Abbey Close.")])
    assert [fact.text for fact in facts] == ["Has a mother who lives at 8 Abbey Close"]


@pytest.mark.parametrize(
    ("said", "fact"),
    [
        ("We've moved, we're at 31 Larch Avenue now, not Hill Road.", "Lives at 31 Larch Avenue"),
        ("I'm always off on Wednesdays.", "Is always off on Wednesdays"),
        ("We go camping every August with the kids.", "Goes camping every August with the kids"),
        ("I always pay by card, is that still okay?", "Always pays by card"),
        ("I always want Jonelle, nobody else.", "Always wants Jonelle"),
        ("My name's Oluwaseun but everyone calls me Seun.", "Wants to be called Seun"),
        ("I'm calling about my cat Biscuit.", "Has a cat called Biscuit"),
        ("Could you deliver on Fridays from now on?", "Wants us to deliver on Fridays"),
        ("And I don't want calls from marketing, ever.", "Does not want calls from marketing"),
        ("I don't drink coffee, only tea.", "Does not drink coffee"),
        ("No onions on anything, I can't stand them.", "Dislikes onions"),
        ("I've got a new email, it's ana@example.org.", "Has email address ana@example.org"),
        ("I'm moving to Calgary in March for a new job.", "Is moving to Calgary in March for a new job"),
        ("Soy vegetariana, ¿hay algo para desayunar?", "Es vegetariana"),
    ],
)
def test_standing_habit_is_learned(said, fact):
    assert fact in texts(said)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("It's not John Reed, it's Jon Reid, R E I D.", "Is called Jon Reid"),
        ("I got married, so I'm Kathryn Lund now, no longer Boyle.", "Is called Kathryn Lund"),
        ("Ich heiße jetzt Petra Lang.", "Heißt Petra Lang"),
    ],
)
def test_corrected_name_replaces_the_known_one(said, name):
    [fact] = extract([SpokenLine("caller", said)])
    assert (fact.text, fact.relation) == (name, "replaces")


@pytest.mark.parametrize(
    "said",
    [
        "I always thought you closed at six.",
        "It's my fault.",
        "I start work at nine on Monday.",
        "I keep the receipt in the drawer.",
        "The van's at the door now.",
        "His email is bob@example.com.",
        "We're on the first floor of the car park now.",
        "Don't come before Tuesday, the paint is wet.",
        "Could you always be this nice?",
        "I can only do 5.50.",
    ],
)
def test_single_event_is_not_learned(said):
    assert texts(said) == []
