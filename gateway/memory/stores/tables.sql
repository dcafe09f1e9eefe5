-- The tables of the gateway's databases. A section is named after the module that owns its tables, and read by
-- `database.tables`; a blank line ends a statement. `gateway/memory/stores/database.py` says which SQL both databases share.

-- == documents ==

CREATE TABLE IF NOT EXISTS documents (
    key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, content TEXT NOT NULL,
    source TEXT NOT NULL, tags TEXT NOT NULL, scope TEXT NOT NULL, created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL, metadata TEXT NOT NULL, source_id TEXT NOT NULL)

CREATE UNIQUE INDEX IF NOT EXISTS documents_by_source ON documents (source_id) WHERE source_id <> ''

CREATE INDEX IF NOT EXISTS documents_by_age ON documents (created_at, key)

-- == memory_log ==

-- `source` is that of the documents: one log holds both facts and topics. `content` is JSON.
CREATE TABLE IF NOT EXISTS memory_entries (
    number INTEGER PRIMARY KEY, source TEXT NOT NULL, agent TEXT NOT NULL, caller TEXT NOT NULL,
    session_id TEXT NOT NULL, position INTEGER NOT NULL, started_at TEXT NOT NULL, content TEXT NOT NULL,
    model TEXT NOT NULL DEFAULT '', vector TEXT NOT NULL DEFAULT '', document_id TEXT NOT NULL DEFAULT '',
    logged_at TEXT NOT NULL, UNIQUE (session_id, source, position))

CREATE INDEX IF NOT EXISTS memory_entries_by_caller ON memory_entries (caller, agent)

CREATE INDEX IF NOT EXISTS memory_entries_by_age ON memory_entries (started_at)

CREATE INDEX IF NOT EXISTS documents_of_facts ON documents (tags) WHERE source = 'caller-fact'

CREATE INDEX IF NOT EXISTS documents_of_pins ON documents (tags) WHERE source = 'pinned-topic'

-- Names that a current fact corrects, with the trust level of that fact. Lists show `name` in place of `old_name`;
-- `folded_name` is as in `call_details`.
CREATE TABLE IF NOT EXISTS corrected_names (
    agent TEXT NOT NULL, caller TEXT NOT NULL, old_name TEXT NOT NULL, name TEXT NOT NULL, folded_name TEXT NOT NULL,
    trust INTEGER NOT NULL, PRIMARY KEY (caller, agent, old_name)) WITHOUT ROWID

-- Outlives the session's entries, so that a late retry can't bring back what was reverted or forgotten.
CREATE TABLE IF NOT EXISTS reverted_sessions (session_id TEXT PRIMARY KEY) WITHOUT ROWID

-- Calls of which a fact was deleted: their documents in the remote store have to be sent again.
CREATE TABLE IF NOT EXISTS remote_updates (session_id TEXT PRIMARY KEY) WITHOUT ROWID

-- What the last rebuild of a caller's memory replaced, compressed. Deleting anything of theirs deletes it too.
CREATE TABLE IF NOT EXISTS rebuild_undo (
    agent TEXT NOT NULL, caller TEXT NOT NULL, at TEXT NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (agent, caller)) WITHOUT ROWID

-- == state ==

-- `trust` is a TrustLevel.
CREATE TABLE IF NOT EXISTS caller_state (
    number INTEGER PRIMARY KEY, agent TEXT NOT NULL, caller TEXT NOT NULL, key TEXT NOT NULL,
    value TEXT NOT NULL, session_id TEXT NOT NULL, at TEXT NOT NULL, trust INTEGER NOT NULL)

CREATE INDEX IF NOT EXISTS caller_state_of_caller ON caller_state (agent, caller, key, at)

CREATE INDEX IF NOT EXISTS caller_state_of_session ON caller_state (session_id)

-- Outlives the session's entries, so that a late retry can't bring back what was reverted or forgotten.
CREATE TABLE IF NOT EXISTS caller_state_saves (
    session_id TEXT NOT NULL, agent TEXT NOT NULL, PRIMARY KEY (session_id, agent)) WITHOUT ROWID

-- == personas ==

CREATE TABLE IF NOT EXISTS persona_memories (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, persona TEXT NOT NULL, memory_type TEXT NOT NULL,
    content TEXT NOT NULL, facts TEXT NOT NULL, at TEXT NOT NULL)

CREATE INDEX IF NOT EXISTS persona_memories_by_persona ON persona_memories (persona, number)

-- Most memories have none.
CREATE TABLE IF NOT EXISTS persona_tags (id TEXT PRIMARY KEY, tags TEXT NOT NULL) WITHOUT ROWID

-- == pin_codes ==

CREATE TABLE IF NOT EXISTS pin_codes (
    agent TEXT NOT NULL, caller TEXT NOT NULL, salt TEXT NOT NULL, hash TEXT NOT NULL, length INTEGER NOT NULL,
    PRIMARY KEY (agent, caller)) WITHOUT ROWID

CREATE TABLE IF NOT EXISTS pin_code_failures (
    number INTEGER PRIMARY KEY, agent TEXT NOT NULL, caller TEXT NOT NULL, at TEXT NOT NULL)

CREATE INDEX IF NOT EXISTS pin_code_failures_of_caller ON pin_code_failures (agent, caller, at)

-- == knowledge ==

CREATE TABLE IF NOT EXISTS knowledge_sources (
    agent TEXT NOT NULL, name TEXT NOT NULL, modified_ns INTEGER NOT NULL, changed_ns INTEGER NOT NULL,
    size INTEGER NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (agent, name)) WITHOUT ROWID

CREATE INDEX IF NOT EXISTS documents_by_file ON documents (source)

-- == calls_table ==

CREATE TABLE IF NOT EXISTS finished_calls (
    session_id TEXT PRIMARY KEY, started_at TEXT NOT NULL, agent TEXT NOT NULL, caller TEXT NOT NULL,
    carrier TEXT NOT NULL, outcome TEXT NOT NULL, seconds REAL NOT NULL, turns INTEGER NOT NULL,
    memory_items INTEGER NOT NULL, document_id TEXT NOT NULL, summary_by TEXT NOT NULL,
    latencies BLOB NOT NULL) WITHOUT ROWID

CREATE TABLE IF NOT EXISTS call_receipts (session_id TEXT PRIMARY KEY, receipt TEXT NOT NULL) WITHOUT ROWID

CREATE TABLE IF NOT EXISTS call_engines (
    session_id TEXT PRIMARY KEY, engine TEXT NOT NULL, first_audio REAL) WITHOUT ROWID

-- Of calls with a consent or a name. `caller_name` is the one in the call's document, with the trust level of the call;
-- `folded_name` has it in lower case without accents, with a space before each word.
CREATE TABLE IF NOT EXISTS call_details (
    session_id TEXT PRIMARY KEY, consent TEXT NOT NULL, caller_name TEXT NOT NULL, folded_name TEXT NOT NULL,
    trust INTEGER NOT NULL) WITHOUT ROWID

CREATE INDEX IF NOT EXISTS finished_calls_by_time ON finished_calls (started_at, session_id)

CREATE INDEX IF NOT EXISTS finished_calls_by_agent ON finished_calls (agent, started_at, session_id)

CREATE INDEX IF NOT EXISTS finished_calls_by_carrier ON finished_calls (carrier, started_at, session_id)

CREATE INDEX IF NOT EXISTS finished_calls_by_outcome ON finished_calls (outcome, started_at, session_id)

CREATE INDEX IF NOT EXISTS finished_calls_by_caller ON finished_calls (caller, started_at, session_id)

-- The numbers of callers who are stored under another identifier: erasure by number finds them.
CREATE TABLE IF NOT EXISTS caller_numbers (
    number TEXT NOT NULL, agent TEXT NOT NULL, caller TEXT NOT NULL,
    PRIMARY KEY (number, agent, caller)) WITHOUT ROWID

-- == agent_versions ==

-- `options` are engine, disabled tools and transfer targets as JSON.
CREATE TABLE IF NOT EXISTS agent_versions (
    number INTEGER PRIMARY KEY, agent TEXT NOT NULL, version TEXT NOT NULL, at TEXT NOT NULL, actor TEXT NOT NULL,
    prompt TEXT NOT NULL, greeting TEXT NOT NULL, voice TEXT NOT NULL, options TEXT NOT NULL)

CREATE INDEX IF NOT EXISTS agent_versions_by_agent ON agent_versions (agent, number)

-- == audit_log ==

-- `caller` are the last four digits. `hash` covers all other columns, `previous` is that of the entry before it.
CREATE TABLE IF NOT EXISTS audit_log (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL, outcome TEXT NOT NULL,
    agent TEXT NOT NULL, session TEXT NOT NULL, caller TEXT NOT NULL, caller_hash TEXT NOT NULL, item TEXT NOT NULL,
    address TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL)

-- == archived_calls ==

CREATE TABLE IF NOT EXISTS archived_calls (
    session_id TEXT PRIMARY KEY, started_at TEXT NOT NULL, agent TEXT NOT NULL, caller TEXT NOT NULL,
    carrier TEXT NOT NULL, outcome TEXT NOT NULL, content BLOB NOT NULL) WITHOUT ROWID

CREATE INDEX IF NOT EXISTS archived_calls_by_caller ON archived_calls (caller, started_at)

CREATE INDEX IF NOT EXISTS archived_calls_by_time ON archived_calls (started_at)

-- == call_log ==

CREATE TABLE IF NOT EXISTS live_calls (session TEXT PRIMARY KEY, header TEXT NOT NULL, node TEXT NOT NULL)

CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, caller TEXT NOT NULL, agent TEXT NOT NULL,
    position INTEGER, entry TEXT NOT NULL)

CREATE UNIQUE INDEX IF NOT EXISTS entries_by_position ON entries (position)

CREATE INDEX IF NOT EXISTS entries_by_session ON entries (session, id)

CREATE INDEX IF NOT EXISTS entries_by_caller ON entries (caller, id)

-- == job_table ==

CREATE TABLE IF NOT EXISTS finalization_jobs (
    session_id TEXT PRIMARY KEY, session TEXT NOT NULL, state TEXT NOT NULL, archived INTEGER NOT NULL DEFAULT 0,
    summary TEXT, document_id TEXT NOT NULL DEFAULT '', version INTEGER NOT NULL DEFAULT 0,
    remote_id TEXT NOT NULL DEFAULT '', remote_version INTEGER NOT NULL DEFAULT 0,
    remote_sent INTEGER NOT NULL DEFAULT 0, problem TEXT NOT NULL DEFAULT '', node TEXT NOT NULL DEFAULT '')

-- == remote_copies ==

-- A row with an empty `remote_id` was sent, but the answer is unknown.
CREATE TABLE IF NOT EXISTS remote_copies (
    key TEXT PRIMARY KEY, agent TEXT NOT NULL, caller TEXT NOT NULL, remote_id TEXT NOT NULL,
    digest TEXT NOT NULL) WITHOUT ROWID

CREATE INDEX IF NOT EXISTS remote_copies_by_caller ON remote_copies (caller, agent)

-- == sqlite ==

CREATE TABLE IF NOT EXISTS document_tags (tag TEXT PRIMARY KEY, documents INTEGER NOT NULL) WITHOUT ROWID

CREATE VIRTUAL TABLE IF NOT EXISTS document_words USING fts5(
    title, content, scope, content='documents', content_rowid='key', tokenize='porter unicode61')

-- FTS5 documentation, 4.4.3: triggers keep an external content table's index up to date.
CREATE TRIGGER IF NOT EXISTS documents_inserted AFTER INSERT ON documents BEGIN
    INSERT INTO document_words (rowid, title, content, scope)
        VALUES (new.key, new.title, new.content, new.scope);
    INSERT INTO document_tags SELECT value, 1 FROM json_each(new.tags) WHERE true
        ON CONFLICT (tag) DO UPDATE SET documents = documents + 1;
END

CREATE TRIGGER IF NOT EXISTS documents_deleted AFTER DELETE ON documents BEGIN
    INSERT INTO document_words (document_words, rowid, title, content, scope)
        VALUES ('delete', old.key, old.title, old.content, old.scope);
    UPDATE document_tags SET documents = documents - 1 WHERE tag IN (SELECT value FROM json_each(old.tags));
    DELETE FROM document_tags WHERE documents = 0;
END

CREATE TRIGGER IF NOT EXISTS documents_updated AFTER UPDATE OF title, content ON documents BEGIN
    INSERT INTO document_words (document_words, rowid, title, content, scope)
        VALUES ('delete', old.key, old.title, old.content, old.scope);
    INSERT INTO document_words (rowid, title, content, scope)
        VALUES (new.key, new.title, new.content, new.scope);
END

-- Filled, when it is created, with the documents of a store of an older version.
CREATE TABLE IF NOT EXISTS unembedded_documents AS SELECT key FROM documents

CREATE UNIQUE INDEX IF NOT EXISTS unembedded_by_key ON unembedded_documents (key)

CREATE TABLE IF NOT EXISTS document_vectors (
    key INTEGER PRIMARY KEY, model TEXT NOT NULL, vectors BLOB NOT NULL)

CREATE TRIGGER IF NOT EXISTS vectors_missing AFTER INSERT ON documents BEGIN
    INSERT OR IGNORE INTO unembedded_documents VALUES (new.key);
END

CREATE TRIGGER IF NOT EXISTS vectors_outdated AFTER UPDATE OF content ON documents BEGIN
    DELETE FROM document_vectors WHERE key = new.key;
    INSERT OR IGNORE INTO unembedded_documents VALUES (new.key);
END

-- For searches of the whole store. Numbers are never reused: the highest one shows what a reader has not seen. A row
-- without signs is for a deleted document.
CREATE TABLE IF NOT EXISTS vector_signs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, key INTEGER NOT NULL, signs BLOB NOT NULL)

CREATE INDEX IF NOT EXISTS vector_signs_by_key ON vector_signs (key)

CREATE TRIGGER IF NOT EXISTS vector_signs_deleted AFTER DELETE ON document_vectors BEGIN
    DELETE FROM vector_signs WHERE key = old.key;
    INSERT INTO vector_signs (key, signs) VALUES (old.key, x'');
END

CREATE TRIGGER IF NOT EXISTS vectors_deleted AFTER DELETE ON documents BEGIN
    DELETE FROM document_vectors WHERE key = old.key;
    DELETE FROM unembedded_documents WHERE key = old.key;
END

-- == postgres ==

-- Stems like the embedded store's. No stop words: the search has its own list.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_ts_config WHERE cfgname = 'gateway_words' AND pg_ts_config_is_visible(oid)) THEN
        CREATE TEXT SEARCH DICTIONARY gateway_stems (TEMPLATE = snowball, Language = english);
        CREATE TEXT SEARCH CONFIGURATION gateway_words (PARSER = default);
        ALTER TEXT SEARCH CONFIGURATION gateway_words ADD MAPPING
            FOR asciiword, word, numword, int, uint, float, sfloat WITH gateway_stems;
    END IF;
END $$

-- Words of the title and the content: punctuation becomes spaces, since PostgreSQL's parser takes "jane@example.com" and
-- "-5" for one word each; accents are removed, as in the embedded store. A tsvector is limited to one megabyte. COLLATION
-- is one that handles capital letters.
ALTER TABLE documents
    ADD COLUMN IF NOT EXISTS words tsvector GENERATED ALWAYS AS (to_tsvector('gateway_words',
        regexp_replace(regexp_replace(
            normalize(lower(left(title || ' ' || content, 200000) COLLATE "COLLATION"), NFD),
            '[\u0300-\u036F]+', '', 'g'),
            '[\u0001-\u002F\u003A-\u0040\u005B-\u0060\u007B-\u00BF\u2000-\u206F\u3000-\u303F]+', ' ', 'g'))) STORED,
    ADD COLUMN IF NOT EXISTS tokens text[] GENERATED ALWAYS AS (string_to_array(scope, ' ')) STORED,
    ADD COLUMN IF NOT EXISTS embedded_by text NOT NULL DEFAULT ''

CREATE INDEX IF NOT EXISTS documents_by_word ON documents USING gin (words)

CREATE INDEX IF NOT EXISTS documents_by_tag ON documents USING gin (tokens)

CREATE INDEX IF NOT EXISTS documents_unembedded ON documents (key) WHERE embedded_by = ''

CREATE OR REPLACE FUNCTION outdate_vectors() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF new.content <> old.content THEN new.embedded_by := ''; END IF;
    RETURN new;
END $$

CREATE OR REPLACE TRIGGER vectors_outdated BEFORE UPDATE OF content ON documents
    FOR EACH ROW EXECUTE FUNCTION outdate_vectors()

-- == pgvector ==

CREATE TABLE IF NOT EXISTS document_vectors (
    key BIGINT NOT NULL REFERENCES documents ON DELETE CASCADE, part INTEGER NOT NULL,
    vector vector(384) NOT NULL, PRIMARY KEY (key, part))

CREATE INDEX IF NOT EXISTS document_vectors_near ON document_vectors USING hnsw (vector vector_cosine_ops)

-- == webhooks ==

-- A message that was accepted keeps its row without a body for a while, so that it is not made again.
CREATE TABLE IF NOT EXISTS webhook_messages (
    id TEXT PRIMARY KEY, session_id TEXT NOT NULL, agent TEXT NOT NULL, caller TEXT NOT NULL, event TEXT NOT NULL,
    body TEXT NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL, due_at TEXT NOT NULL, problem TEXT NOT NULL,
    created_at TEXT NOT NULL) WITHOUT ROWID

CREATE INDEX IF NOT EXISTS webhook_messages_due ON webhook_messages (state, due_at)
