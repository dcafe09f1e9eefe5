PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE events (
        number INTEGER PRIMARY KEY,
        session TEXT NOT NULL,
        caller TEXT NOT NULL,
        agent TEXT NOT NULL,
        event TEXT NOT NULL);
INSERT INTO events VALUES(1794961551532000,'voice-session:11111111-1111-4111-8111-111111111111','+12025550143','maya','{"event":"answered","at":"2026-11-18T00:25:51.532373+00:00","attempt":0,"session":"voice-session:11111111-1111-4111-8111-111111111111","agent":"maya","caller":"+12025550143","carrier":"twilio"}');
INSERT INTO events VALUES(1794961551532001,'voice-session:11111111-1111-4111-8111-111111111111','+12025550143','maya','{"event":"turn","at":"2026-02-06T23:15:01+00:00","speaker":"agent","text":"Hello, this is Maya.","answer":0,"session":"voice-session:11111111-1111-4111-8111-111111111111","agent":"maya","caller":"+12025550143","carrier":"twilio"}');
INSERT INTO events VALUES(1794961551532002,'voice-session:11111111-1111-4111-8111-111111111111','+12025550143','maya','{"event":"turn","at":"2026-11-18T00:25:51.532429+00:00","speaker":"caller","text":"Is my bike ready?","session":"voice-session:11111111-1111-4111-8111-111111111111","agent":"maya","caller":"+12025550143","carrier":"twilio"}');
INSERT INTO events VALUES(1794961551532003,'voice-session:11111111-1111-4111-8111-111111111111','+12025550143','maya','{"event":"turn","at":"2026-02-06T23:15:04+00:00","speaker":"agent","text":"It will be ready","answer":2,"latency":0.84,"stages":{"transcript":0.2,"first_frame":0.84},"session":"voice-session:11111111-1111-4111-8111-111111111111","agent":"maya","caller":"+12025550143","carrier":"twilio"}');
INSERT INTO events VALUES(1794961551532004,'voice-session:11111111-1111-4111-8111-111111111111','+12025550143','maya','{"event":"turn","at":"2026-02-06T23:15:05+00:00","speaker":"agent","text":"on Friday at noon.","answer":2,"session":"voice-session:11111111-1111-4111-8111-111111111111","agent":"maya","caller":"+12025550143","carrier":"twilio"}');
INSERT INTO events VALUES(1794961551532005,'voice-session:11111111-1111-4111-8111-111111111111','+12025550143','maya','{"event":"interruption","at":"2026-11-18T00:25:51.532459+00:00","answer":2,"heard":"It will be","unheard":"ready on Friday at noon.","session":"voice-session:11111111-1111-4111-8111-111111111111","agent":"maya","caller":"+12025550143","carrier":"twilio"}');
INSERT INTO events VALUES(1794961551532006,'voice-session:11111111-1111-4111-8111-111111111111','+12025550143','maya','{"event":"turn","at":"2026-11-18T00:25:51.532474+00:00","speaker":"caller","text":"Thank you.","session":"voice-session:11111111-1111-4111-8111-111111111111","agent":"maya","caller":"+12025550143","carrier":"twilio"}');
INSERT INTO events VALUES(1794961551532007,'voice-session:22222222-2222-4222-8222-222222222222','+12025550144','maya','{"event":"answered","at":"2026-11-18T00:25:51.532499+00:00","attempt":0,"session":"voice-session:22222222-2222-4222-8222-222222222222","agent":"maya","caller":"+12025550144","carrier":"telnyx"}');
INSERT INTO events VALUES(1794961551532008,'voice-session:22222222-2222-4222-8222-222222222222','+12025550144','maya','{"event":"turn","at":"2026-11-18T00:25:51.532508+00:00","speaker":"caller","text":"One bread, please.","session":"voice-session:22222222-2222-4222-8222-222222222222","agent":"maya","caller":"+12025550144","carrier":"telnyx"}');
INSERT INTO events VALUES(1794961551532009,'voice-session:22222222-2222-4222-8222-222222222222','+12025550144','maya','{"event":"turn","at":"2026-02-06T23:15:00+00:00","speaker":"agent","text":"With pleasure.","answer":1,"latency":0.84,"stages":{"first_frame":0.84},"session":"voice-session:22222222-2222-4222-8222-222222222222","agent":"maya","caller":"+12025550144","carrier":"telnyx"}');
INSERT INTO events VALUES(1794961551532010,'voice-session:22222222-2222-4222-8222-222222222222','+12025550144','maya','{"event":"hangup","at":"2026-11-18T00:25:51.532520+00:00","reason":"caller hung up","seconds":60,"turns":2,"session":"voice-session:22222222-2222-4222-8222-222222222222","agent":"maya","caller":"+12025550144","carrier":"telnyx"}');
CREATE INDEX events_by_session ON events (session, number);
CREATE INDEX events_by_caller ON events (caller, number);
COMMIT;
