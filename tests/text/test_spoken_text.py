from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.text.languages import load_language
from gateway.text.spoken_text import WINDOW, LanguageRules, SpokenText, load_rules, spoken

ENGLISH = load_rules("en")
NEUTRAL = LanguageRules()
LANGUAGES = ("en", "de", "es", "fr")

FENCE = "```"


def streamed(chunks, rules=ENGLISH):
    speech = SpokenText(rules)
    return "".join([*map(speech.feed, chunks), speech.finish()])


# What is said


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("**Bold**, *soft*, __loud__, _low_ and ~~gone~~.", "Bold, soft, loud, low and gone."),
        ('He said **"yes"**! *(Not now)*: ***both***.', 'He said "yes"! (Not now): both.'),
        ("Call `get_user()` now.", "Call get_user() now."),
        ("这是**重点**内容。", "这是重点内容。"),
        ("## Opening hours\nFrom nine.", "Opening hours.\nFrom nine."),
        ("Opening hours\n=====\nFrom nine.", "Opening hours.\n\nFrom nine."),
        ("**Opening hours**\nFrom nine.", "Opening hours.\nFrom nine."),
        ("> We close\n> at five.", "We close\nat five."),
        ("One.\n\n---\n\nTwo.", "One.\n\n\n\nTwo."),
        ("A paragraph\n\nAnother", "A paragraph.\n\nAnother"),
        ("A line\nand its rest", "A line\nand its rest"),
        ("A \\*star\\* and \\_more\\_.", "A star and more."),
    ],
)
def test_markdown_is_not_said(written, said):
    assert spoken(written, ENGLISH) == said


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "We have:\n- tea\n* milk!\n  + *oat* milk  \n• (cold) water\n",
            "We have:\ntea.\nmilk!\noat milk.\n(cold) water.\n",
        ),
        ("Steps\n1. **Open** it\n2) Wait…\n", "Steps.\n1. Open it.\n2. Wait.\n"),
        ("- [x] paid\n- [ ] sent\n", "paid.\nsent.\n"),
        ("- - -\n-5 degrees\n", "\n-5 degrees\n"),
        ("| Day | Price |\n|:----|------:|\n| Monday | $5.50 |\n", "Day, Price.\n\nMonday, $5.50.\n"),
        ("Day | Price\n--- | ---\nMonday | 5\n", "Day, Price.\n\nMonday, 5.\n"),
    ],
)
def test_lists_and_tables_become_sentences(written, said):
    assert spoken(written, ENGLISH) == said


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (f"Run this:\n{FENCE}python\nx = [1]\n{FENCE}\nDone.", "Run this:\nI left out some code here.\nDone."),
        (f"~~~\n{FENCE}\n~~~\nDone.", "I left out some code here.\nDone."),
        (f"{FENCE}`\n{FENCE}\n{FENCE}`\nDone.", "I left out some code here.\nDone."),
        (f"{FENCE}\nnever closed", "I left out some code here."),
        (f"{FENCE}one line{FENCE} is said.", "one line is said."),
    ],
)
def test_code_block_becomes_phrase(written, said):
    assert spoken(written, ENGLISH) == said


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('See [our site](https://example.com/a_(b) "Home") now.', "See our site now."),
        ("![A red chair](chair.png) [![Logo](logo.png)](/home)", "A red chair Logo"),
        ("[Terms][1] apply[2][3]. Yes.[^a] Sure [4](http://x.test).", "Terms apply. Yes. Sure."),
        ("Press [1] for sales. list[0] [sic]", "Press 1 for sales. list 0 sic"),
        ("At https://www.example.com/a/b.html?q=1. Then", "At example dot com. Then"),
        ("(www.example.org/x), example.co.uk/y: yes", "(example dot org), example dot co dot uk: yes"),
        ("<https://example.com/x> or **http://example.net**!", "example dot com or example dot net!"),
        ("Write to anna.b-c@mail.example.com.", "Write to anna dot b-c at mail dot example dot com."),
        ("<anna@example.com>", "anna at example dot com"),
    ],
)
def test_addresses_are_said_plainly(written, said):
    assert spoken(written, ENGLISH) == said


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Great 😊! Good 👍🏽 job, 👨‍👩‍👧 and 🇩🇪 ❤️‍🔥.", "Great! Good job, and."),
        ("1️⃣ word😊word ✅ Acme™ ©", "1 word word Acme"),
        ("क्‍ष", "क्‍ष"),
        ("co\xadop\u200berate\x00d\r\nnow", "cooperated\nnow"),
        ("<p>One<br>two</p><p>Three</p> <b class='x'>four</b>", "One, two. Three, four"),
        ("A<!-- no\nno -->B <|end|>C", "A B C"),
        ("<thinking>no <b>no</b></thinking>Yes. <tool_call name='x'>{}</tool_call>Sure.", "Yes. Sure."),
        ("Hello.<think>never closed", "Hello."),
        ("Q&amp;A &lt;now&gt;&nbsp;&quot;x&quot; AT&T;", 'Q and A now "x" AT and T;'),
    ],
)
def test_pictures_and_tags_are_left_out(written, said):
    assert spoken(written, ENGLISH) == said


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Well... maybe. Well... Yes… no...", "Well, maybe. Well. Yes, no."),
        ("Really?!! Wow!!!", "Really? Wow!"),
        ("He came — late—but —\nhe came -- yes - now.", "He came, late, but\nhe came, yes, now."),
        ("Mon–Fri, 9–5, 10 – 20, –5 or −5.", "Mon to Fri, 9 to 5, 10 to 20, -5 or minus 5."),
    ],
)
def test_pauses_become_punctuation(written, said):
    assert spoken(written, ENGLISH) == said


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("R&D, 5%, 7.5 %, 20°C, 90°", "R and D, 5 percent, 7.5 percent, 20 degrees Celsius, 90 degrees"),
        ("2*3, 2 * 3, 5+3, 1 + 1 = 2", "2 times 3, 2 times 3, 5 plus 3, 1 plus 1 equals 2"),
        (
            "#5, #sale, @acme, ~5, 18+, <5, 5 < 6",
            "number 5, hashtag sale, at acme, about 5, 18 plus, less than 5, 5 is less than 6",
        ),
        ("Dial *67 or +1 202 555 0100, then # or *.", "Dial star 67 or plus 1 202 555 0100, then pound or star."),
        ("A → B -> C, yes / no", "A to B to C, yes or no"),
        ("Fruit, e.g. apples. I.e. food vs. drink.", "Fruit, for example apples. that is food versus drink."),
        ("So $x + y$ and \\(z\\), $NVDA at $5.", "So x plus y and z, NVDA at $5."),
    ],
)
def test_symbols_become_words(written, said):
    assert spoken(written, ENGLISH) == said


@pytest.mark.parametrize(
    "text",
    [
        "snake_case_word, a*b, f(x)*(y), 2**8, C#, C++, file_2.txt, Node.js, v1.2.3",
        "10:30, 9-5, -5, 3.14, 1/2, and/or, 24/7, km/h, well-known, 202-555-0100, (202) 555-0100",
        "$5.50, 5 €, £3, $1,000.00, 5$, U.S. at 5 a.m.",
        "C:\\Users\\me and a{b}^2",
    ],
)
def test_what_a_voice_reads_well_stays(text):
    assert spoken(text, ENGLISH) == text


# Languages


def test_language_falls_back_to_its_base():
    assert load_rules("de-AT") is not NEUTRAL
    assert load_rules("de_AT") == load_rules("DE") == load_rules("de")
    assert (
        spoken("z. B. 5 % bei www.example.com", load_rules("de-AT")) == "zum Beispiel 5 Prozent bei example Punkt com"
    )


@pytest.mark.parametrize("language", ["multi", "xx-YY", "", "../en", "e n"])
def test_unknown_language_only_loses_marks(language):
    rules = load_rules(language)
    assert rules == NEUTRAL
    written = f"**5%** & #5, ~5, 9–5, *67, 2*3 → a.b@example.com\n- https://example.com/x\n{FENCE}\nx\n{FENCE}"
    assert spoken(written, rules) == "5% & #5, ~5, 9–5, *67, 2*3, a.b@example.com.\nexample.com.\n"


@pytest.mark.parametrize("language", LANGUAGES)
def test_language_file_is_complete(language):
    written = load_language(language)["speech"]
    assert set(written) == {field.name for field in fields(LanguageRules)}
    for table in ("between_numbers", "before_number", "after_number", "before_word", "alone", "anywhere"):
        assert set(written[table]) >= set(getattr(ENGLISH, table)) - {"§", "@"}


@pytest.mark.parametrize("language", LANGUAGES)
def test_phrases_can_be_said_themselves(language):
    rules = load_rules(language)
    assert spoken(rules.code_left_out, rules) == rules.code_left_out


# Streaming

MARKS = st.sampled_from(
    list("*_`~[]<>|#\\$&@.…-–—!?()\n \t:;/+=%°'\"0159abhwtpse,{}^")
    + ["**", "***", FENCE, "~~~", "---", "http", "https://", "www.", "example.com", "a.b@example.com", "e.g.", "z. B."]
    + ["\n- ", "\n1. ", "\n# ", "\n> ", "\n| a | b |", "[x](y)", "](", "![", "[1]", "[^1]", "->", "=>", "<=", "°C"]
    + ["<b>", "</b>", "<a b='", "<think>", "</think>", "<!--", "-->", "&amp;", "&lt;", "&#39;", "$x$", "$5", "*67"]
    + ["😊", "👍🏽", "🇩🇪", "❤️", "\u200d", "\u200b", "\x00", "→", "•", "这", "word", "Word ", ". ", "...", "  "]
)
TEXTS = st.lists(MARKS, max_size=40).map("".join) | st.text(max_size=60)
WORDS = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789äöéñ'", min_size=1, max_size=12)
PROSE = st.lists(st.tuples(WORDS, st.sampled_from([" ", ", ", ". ", "? ", "! ", "  "])), max_size=30).map(
    lambda pairs: "".join(word + gap for word, gap in pairs)
)


@st.composite
def cut_texts(draw, texts=TEXTS):
    """A text, and the same in chunks."""
    text = draw(texts)
    places = sorted(draw(st.sets(st.integers(0, len(text)), max_size=len(text))))
    return text, [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("rules", [ENGLISH, load_rules("de"), NEUTRAL], ids=["en", "de", "neutral"])
@given(cut_texts())
def test_any_cut_says_the_same(rules, cut):
    text, chunks = cut
    assert streamed(chunks, rules) == streamed(text, rules) == spoken(text, rules)


@settings(deadline=None)
@given(cut_texts(st.tuples(TEXTS, st.integers(1, 30)).map(lambda pair: pair[0] * pair[1])))
def test_cut_beyond_window_says_the_same(cut):
    text, chunks = cut
    assert streamed(chunks) == spoken(text, ENGLISH)


@given(cut_texts(PROSE))
def test_prose_passes_unchanged(cut):
    text, chunks = cut
    assert streamed(chunks) == text


@given(PROSE)
def test_prose_is_not_held_back(text):
    """Spaces and a full stop wait for what follows, as do letters that may start an abbreviation or an address."""
    speech = SpokenText(ENGLISH)
    said = ""
    for position, character in enumerate(text, start=1):
        said += speech.feed(character)
        assert position - len(said) <= len(" https ")


@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        (["Say **", "bold", "** now"], ["Say", " bold", " now"]),
        (["- one", "\n", "- two", "\n"], ["one", ".", "\ntwo", "."]),
        (["See [the", " docs](", "https://", "x.test)", " now"], ["See the", " docs", "", "", " now"]),
        (["Go to https", "://example", ".com", "/path", " now"], ["Go to", "", "", " example dot com", " now"]),
        (["http://example.com/a.", "html.", " Yes"], ["example dot com", "", ". Yes"]),
        ([f"{FENCE}py\n", "code\n", f"{FENCE}\n", "Done"], ["I left out some code here.", "", "", "\nDone"]),
        (["Hi", ".", " There"], ["Hi", "", ". There"]),
    ],
)
def test_only_what_can_change_waits(chunks, said):
    speech = SpokenText(ENGLISH)
    assert [speech.feed(chunk) for chunk in chunks] == said


@pytest.mark.parametrize("opened", ["<b class=", "[1](", "x](", "【", "&", "https://", "*", "_", "[", "`", "$", "<"])
def test_mark_never_closed_is_let_go(opened):
    speech = SpokenText(ENGLISH)
    speech.feed(opened)
    said = "".join(speech.feed("word" if opened == "https://" else "word ") for _ in range(WINDOW // 2))
    assert len(said) >= WINDOW


# How one text is written in Markdown: what is said holds no mark, so a second filter finds nothing to do.
PIECES = st.sampled_from(
    ["**bold**", "*soft*", "`code_x`", "[a link](https://example.com)", "https://example.com/x?y=1", "a.b@example.com"]
    + ["😊", "#5", "5%", "20°C", "R&D", "2*3", "9–5", "— so", "wait...", "what?!", "<b>tag</b>", "e.g. this", "$5.50"]
    + ["\n- item", "\n\n1. step", "\n## Title\n", "\n> quote\n", "\n| a | b |\n", f"\n{FENCE}\ncode\n{FENCE}\n", "word"]
)


@given(st.lists(PIECES, max_size=20).map(" ".join))
def test_second_pass_changes_nothing(text):
    once = spoken(text, ENGLISH)
    assert spoken(once, ENGLISH) == once


@given(TEXTS)
def test_speech_stays_in_proportion(text):
    longest_word = max(len(word) for word in ENGLISH.anywhere.values())
    assert len(spoken(text, ENGLISH)) <= len(text) * (longest_word + 2) + len(ENGLISH.code_left_out)


@pytest.mark.parametrize("piece", ["[", "*", "a_", "](((a", "<a b=", "https://a.", "a."])
def test_hostile_text_takes_linear_work(piece):
    """200 kB in one chunk; anything quadratic would run into the timeout."""
    text = (piece * 200_000)[:200_000]
    assert len(spoken(text, ENGLISH)) <= 8 * len(text)
