import pytest

from gateway.memory.embeddings.wordpiece import WordPiece

MOST = 128


@pytest.fixture(scope="module")
def tokens():
    return WordPiece()


def numbers(tokens, text, most=MOST):
    return [number for _, number in tokens.encode(text, most)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [101, 102]),
        ("Hello, world!", [101, 7592, 1010, 2088, 999, 102]),
        ("unaffable", [101, 14477, 20961, 3468, 102]),
        ("Café naïve", [101, 7668, 15743, 102]),
        ("日本", [101, 1864, 1876, 102]),
        ("don't", [101, 2123, 1005, 1056, 102]),
        ("2023-05-08", [101, 16798, 2509, 1011, 5709, 1011, 5511, 102]),
        ("a\u200bb\0 \u2029 c", [101, 11113, 1039, 102]),
        ("\U0001f92f", [101, 100, 102]),
        ("x" * 101, [101, 100, 102]),
    ],
)
def test_numbers_are_those_of_bert(tokens, text, expected):
    assert numbers(tokens, text) == expected


def test_pieces_know_their_word(tokens):
    assert tokens.encode("unaffable!", MOST) == [
        ("", 101),
        ("unaffable", 14477),
        ("unaffable", 20961),
        ("unaffable", 3468),
        ("!", 999),
        ("", 102),
    ]


def test_long_text_is_cut(tokens):
    assert numbers(tokens, "hello " * 1000, 5) == [101, 7592, 7592, 7592, 102]
