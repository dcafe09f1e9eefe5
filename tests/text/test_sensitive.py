"""The classifier for sensitive content, with sentences of callers and of models in four languages."""

import pytest

from gateway.text.sensitive import sensitive_category, sentences, without_sensitive

SENSITIVE = {
    "en": {
        "health": """
            I was diagnosed with multiple sclerosis in March.
            My daughter has cystic fibrosis so we can't come on Fridays.
            I take lisinopril in the morning and it makes me dizzy.
            Has type two diabetes
            My husband had a stroke last winter.
            She's five months pregnant, so no heavy lifting.
            I'm on sick leave with burnout.
            We're going through IVF at the moment.
            Call me after my chemo on Tuesday.
            I see a psychiatrist every other Thursday.
            My mum uses a wheelchair.
            Is hard of hearing
            He's allergic to penicillin.
            I get panic attacks on the phone.""",
        "addiction": """
            I've been sober for six years.
            My brother is a recovering alcoholic.
            I'm on methadone, so mornings are out.
            I go to AA meetings on Mondays.""",
        "religion": """
            I'm a practising Catholic.
            We go to the mosque on Fridays.
            I'm Jewish, so not on Saturdays.
            My parents are Jehovah's Witnesses.
            I'm an atheist.""",
        "politics": """
            I've always voted Labour.
            I'm a member of the Green Party.
            My wife is a shop steward at the depot.
            I'm a lifelong Republican.""",
        "sexuality": """
            I'm gay, by the way.
            My son came out as trans last year.
            I'm a lesbian and my partner's name is Ruth.
            Identifies as non-binary""",
        "crime": """
            I did eighteen months in prison for fraud.
            My son's on probation until May.
            I've got a criminal record.
            He was arrested for shoplifting.""",
        "account": """
            My card ends in 4471.
            The account number is 30 44 19 02 and the sort code 20-11-43.
            It's the Visa ending in double nine one two.""",
        "credential": """
            The alarm code is 7719.
            My password's Bluebird with a capital B.
            The gate code for the house is nine four two one.
            My mother's maiden name is Hollis.""",
        "one_time_code": """
            The code they texted me is 558 201.
            The verification code is four nine one one.""",
        "identity_number": """
            My national insurance number is QQ 12 34 56 C.
            My passport number is 533380006.
            My social is 078 05 1120.""",
    },
    "de": {
        "health": """
            Ich habe seit Jahren Diabetes.
            Meine Tochter ist Autistin.
            Meine Frau ist im fünften Monat schwanger.
            Ich nehme Blutdrucktabletten am Morgen.
            Mein Vater hatte einen Schlaganfall.
            Ich leide unter Depressionen.
            Ich sitze im Rollstuhl.
            Mein Sohn hat eine Nussallergie.""",
        "addiction": """
            Ich bin seit drei Jahren trocken.
            Mein Bruder ist spielsüchtig.""",
        "religion": """
            Wir sind evangelisch.
            Sonntags gehe ich immer in die Kirche.
            Ich faste gerade, es ist Ramadan.""",
        "politics": """
            Ich bin Mitglied bei den Grünen.
            Ich habe immer die SPD gewählt.""",
        "sexuality": """
            Ich bin schwul.
            Meine Tochter ist lesbisch.""",
        "crime": """
            Ich bin vorbestraft.
            Mein Mann sitzt wegen Betrugs im Gefängnis.""",
        "account": "Meine Karte endet auf 8812.",
        "credential": """
            Das Passwort ist Sonnenblume.
            Der Code für die Haustür ist 4711.""",
        "one_time_code": "Der Code aus der SMS ist 44 19 20.",
        "identity_number": "Meine Ausweisnummer ist L01X00T47.",
    },
    "es": {
        "health": """
            Tengo esclerosis múltiple.
            Mi hija es celíaca.
            Estoy embarazada de cuatro meses.
            Tomo pastillas para la tensión.
            Mi marido está en tratamiento por un cáncer de colon.
            Voy al psiquiatra los jueves.""",
        "addiction": """
            Soy alcohólico, llevo tres años sin beber.
            Dejé las drogas hace mucho.""",
        "religion": """
            Somos musulmanes.
            Los domingos voy a misa.""",
        "politics": """
            Siempre voto a los socialistas.
            Estoy afiliada al sindicato.""",
        "sexuality": """
            Mi hijo es gay.
            Soy lesbiana.""",
        "crime": """
            Estuve dos años en la cárcel.
            Tengo antecedentes penales.""",
        "account": "Mi tarjeta acaba en 3390.",
        "credential": """
            La contraseña es Girasol.
            El código de la alarma es 9021.""",
        "one_time_code": "El código que me ha llegado por SMS es 449120.",
        "identity_number": "Mi DNI es 12345678Z.",
    },
    "fr": {
        "health": """
            Je suis diabétique.
            Ma femme est enceinte de six mois.
            Mon fils est épileptique.
            Je prends des anxiolytiques le soir.
            J'ai fait un AVC l'an dernier.
            Mon père a la maladie de Parkinson.""",
        "addiction": """
            Je ne bois plus depuis cinq ans.
            Mon frère est toxicomane.""",
        "religion": """
            Je suis musulmane.
            Le dimanche je vais à la messe.""",
        "politics": """
            Je vote à gauche depuis toujours.
            Je suis syndiqué à la CGT.""",
        "sexuality": """
            Ma fille est lesbienne.
            Je suis homosexuel.""",
        "crime": """
            J'ai fait deux ans de prison.
            J'ai un casier judiciaire.""",
        "account": "Ma carte se termine par 6620.",
        "credential": """
            Le mot de passe est Tournesol.
            Le code de l'alarme, c'est 7712.""",
        "one_time_code": "Le code que j'ai reçu par SMS est 440912.",
        "identity_number": "Mon numéro de sécurité sociale est 2 84 05 75 116 001 32.",
    },
}
HARMLESS = {
    "en": """
        My name is Faith Abbott.
        This is Marcus Payne calling.
        I'm Christian Kreuzer from the garage.
        Is called Christian Weber
        I live at 14 Church Street.
        We're at 3 Gay Street, second floor.
        The workshop is on Gaol Hill.
        I work as a prison librarian.
        I'm a religion teacher at a secondary school.
        I'm a physiotherapist for a football club.
        Works at the cancer research institute
        Prefers to pay by card
        I always order blood oranges.
        Please itemise labour and parts.
        I play bass in a band called the Convicts.
        My order number is 4471 9920.
        My booking reference is HX4471.
        My customer number is 30441902.
        You can reach me on 202 555 0143.
        I live next to the old hospital.
        I have two dogs and a cat.
        My sister lives in Leeds.
        I prefer calls after four.
        My zip code is 20500.
        I need a lithium battery for the drill.
        The promo code is SPRING20.
        My daughter plays the cello.
        I'd like a window seat.
        We collect Depression glass.
        I drive a green Volvo.
        My party has six people.
        I'm vegetarian.""",
    "de": """
        Ich heiße Christian Kreuzer.
        Mein Name ist Frau Krebs.
        Ich wohne in der Kirchstraße 12.
        Unser Büro liegt am Klosterplatz.
        Ich arbeite als Religionslehrerin.
        Ich arbeite im Krankenhaus in der Verwaltung.
        Ich zahle immer mit Karte.
        Meine Kundennummer ist 4471992.
        Meine Bestellnummer ist 88120.
        Ich fahre jedes Jahr zur Messe Frankfurt.
        Meine Schwester wohnt in Bremen.
        Ich bin nur vormittags erreichbar.
        Bitte rufen Sie mich unter 0171 5550143 an.
        Ich trinke nur grünen Tee.
        Wir haben zwei Hunde.
        Ich möchte einen Tisch für vier Personen.""",
    "es": """
        Me llamo Jesús Iglesias.
        Soy Dolores Cruz, la vecina.
        Vivo en la calle de la Salud, número 5.
        Trabajo en la biblioteca de la prisión.
        Soy profesora de religión.
        Prefiero pagar con tarjeta.
        Mi número de pedido es 44719.
        Mi número de cliente es 30441.
        Me gustan las naranjas sanguinas.
        Mi hermana vive en Sevilla.
        Solo puedo por las tardes.
        Los domingos veo el partido de fútbol.
        La tienda está a la izquierda.
        Tengo dos perros.""",
    "fr": """
        Je m'appelle Christian Lacroix.
        Je suis Pascal Chrétien, du garage.
        J'habite rue de la Santé, au 12.
        Je travaille à la bibliothèque de la prison.
        Je suis professeur de religion.
        Je préfère payer par carte.
        Mon numéro de commande est le 44719.
        Mon numéro de client est 30441.
        J'adore les oranges sanguines.
        Ma sœur habite à Lyon.
        Je suis disponible le matin.
        La boutique est à gauche de la mairie.
        J'ai deux chiens.
        Je bois du thé vert.""",
}

MORE_SENSITIVE = """
    I've got Crohn's, so I need to be near a bathroom.
    My wife's just had a miscarriage.
    I'm waiting for a hip replacement.
    He's been in and out of rehab since spring.
    I had a heart bypass in June.
    My boy has Down's syndrome.
    I inject insulin before lunch.
    I can only do mornings because my antidepressants wear off.
    I'm partially sighted.
    My mother has Alzheimer's and can't answer the phone.
    I'm HIV positive.
    I keep the Sabbath so don't ring on Saturdays.
    I pray five times a day, avoid one o'clock.
    I'm a deacon at St Mark's.
    I canvass for the Liberal Democrats at weekends.
    My husband and I are both men, so put Mr and Mr.
    I transitioned two years ago.
    I was inside for six years.
    I'm out on parole.
    My sort code is 20 44 17.
    The safe combination is 12 33 41.
    My Netflix password is pancake99.
    The six digit code says 449201.
    My NHS number is 943 476 5919.
    My driving licence number is MORGA657054SM9IJ.
    Ich bin Epileptiker.
    Mein Mann ist Alkoholiker.
    Meine Mutter ist dement.
    Ich mache gerade eine Chemotherapie.
    Ich gehe freitags zum Freitagsgebet.
    Wir sind Zeugen Jehovas.
    Ich war zwei Jahre im Gefängnis.
    Meine Steuer-ID ist 12 345 678 901.
    Ich nehme Antidepressiva.
    Ich bin transsexuell.
    Ich bin in der Gewerkschaft.
    Meine Kontonummer ist 1234567.
    Der Alarmcode ist 5512.
    Padezco de migrañas.
    Mi madre tiene alzhéimer.
    Soy seropositivo.
    Mi hermano está en prisión.
    Soy testigo de Jehová.
    Milito en Izquierda Unida.
    El PIN de mi tarjeta es 4491.
    Mi número de cuenta es ES91 2100 0418 4502 0005 1332.
    Soy bisexual.
    Mi marido es ludópata.
    Estoy de baja por depresión.
    J'ai la sclérose en plaques.
    Mon mari est alcoolique.
    Je suis séropositif.
    Je fais le ramadan.
    Je suis juif pratiquant.
    Mon fils est en prison.
    Je suis adhérente au Parti socialiste.
    Mon fils est gay.
    Le digicode est 45B12.
    Mon IBAN est FR76 3000 6000 0112 3456 7890 189.
    Je suis en fauteuil roulant.
    Je vois un psychiatre tous les mois.
    My knees are shot, I can't manage the stairs.
    I used to be a heavy drinker.
    I was sectioned last year.
    I went to confession.
    I'm attracted to men.
    I'm on bail.
    Put 4417 in the keypad to get in.
    They texted me 449 201.
    Ich höre schlecht.
    Ich stehe auf Männer.
"""
MORE_HARMLESS = """
    That's fine with me.
    I can't hear you, it's a bad line.
    I can't see it from here.
    I'm expecting around 55 people.
    My flight id is 145.
    The ID is 29 and the license plate is 031 NGA.
    Is there a wheelchair ramp?
    Ich kann Sie nicht hören.
    Le oigo mal.
    Je vous entends mal.
    I'm Grace Bishop from accounts.
    My name's Jude Temple.
    We live on Hospital Road.
    The office is in Abbey Lane, opposite the chapel.
    I'm a nurse at the children's hospital.
    I teach religious education.
    I'm a criminal lawyer.
    My son studies medicine in Leeds.
    I run a pharmacy in Hull.
    My dog is called Prozac.
    I drive for the blood donation service.
    I sell second-hand wheelchairs.
    My invoice number is 55120.
    My membership number is 7781 2204.
    I prefer the green one.
    I like my steak rare and my coffee black.
    I'd rather pay cash than by credit card.
    We've a party of eight on Friday.
    I support Leeds United.
    I only drink decaf.
    My flight is BA 2214.
    The meeting is in the Cardinal Room.
    Please send it to the parish hall on Mill Lane.
    I'm the caretaker at the Baptist school.
    My wife works for the union bank.
    I need the invoice by the end of the month.
    I have a meeting with my accountant on Monday.
    My account manager is Tom.
    I prefer straight trousers.
    Please use my work number, 202 555 0177.
    I play the organ.
    I've a bad line here.
    My cat is called Pope.
    My username is greenfrog.
    Ich heiße Andreas Papst.
    Ich wohne am Krankenhausweg 3.
    Ich bin Krankenpfleger von Beruf.
    Ich fahre einen roten Golf.
    Mein Sohn spielt Fußball.
    Meine Rechnungsnummer ist 2024-118.
    Ich bin Anwalt für Strafrecht.
    Ich mag keine Zwiebeln.
    Die Praxis ist in der Gefängnisgasse.
    Wir feiern eine Party mit zwölf Leuten.
    Bitte nur per E-Mail.
    Ich arbeite bei der AOK.
    Ich habe eine Bahncard.
    Soy Cruz Delgado.
    Vivo en la plaza de la Iglesia.
    Trabajo como enfermera en un hospital.
    Soy abogado penalista.
    Mi coche es un Seat rojo.
    Mi número de reserva es 55120.
    Prefiero que me llamen por la mañana.
    Tengo una tienda de flores.
    Mi hija juega al tenis.
    Mi perro se llama Santo.
    Je suis Angèle Moine.
    J'habite place de l'Église.
    Je suis infirmière à l'hôpital de Nantes.
    Je suis avocat pénaliste.
    Ma voiture est verte.
    Mon numéro de réservation est 55120.
    Je préfère les mails.
    Mon fils joue du piano.
    J'ai une boutique de fleurs.
    Mon chien s'appelle Pape.
    Je voudrais une table près de la fenêtre.
    They sent me 3 boxes.
    I ordered 449 tiles.
    I sent you 120 euros.
"""


def _lines(block: str) -> list[str]:
    return [line.strip() for line in block.strip().splitlines()]


@pytest.mark.parametrize(
    ("category", "sentence"),
    [(cat, line) for table in SENSITIVE.values() for cat, block in table.items() for line in _lines(block)],
)
def test_sensitive(category: str, sentence: str) -> None:
    assert sensitive_category(sentence) == category


@pytest.mark.parametrize("sentence", _lines(MORE_SENSITIVE))
def test_sensitive_whatever_the_category(sentence: str) -> None:
    assert sensitive_category(sentence) is not None


@pytest.mark.parametrize("sentence", [line for block in (*HARMLESS.values(), MORE_HARMLESS) for line in _lines(block)])
def test_harmless(sentence: str) -> None:
    assert sensitive_category(sentence) is None


@pytest.mark.parametrize(
    ("visit", "job"),
    [
        ("I see a drug counsellor on Mondays.", "I work as a drug counsellor."),
        ("Montags gehe ich zum Psychologen.", "Ich arbeite als Psychologe."),
        ("Los martes voy al psicólogo.", "Soy psicólogo en Vigo."),
        ("Je vois un psychologue le mardi.", "Je suis psychologue à Brest."),
    ],
)
def test_visit_is_sensitive_and_job_is_not(visit: str, job: str) -> None:
    assert sensitive_category(visit) == "health" and sensitive_category(job) is None


@pytest.mark.parametrize(
    "sentence",
    [
        "My heart's been playing up, they put a stent in.",
        "The scan came back and it's spread to the liver.",
        "I lost a leg in the accident.",
        "I had a bit of a coke habit back then.",
        "Does not believe in God",
        "The three digits on the back are five nine two.",
        "The driving licence says MORGA 657054 SM9IJ.",
        "My log-in word is Marigold Seven.",
        "I have about forty thousand in savings.",
        "Ich habe es an der Bandscheibe.",
        "Salgo de cuentas en abril.",
        "On m'a trouvé une tumeur au foie.",
    ],
)
def test_colloquial_wording_is_sensitive(sentence: str) -> None:
    assert sensitive_category(sentence) is not None


@pytest.mark.parametrize(
    "sentence",
    [
        "I prefer venetian blinds in the office.",
        "Water is coming out under my kitchen sink.",
        "The new back door sticks.",
        "Ich nehme immer das Zimmer zum Hof.",
        "Sin embargo, prefiero la tarde.",
        "Quiero dar de baja el contrato.",
        "J'aime le goût du café.",
        "J'ai découvert à Lyon un bon café.",
        "We're based in Democrat, Missouri.",
    ],
)
def test_words_of_one_language_do_not_count_in_another_sense(sentence: str) -> None:
    assert sensitive_category(sentence) is None


def test_only_the_sensitive_sentence_is_dropped() -> None:
    text = "I moved to Leeds. I'm bipolar, you see. Dr. Hale has my new address."
    assert without_sensitive(text) == "I moved to Leeds. Dr. Hale has my new address."


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("I'm Ottoline Pryce, P R Y C E. I have a claim.", ["I'm Ottoline Pryce, P R Y C E.", "I have a claim."]),
        ("Ask for Dr. J. R. Hale. He knows.", ["Ask for Dr. J. R. Hale.", "He knows."]),
    ],
)
def test_a_spelled_name_ends_a_sentence_and_an_initial_does_not(text: str, parts: list[str]) -> None:
    assert sentences(text) == parts


def test_letters_of_another_width_and_curly_apostrophes() -> None:
    assert sensitive_category("Ｉ’ｍ ｄｉａｂｅｔｉｃ") == "health"
