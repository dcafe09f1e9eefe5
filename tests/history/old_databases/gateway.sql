PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE endings (
        session_id TEXT PRIMARY KEY,
        session TEXT NOT NULL,
        archived INTEGER NOT NULL DEFAULT 0,
        summary TEXT,
        document_id TEXT NOT NULL DEFAULT '',
        version INTEGER NOT NULL DEFAULT 0,
        remote_id TEXT NOT NULL DEFAULT '',
        remote_version INTEGER NOT NULL DEFAULT 0,
        remote_sent INTEGER NOT NULL DEFAULT 0,
        problem TEXT NOT NULL DEFAULT '',
        node TEXT NOT NULL DEFAULT '');
INSERT INTO endings VALUES('voice-session:33333333-3333-4333-8333-333333333333','{"id":"voice-session:33333333-3333-4333-8333-333333333333","agent":"leo","caller":"+12025550145","carrier":"twilio","started_at":"2026-02-06T23:15:00+00:00","ended_at":"2026-02-06T23:15:30+00:00","end_reason":"agent hung up","turns":[{"speaker":"caller","text":"Call me back.","at":"2026-02-06T23:15:00+00:00","unheard":""}],"number":"","state":{},"timings":[],"receipt":{},"taken_over":false,"off_record":false,"taken_back":[]}',0,NULL,'',0,'',0,0,'','node-a');
INSERT INTO endings VALUES('voice-session:44444444-4444-4444-8444-444444444444','{"id":"voice-session:44444444-4444-4444-8444-444444444444","agent":"leo","caller":"+12025550146","carrier":"twilio","started_at":"2026-02-06T23:15:00+00:00","ended_at":"2026-02-06T23:15:30+00:00","end_reason":"transferred","turns":[{"speaker":"caller","text":"Put me through.","at":"2026-02-06T23:15:00+00:00","unheard":""}],"number":"","state":{},"timings":[],"receipt":{},"taken_over":false,"off_record":false,"taken_back":[]}',1,'{"caller_name":"","topics":["Bikes"],"decisions":[],"action_items":[],"facts":[],"context":"Wants Leo.","written_by":"extractive","caller_facts":[],"running_topics":[]}','doc-4',1,'',0,0,'send_remote: remem refused the document: 403','node-a');
CREATE TABLE calls (
        session_id TEXT PRIMARY KEY,
        agent TEXT NOT NULL,
        caller TEXT NOT NULL,
        started_at TEXT NOT NULL,
        facts TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO calls VALUES('voice-session:22222222-2222-4222-8222-222222222222','maya','+12025550144','2026-02-06T23:15:00+00:00','{"carrier":"telnyx","seconds":60.0,"end_reason":"caller hung up","turns":2,"timings":[{"transcript":0.2,"llm_request":0.21,"first_token":0.5,"first_audio":0.7,"first_frame":0.84}],"receipt":{"block":"Likes rye.","items":[{"id":"f1","kind":"fact"}]},"document_id":"doc-2","summary_by":"extractive"}');
CREATE TABLE call_outcomes (
        session_id TEXT PRIMARY KEY,
        outcome TEXT NOT NULL,
        started_at TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO call_outcomes VALUES('voice-session:22222222-2222-4222-8222-222222222222','caller hung up','2026-02-06T23:15:00+00:00');
CREATE TABLE call_lines (
        session_id TEXT PRIMARY KEY,
        started_at TEXT NOT NULL,
        agent TEXT NOT NULL,
        caller TEXT NOT NULL,
        carrier TEXT NOT NULL,
        outcome TEXT NOT NULL,
        seconds REAL NOT NULL,
        turns INTEGER NOT NULL,
        told INTEGER NOT NULL,
        stages TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO call_lines VALUES('voice-session:22222222-2222-4222-8222-222222222222','2026-02-06T23:15:00+00:00','maya','+12025550144','telnyx','caller hung up',60.0,2,1,'00200|00210|00500|00700|00840');
CREATE TABLE forgotten (caller TEXT PRIMARY KEY, at TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO forgotten VALUES('0123456789abcdef','2026-02-05T00:00:00+00:00');
COMMIT;
