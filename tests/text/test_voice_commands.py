import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.languages import LANGUAGES, load_language
from gateway.text.voice_commands import (
    CONFIRM_SECONDS,
    CommandStep,
    ConsentAnswer,
    VoiceCommandKind,
    VoiceCommands,
    consent_answer,
    consent_texts,
)

RULES = {language: load_language(language)["voice_commands"] for language in ("de", "en", "es", "fr")}

SAID = {
    ("en", VoiceCommandKind.TELL_KNOWN): [
        "What do you know about me?",
        "what do you remember about me",
        "Okay, Maya, what else do you know about me?",
        "So, um, what exactly do you know about me so far?",
        "Could you tell me what you know about me?",
        "Tell me everything you know about me, please.",
        "Do you know anything about me?",
        "What have you got stored about me?",
        "What do you have on file about me?",
        "What information do you have on me?",
        "I'd like to know what you know about me.",
        "I like that. What do you know about me?",
    ],
    ("en", VoiceCommandKind.FORGET_THAT): [
        "Forget that.",
        "forget this",
        "Please forget that, Maya.",
        "Could you please forget that?",
        "Forget what I just said.",
        "Forget that I said that.",
        "Forget the last thing I told you.",
        "Don’t remember that.",
        "My sister is moving to Ulm. Forget that.",
        "Please delete that from your memory.",
    ],
    ("en", VoiceCommandKind.FORGET_EVERYTHING): [
        "Forget everything about me.",
        "Can you forget everything you know about me, please?",
        "I want you to forget all that you know about me.",
        "Delete everything you have stored about me.",
        "Erase all my data.",
        "Please delete all of my information now.",
        "Please forget me.",
        "Start fresh.",
        "Let's start fresh, please.",
        "Can we start with a clean slate?",
    ],
    ("en", VoiceCommandKind.OFF_RECORD): [
        "Off the record.",
        "This is off the record.",
        "Let's go off the record.",
        "Can we talk off the record?",
        "Off the record. I have never liked him.",
        "Off the record, I have never liked him.",
        "Okay, Maya, off the record, I have never liked him.",
        "He is leaving. That's off the record. Where were we?",
        "Please stop recording this.",
        "Don't save any of this.",
    ],
    ("en", VoiceCommandKind.ON_RECORD): [
        "Back on the record.",
        "Okay, we're back on the record now.",
        "Let's go back on the record.",
        "You can remember things again.",
        "Resume recording again, please.",
    ],
    ("en", VoiceCommandKind.SET_PIN): [
        "Set my PIN to four seven one one.",
        "Okay, please set my PIN code to 4-7-1-1. Thanks.",
        "I'd like to change my PIN to 47 11",
        "My new PIN should be 4711.",
        "Set my PIN to: 4711",
        "Set my PIN to, uh",
    ],
    ("de", VoiceCommandKind.SET_PIN): [
        "Setze meine PIN auf vier sieben eins eins.",
        "Bitte ändern Sie meine PIN in 4711.",
        "Setzen Sie meine Geheimzahl auf 4711, bitte",
    ],
    ("es", VoiceCommandKind.SET_PIN): [
        "Pon mi PIN en cuatro siete uno uno.",
        "Cambie mi clave a 4711, por favor",
        "Pon mi código PIN a 4711",
    ],
    ("fr", VoiceCommandKind.SET_PIN): [
        "Mets mon code PIN à quatre sept un un.",
        "Changez mon PIN en 4711 s'il vous plaît",
    ],
    ("de", VoiceCommandKind.TELL_KNOWN): [
        "Was weißt du über mich?",
        "Was wissen Sie alles über mich?",
        "was weisst du von mir",
        "Sagen Sie mir bitte, was Sie über mich wissen.",
    ],
    ("de", VoiceCommandKind.FORGET_THAT): ["Vergiss das bitte.", "Vergessen Sie, was ich gerade gesagt habe."],
    ("de", VoiceCommandKind.FORGET_EVERYTHING): [
        "Vergiss alles über mich.",
        "Lass uns ganz neu anfangen.",
        "Löschen Sie bitte alle meine Daten.",
    ],
    ("de", VoiceCommandKind.OFF_RECORD): ["Das ist nicht fürs Protokoll.", "Off the record, ich mag ihn nicht."],
    ("de", VoiceCommandKind.ON_RECORD): ["Jetzt wieder fürs Protokoll.", "Du darfst dir jetzt wieder alles merken."],
    ("es", VoiceCommandKind.TELL_KNOWN): ["¿Qué sabes de mí?", "que sabe sobre mi", "Dígame todo lo que sabe de mí."],
    ("es", VoiceCommandKind.FORGET_THAT): ["Olvida eso, por favor.", "Olvide lo que acabo de decir."],
    ("es", VoiceCommandKind.FORGET_EVERYTHING): [
        "Olvida todo lo que sabes de mí.",
        "Borre todos mis datos.",
        "Empecemos de cero.",
    ],
    ("es", VoiceCommandKind.OFF_RECORD): ["Esto es extraoficial.", "No guarde nada más."],
    ("es", VoiceCommandKind.ON_RECORD): ["Puede volver a grabar."],
    ("fr", VoiceCommandKind.TELL_KNOWN): [
        "Que sais-tu de moi ?",
        "Qu’est-ce que vous savez sur moi ?",
        "Dis-moi ce que tu sais de moi.",
    ],
    ("fr", VoiceCommandKind.FORGET_THAT): ["Oublie ça, s'il te plaît.", "Oubliez ce que je viens de dire."],
    ("fr", VoiceCommandKind.FORGET_EVERYTHING): [
        "Oubliez tout ce que vous savez sur moi.",
        "Efface toutes mes données.",
        "D'accord, repartons de zéro.",
    ],
    ("fr", VoiceCommandKind.OFF_RECORD): ["C'est en off.", "N'enregistrez plus rien."],
    ("fr", VoiceCommandKind.ON_RECORD): ["Reprenez l'enregistrement."],
}

TALK = {
    "en": [
        "",
        "...",
        "I forget that all the time.",
        "I always forget that.",
        "Don't forget that.",
        "Please don't forget that!",
        "Never forget that.",
        "Did you forget that?",
        "How could I forget that?",
        "You can forget that.",
        "Let's not forget that.",
        "Let's forget that for now and book the room.",
        "Forget it.",
        "Just forget about it.",
        "Forget about the second one.",
        "Forget that idea.",
        "Forget that guy, he never calls back.",
        "Forget that, make it two.",
        "Forget that. Make it two.",
        "No wait, forget that.",
        "Actually, forget that.",
        "My husband told me to forget that.",
        "Forget everything about the meeting.",
        "Forget everything.",
        "Don't forget me.",
        "They forget me every time.",
        "I want to forget everything about men.",
        "What do you know about bikes?",
        "What do you know about me and my wife coming on Friday?",
        "What do you know about me being charged twice?",
        "What do you know about Miami?",
        "What does the doctor know about me?",
        "What do you know?",
        "Do you know me?",
        "Do you know anything about mediation?",
        "My boss asked what you know about me.",
        "Tell me everything you know about the garden.",
        "He said off the record that they are closing.",
        "Was that off the record?",
        "It fell off the record player.",
        "Is anything off the record here?",
        "What I say is never off the record.",
        "That was a remark, off the record, from my boss.",
        "The needle is back on the record player.",
        "I want to go on the record as being against it.",
        "For the record, I called on Monday.",
        "We want to start fresh in Boston.",
        "I'd like to start fresh with a new bike.",
        "Do you sell fresh start cereal?",
        "The kids start fresh every September.",
        "Can we start over?",
        "Stop recording my favourite show at nine.",
        "Delete my appointment.",
        "Delete that.",
        "Scratch that.",
        "Remove that from my order.",
        "Please remember that.",
        "I don't remember that.",
        "How do I set my PIN?",
        "My PIN is 4711.",
        "My bank wants me to set my PIN to something else.",
        "Yes.",
        "Please do.",
    ],
    "de": [
        "Das vergesse ich immer.",
        "Vergiss das nicht.",
        "Das kannst du vergessen.",
        "Vergiss es.",
        "Was weißt du über Fahrräder?",
        "Was weißt du über mich und meine Frau?",
        "Ist das fürs Protokoll?",
        "Ja, bitte.",
    ],
    "es": [
        "Siempre olvido eso.",
        "No olvides eso.",
        "Olvídalo.",
        "¿Qué sabes de mi coche?",
        "¿Qué sabes de Miami?",
        "Mi hijo empieza de cero.",
        "Sí.",
    ],
    "fr": [
        "J'oublie ça tout le temps.",
        "N'oublie pas ça.",
        "Que sais-tu de mon vélo ?",
        "Que savez-vous de moins cher ?",
        "Je suis en off demain.",
        "Oui.",
    ],
}


def heard(text: str, language: str = "en") -> VoiceCommandKind | None:
    command = VoiceCommands(language, name="Maya").heard(text, 100.0)
    return command.kind if command else None


@pytest.mark.parametrize(("language", "wish", "text"), [(*key, text) for key, texts in SAID.items() for text in texts])
def test_command_is_understood(language, wish, text):
    assert heard(text, language) is wish


@pytest.mark.parametrize(("language", "text"), [(key, text) for key, texts in TALK.items() for text in texts])
def test_talk_is_no_command(language, text):
    assert heard(text, language) is None


@given(
    st.sampled_from([(kind, text) for (language, kind), texts in SAID.items() if language == "en" for text in texts]),
    st.data(),
)
def test_command_inside_a_sentence_is_talk(said, data):
    """Whatever word stands before or after it, unless it is known to mean nothing. A PIN that was misheard is one."""
    kind, text = said
    sentence = max(re.split("[.?,]", text), key=len).strip()
    word = data.draw(st.text("bcdfghjklpqrtvwxz", min_size=3))
    assert heard(f"{word} {sentence}") is None
    assert heard(f"{sentence} {word}") is (kind if kind is VoiceCommandKind.SET_PIN else None)


@given(st.text(), st.sampled_from(sorted(RULES)))
def test_any_text_is_taken(text, language):
    VoiceCommands(language).heard(text, 0.0)


@pytest.mark.parametrize("words", ["yes", "sure", "please", "can you please", "forget that", "I am", "well, so,"])
def test_endless_repetition_is_talk(words):
    """And is judged at once: the test has a time limit."""
    commands = VoiceCommands()
    commands.heard("Forget that.", 0.0)
    assert commands.heard(f"{words} " * 500, 1.0) is None


# Asking back

ASKED_BACK = [VoiceCommandKind.FORGET_THAT, VoiceCommandKind.FORGET_EVERYTHING, VoiceCommandKind.SET_PIN]


def asked(wish: VoiceCommandKind, language: str = "en") -> VoiceCommands:
    commands = VoiceCommands(language)
    command = commands.heard(SAID[language, wish][0], 100.0)
    assert (command.kind, command.step, command.say) == (wish, CommandStep.ASK, RULES[language][wish]["ask"])
    return commands


@pytest.mark.parametrize("wish", [wish for wish in VoiceCommandKind if wish not in ASKED_BACK])
def test_harmless_wish_is_done_at_once(wish):
    command = VoiceCommands().heard(SAID["en", wish][0], 100.0)
    assert (command.step, command.say) == (CommandStep.DO, RULES["en"][wish]["done"])


@pytest.mark.parametrize("wish", ASKED_BACK)
@pytest.mark.parametrize(
    ("language", "answer"),
    [
        ("en", "Yes."),
        ("en", "Yes, please."),
        ("en", "Please do."),
        ("en", "Um, yes. Yes, I'm sure."),
        ("en", "Yeah, go ahead, please"),
        ("en", "Okay, do it."),
        ("de", "Ja, bitte."),
        ("es", "Sí, por favor."),
        ("fr", "Oui, allez-y."),
    ],
)
def test_yes_has_it_done(wish, language, answer):
    command = asked(wish, language).heard(answer, 100.0 + CONFIRM_SECONDS)
    assert (command.kind, command.step, command.say) == (wish, CommandStep.DO, RULES[language][wish]["done"])


@pytest.mark.parametrize(
    "answer", ["No.", "No, thanks.", "Nope, leave it.", "Don't.", "Um, no, yes was wrong", "Never mind."]
)
def test_no_drops_it(answer):
    commands = asked(VoiceCommandKind.FORGET_EVERYTHING)
    command = commands.heard(answer, 101.0)
    assert (command.kind, command.step) == (VoiceCommandKind.FORGET_EVERYTHING, CommandStep.DROP)
    assert command.say == "All right, I leave everything as it is."
    assert commands.heard("Yes.", 102.0) is None


@pytest.mark.parametrize(
    "answer",
    ["I'm not sure.", "Yes, but what happens then?", "What time is it?", "Yes and no", "sure thing is he said"],
)
def test_only_a_plain_yes_counts(answer):
    """And after anything else, a yes answers something else."""
    commands = asked(VoiceCommandKind.FORGET_EVERYTHING)
    assert commands.heard(answer, 101.0) is None
    assert commands.heard("Yes.", 102.0) is None


def test_filler_leaves_the_question_open():
    commands = asked(VoiceCommandKind.FORGET_THAT)
    assert commands.heard("Um...", 101.0) is None
    assert commands.heard("", 101.5) is None
    assert commands.heard("Yes.", 102.0).step is CommandStep.DO


def test_late_yes_does_nothing():
    assert asked(VoiceCommandKind.FORGET_THAT).heard("Yes.", 100.1 + CONFIRM_SECONDS) is None


def test_one_yes_does_one_thing():
    commands = asked(VoiceCommandKind.FORGET_THAT)
    assert commands.heard("Yes.", 101.0).step is CommandStep.DO
    assert commands.heard("Yes.", 102.0) is None


def test_wish_said_again_is_asked_again():
    commands = asked(VoiceCommandKind.FORGET_THAT)
    assert commands.heard("Forget everything about me!", 120.0).step is CommandStep.ASK
    assert commands.heard("Yes", 120.0 + CONFIRM_SECONDS).kind is VoiceCommandKind.FORGET_EVERYTHING


# What comes with a command


@pytest.mark.parametrize("language", sorted(RULES))
def test_every_language_can_say_everything(language):
    for wish in VoiceCommandKind:
        command = VoiceCommands(language).heard(SAID[language, wish][0], 0.0)
        assert command.say and command.nothing and command.failed
        assert ("ask" in RULES[language][wish]) == (wish in ASKED_BACK)


def test_language_is_found_by_its_tag():
    assert VoiceCommands("de-AT").heard("Was weißt du über mich?", 0.0).say == "Das weiß ich über Sie."
    assert VoiceCommands("xx").heard("What do you know about me?", 0.0).say == "Here is what I know about you."


# Consent to a recording


@pytest.mark.parametrize(
    "language, yes",
    [
        ("en", "Yes.|Yeah, sure.|Okay.|Yes, that's fine.|I agree.|Um, yes please.|No problem.|I don't mind.|Go ahead."),
        (
            "en",
            "It's fine with me.|Yes, you can record it.|All right.|Yes of course, thanks.",
        ),
        ("en", "Yes, that is fine.|That's all right.|I do not mind."),
        ("de", "Ja.|Ja, gerne.|Okay.|In Ordnung.|Ich bin einverstanden.|Ja, das ist okay.|Kein Problem."),
        ("es", "Sí.|Sí, claro.|Vale.|Estoy de acuerdo.|Está bien.|No hay problema.|Sí, por favor."),
        ("fr", "Oui.|Oui, bien sûr.|D'accord.|Je suis d'accord.|Pas de problème.|Oui, allez-y."),
        ("xx", "Yes."),
    ],
)
def test_consent_is_a_whole_sentence(language, yes):
    for text in yes.split("|"):
        assert consent_answer(text, language) == ConsentAnswer(True), text


@pytest.mark.parametrize(
    "language, no",
    [
        ("en", "No.|No, thanks.|I'd rather not.|I don't agree.|Please don't.|Yes. No, wait.|I do not want that."),
        ("de", "Nein.|Nein danke.|Bitte nicht.|Ich möchte das nicht.|Ich bin nicht einverstanden.|Lieber nicht."),
        ("es", "No.|No, gracias.|No quiero.|Prefiero que no.|No estoy de acuerdo."),
        ("fr", "Non.|Non merci.|Je ne veux pas.|Je préfère que non.|Surtout pas.|Je ne suis pas d'accord."),
    ],
)
def test_refusal_begins_a_sentence(language, no):
    for text in no.split("|"):
        assert consent_answer(text, language) == ConsentAnswer(False), text


@pytest.mark.parametrize(
    "text", ["", "Hello?", "Um.", "Who is this?", "Yes but why do you record it", "Two pizzas, please.", "Maybe."]
)
def test_anything_else_is_unclear(text):
    assert consent_answer(text, "en") is None


def test_yes_may_be_followed_by_a_request():
    assert consent_answer("Yes. I would like two pizzas.", "en") == ConsentAnswer(True, goes_on=True)
    assert consent_answer("Well. Yes. Sure.", "en") == ConsentAnswer(True)


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_language_has_texts_for_consent(language):
    texts = consent_texts(language)
    assert all(texts[name] for name in ("ask", "agreed", "refused"))
    assert len({consent_texts(other)["ask"] for other in LANGUAGES}) == len(LANGUAGES)
