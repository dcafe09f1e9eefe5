"""
The index of the shared store: words by tsvector, vectors by pgvector.

Generated columns keep words and tags in step with each document. A narrow scope is ranked completely, with the vectors
of all its documents and the same arithmetic as the embedded store: filtering an HNSW index would miss some. The HNSW
index, with iterative scans, serves wide scopes and the whole store.
"""

import array
import sys
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from gateway.memory.database import MOST_CANDIDATES, NARROW_SCOPE, Connection, MemberRow, Unembedded
from gateway.memory.documents import carries, token
from gateway.memory.embeddings.embedder import MODEL
from gateway.memory.embeddings.wordpiece import without_accents

if TYPE_CHECKING:
    from gateway.memory.embeddings.vectors import Vectors

_VECTOR_BYTES: Final = 4 * 384

# Stems like the embedded store's. No stop words: the search has its own list.
_WORDS: Final = """DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_ts_config WHERE cfgname = 'gateway_words' AND pg_ts_config_is_visible(oid)) THEN
        CREATE TEXT SEARCH DICTIONARY gateway_stems (TEMPLATE = snowball, Language = english);
        CREATE TEXT SEARCH CONFIGURATION gateway_words (PARSER = default);
        ALTER TEXT SEARCH CONFIGURATION gateway_words ADD MAPPING
            FOR asciiword, word, numword, int, uint, float, sfloat WITH gateway_stems;
    END IF;
END $$"""

# Punctuation becomes spaces, since PostgreSQL's parser takes "jane@example.com" and "-5" for one word each; accents are
# removed, as in the embedded store. A tsvector is limited to one megabyte.
_PLAIN_TEXT: Final = r"""regexp_replace(regexp_replace(
    normalize(lower(left(title || ' ' || content, 200000) COLLATE "{collation}"), NFD), '[\u0300-\u036F]+', '', 'g'),
    '[\u0001-\u002F\u003A-\u0040\u005B-\u0060\u007B-\u00BF\u2000-\u206F\u3000-\u303F]+', ' ', 'g')"""

# Requires pgvector.
VECTOR_SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS document_vectors (
        key BIGINT NOT NULL REFERENCES documents ON DELETE CASCADE,
        part INTEGER NOT NULL,
        vector vector(384) NOT NULL,
        PRIMARY KEY (key, part))""",
    "CREATE INDEX IF NOT EXISTS document_vectors_near ON document_vectors USING hnsw (vector vector_cosine_ops)",
)

_NO_VECTORS: Final = "NULL"
_OWN_VECTORS: Final = """(SELECT string_agg(substring(vector_send(v.vector) FROM 5), ''::bytea ORDER BY v.part)
    FROM document_vectors v WHERE v.key = d.key AND d.embedded_by = :model)"""


def schema(*, collation: str) -> tuple[str, ...]:
    """The additions to the table of documents. `collation` is one that handles capital letters."""
    text = _PLAIN_TEXT.format(collation=collation)
    return (
        _WORDS,
        f"""ALTER TABLE documents
            ADD COLUMN IF NOT EXISTS words tsvector GENERATED ALWAYS AS (to_tsvector('gateway_words', {text})) STORED,
            ADD COLUMN IF NOT EXISTS tokens text[] GENERATED ALWAYS AS (string_to_array(scope, ' ')) STORED,
            ADD COLUMN IF NOT EXISTS embedded_by text NOT NULL DEFAULT ''""",
        "CREATE INDEX IF NOT EXISTS documents_by_word ON documents USING gin (words)",
        "CREATE INDEX IF NOT EXISTS documents_by_tag ON documents USING gin (tokens)",
        "CREATE INDEX IF NOT EXISTS documents_unembedded ON documents (key) WHERE embedded_by = ''",
        """CREATE OR REPLACE FUNCTION outdate_vectors() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF new.content <> old.content THEN new.embedded_by := ''; END IF;
            RETURN new;
        END $$""",
        """CREATE OR REPLACE TRIGGER vectors_outdated BEFORE UPDATE OF content ON documents
            FOR EACH ROW EXECUTE FUNCTION outdate_vectors()""",
    )


class PostgresIndex:
    """An Index in PostgreSQL. pgvector is required only with `vectors`."""

    def __init__(self, *, vectors: bool) -> None:
        self._vectors = vectors
        own_vectors = _OWN_VECTORS if vectors else _NO_VECTORS
        self._members = (
            f"SELECT d.tags, d.key, length(d.content), d.metadata, d.created_at, {own_vectors} FROM documents d"
        )

    # Search

    def state(self, connection: Connection, tags: tuple[str, ...]) -> Hashable | None:
        """xmin is the transaction that last wrote a row, so the sum changes with every insert, update and delete."""
        if not tags:
            return None
        count, versions = connection.execute(
            """SELECT count(*), sum(hashtextextended(version, 0)) FROM (
                SELECT key || ' ' || xmin AS version FROM documents WHERE tokens @> ? LIMIT ?) d""",
            (_tokens(tags), NARROW_SCOPE + 1),
        ).fetchone()
        return (count, versions) if count <= NARROW_SCOPE else None

    def members(self, connection: Connection, tags: tuple[str, ...]) -> Iterable[MemberRow]:
        rows = connection.execute(
            f"{self._members} WHERE d.tokens @> :tokens", {"tokens": _tokens(tags), "model": MODEL}
        )
        return map(_member, rows)

    def having(self, connection: Connection, tags: tuple[str, ...], words: Sequence[str]) -> dict[str, list[int]]:
        having: dict[str, list[int]] = {word: [] for word in words}
        # The scope first: the index of words covers the documents of all callers.
        rows = connection.execute(
            """WITH scope AS MATERIALIZED (SELECT key, words FROM documents WHERE tokens @> ?),
                question AS MATERIALIZED (SELECT place, plainto_tsquery('gateway_words', word) AS query
                    FROM unnest(?::text[]) WITH ORDINALITY AS asked (word, place))
                SELECT place, key FROM question JOIN scope ON words @@ query""",
            (_tokens(tags), _plain(words)),
        )
        for place, key in rows:
            having[words[place - 1]].append(key)
        return having

    def candidates(
        self, connection: Connection, tags: tuple[str, ...], words: Sequence[str], near: "Vectors | None"
    ) -> Iterable[tuple[float, MemberRow]]:
        scores = dict(
            connection.execute(
                """SELECT d.key, ts_rank(d.words, q.any_word, 1) AS score FROM documents d, (
                        SELECT string_agg(query::text, ' | ')::tsquery AS any_word
                        FROM unnest(?::text[]) word, plainto_tsquery('gateway_words', word) query
                        WHERE numnode(query) > 0) q
                    WHERE d.words @@ q.any_word AND d.tokens @> ? ORDER BY score DESC, d.key DESC LIMIT ?""",
                (_plain(words), _tokens(tags), MOST_CANDIDATES),
            ).fetchall()
        )
        for key in self._nearest(connection, tags, near):
            scores.setdefault(key, 0.0)
        rows = connection.execute(f"{self._members} WHERE d.key = ANY(:keys)", {"keys": list(scores), "model": MODEL})
        return ((scores[row[1]], _member(row)) for row in rows)

    def _nearest(self, connection: Connection, tags: tuple[str, ...], near: "Vectors | None") -> list[int]:
        if near is None or not self._vectors:
            return []
        rows = connection.execute(
            """SELECT v.key FROM document_vectors v JOIN documents d ON d.key = v.key
                WHERE d.tokens @> ? AND d.embedded_by = ? ORDER BY v.vector <=> ?::vector LIMIT ?""",
            (_tokens(tags), MODEL, str(near.tolist()), MOST_CANDIDATES),
        )
        return [key for (key,) in rows]

    def newest(self, connection: Connection, tags: tuple[str, ...], limit: int) -> list[int]:
        rows = connection.execute(
            "SELECT key, tags FROM documents WHERE tokens @> ? ORDER BY created_at DESC, key DESC LIMIT ?",
            (_tokens(tags), limit),
        )
        return [key for key, own_tags in rows if carries(own_tags, tags)]

    def purge(self, connection: Connection) -> None:
        """Nothing to do: the index entries point to rows that are gone."""

    # Vectors

    def has_vectors(self, connection: Connection) -> bool:
        return self._vectors and bool(connection.execute("SELECT 1 FROM document_vectors LIMIT 1").fetchone())

    def renew_vectors(self, connection: Connection) -> None:
        connection.execute("UPDATE documents SET embedded_by = '' WHERE embedded_by NOT IN ('', ?)", (MODEL,))

    def missing_vectors(self, connection: Connection, wanted: Sequence[int], limit: int) -> list[Unembedded]:
        statement = "SELECT key, content FROM documents WHERE embedded_by = ''"
        rows = connection.execute(f"{statement} AND key = ANY(?) LIMIT ?", (list(wanted), limit)).fetchall()
        rows = rows or connection.execute(f"{statement} ORDER BY key DESC LIMIT ?", (limit,)).fetchall()
        return [Unembedded(key, content) for key, content in rows]

    def keep_vectors(self, connection: Connection, made: Iterable[tuple[Unembedded, bytes]]) -> None:
        for document, vectors in made:
            kept = connection.execute(
                "UPDATE documents SET embedded_by = ? WHERE key = ? AND content = ?",
                (MODEL, document.key, document.content),
            )
            if kept.rowcount:
                connection.execute("DELETE FROM document_vectors WHERE key = ?", (document.key,))
                connection.executemany(
                    "INSERT INTO document_vectors VALUES (?, ?, ?::vector)",
                    [(document.key, part, text) for part, text in enumerate(_vector_texts(vectors))],
                )


def _tokens(tags: Iterable[str]) -> list[str]:
    return list(map(token, tags))


def _plain(words: Iterable[str]) -> list[str]:
    return list(map(without_accents, words))


def _member(row: Sequence[object]) -> MemberRow:
    """Convert vectors from network byte order to little-endian, as they are everywhere else."""
    *known, vectors = row
    if isinstance(vectors, bytes):
        numbers = array.array("f", vectors)
        numbers.byteswap()
        return *known, numbers.tobytes()
    return row


def _vector_texts(vectors: bytes) -> Iterable[str]:
    """Each vector in pgvector's text format."""
    for first in range(0, len(vectors), _VECTOR_BYTES):
        numbers = array.array("f", vectors[first : first + _VECTOR_BYTES])
        if sys.byteorder == "big":
            numbers.byteswap()
        yield str(numbers.tolist())
