import ast
import io
import json
import logging
import re
import sys
import threading
import time
from pathlib import Path

import pytest

from gateway.logs import BURST_SECONDS, MOST_WAITING, BurstLogger, CallLogger, last_four, set_up
from tests.fakes.remem import FakeRemem
from tests.stage import make_carrier, staged

PACKAGES = tuple(
    f"gateway.{name}." for name in ("calls", "cluster", "engines", "finalization", "history", "memory", "telephony")
)


@pytest.fixture
def written(capsys):
    """Reads what has reached stderr; the process's own logging is put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def read():
        for handler in root.handlers:
            handler.flush()
        return capsys.readouterr().err

    yield read
    root.handlers[:] = handlers
    root.setLevel(level)


def text_log(level="info"):
    set_up("text", level)
    return logging.getLogger("tests.logs")


def json_log(level="info"):
    set_up("json", level)
    return logging.getLogger("tests.logs")


def lines_without_clock(written):
    return [line.split(" ", 2)[2] for line in written().splitlines()]


# Text


def test_text_line_is_phrase_and_fields(written):
    text_log().info("call ended", extra={"seconds": 262, "reason": "caller hung up"})
    assert lines_without_clock(written) == ['info    call ended  seconds=262 reason="caller hung up"']


def test_text_line_begins_with_the_clock(written):
    text_log().info("started")
    clock, zone, level, _ = written().split()
    assert [len(part) for part in clock.split(":")] == [2, 2, 2]
    assert (zone, level) == (time.strftime("%Z"), "info")


def test_line_without_fields_ends_with_its_phrase(written):
    text_log().warning("store is slow")
    assert lines_without_clock(written) == ["warning store is slow"]


def test_empty_field_shows_as_quotes(written):
    text_log().error("step refused", extra={"reason": ""})
    assert lines_without_clock(written) == ['error   step refused  reason=""']


@pytest.mark.parametrize(
    "value, shown",
    [("a\nb", r'"a\nb"'), ('say "x" now', r'"say \"x\" now"'), ('"x"', r'"\"x\""'), ("a\\b", r'"a\\b"')],
)
def test_text_field_stays_on_its_line(value, shown, written):
    text_log().info("event", extra={"value": value})
    assert lines_without_clock(written) == [f"info    event  value={shown}"]


def test_text_carries_the_traceback(written):
    try:
        raise ValueError("no such thing")
    except ValueError:
        text_log().exception("call failed", extra={"call": "3f2a"})
    first, second, *_, last = written().splitlines()
    assert first.endswith("error   call failed  call=3f2a")
    assert (second, last) == ("Traceback (most recent call last):", "ValueError: no such thing")


def test_lower_levels_are_left_out(written):
    text_log().debug("frame")
    assert written() == ""


# JSON


def test_json_line_has_fixed_names(written):
    json_log("debug").debug("call ended", extra={"seconds": 262, "carriers": ["twilio"]})
    line = json.loads(written())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "debug",
        "event": "call ended",
        "logger": "tests.logs",
        "seconds": 262,
        "carriers": ["twilio"],
    }


def test_json_time_is_utc_with_milliseconds(written):
    record = logging.makeLogRecord({"msg": "x", "levelno": 20, "created": 1770419700.042, "msecs": 42.0})
    json_log().handle(record)
    assert json.loads(written())["time"] == "2026-02-06T23:15:00.042Z"


def test_json_takes_any_value(written):
    json_log().info("opened", extra={"error": ValueError("no"), "text": 'line\n"two"'})
    (text,) = written().splitlines()
    line = json.loads(text)
    assert (line["error"], line["text"]) == ("no", 'line\n"two"')


@pytest.mark.parametrize("name", ["time", "level", "event", "logger"])
def test_json_field_does_not_hide_the_lines_own(name, written):
    json_log().info("call ended", extra={name: "other"})
    line = json.loads(written())
    assert (line["level"], line["event"], line["logger"]) == ("info", "call ended", "tests.logs")
    assert line["time"].endswith("Z")


def test_json_carries_the_traceback_in_one_line(written):
    try:
        raise ValueError("no such thing")
    except ValueError:
        json_log().exception("call failed")
    (text,) = written().splitlines()
    assert json.loads(text)["traceback"].endswith("ValueError: no such thing")


# Set-up


def test_set_up_replaces_earlier_handlers(written):
    set_up("text", "info")
    set_up("json", "warning")
    assert len(logging.getLogger().handlers) == 1
    assert logging.getLogger().level == logging.WARNING


class StuckPipe(io.StringIO):
    """Takes nothing until it is read."""

    def __init__(self):
        super().__init__()
        self.is_read = threading.Event()

    def write(self, text):
        self.is_read.wait()
        return super().write(text)


def test_unread_log_delays_nothing(written, monkeypatch):
    pipe = StuckPipe()
    monkeypatch.setattr(sys, "stderr", pipe)
    log = text_log()
    for number in range(MOST_WAITING + 100):  # returns, or the test never ends
        log.info("event", extra={"number": number})
    pipe.is_read.set()
    written()  # the last one that was kept
    written()  # what is said of those that were not
    *kept, last = [line.split(" ", 2)[2] for line in pipe.getvalue().splitlines()]
    assert kept == [f"info    event  number={number}" for number in range(len(kept))]
    assert last == f"warning log was not read, lines dropped  lines={MOST_WAITING + 100 - len(kept)}"


@pytest.mark.parametrize(
    "name", ["uvicorn.access", "httpx", "httpcore", "httpx2", "picows", "anthropic", "mcp.client", "client"]
)
def test_libraries_do_not_log_addresses(name, written):
    json_log()
    logging.getLogger(name).info("GET /telnyx/media?token=hunter2")
    assert written() == ""


# The call's logger


def test_call_fields_and_line_fields_are_merged(written):
    CallLogger(json_log(), {"call": "3f2a", "step": "none"}).info("waits", extra={"step": "archive"})
    line = json.loads(written())
    assert (line["call"], line["step"]) == ("3f2a", "archive")


def test_call_fields_stand_alone(written):
    CallLogger(text_log(), {"call": "3f2a"}).info("answered")
    assert lines_without_clock(written) == ["info    answered  call=3f2a"]


@pytest.mark.parametrize("number, shown", [("+12025550143", "…0143"), ("12345", "…2345"), ("1234", "…"), ("", "…")])
def test_number_shows_four_digits_at_most(number, shown):
    assert last_four(number) == shown


# The list of events


ROOT = Path(__file__).parent.parent
LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}


def logged() -> set[tuple[str, str]]:
    """Phrase and level of every log call there is."""
    found = set()
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(value=receiver, attr=level), args=[phrase, *_]) if level in LEVELS:
                    if re.search(r"log(ger\(\w+\))?$", ast.unparse(receiver)):
                        assert isinstance(phrase, ast.Constant), f"{path.name}, line {node.lineno}: not a fixed phrase"
                        found.add((phrase.value, LEVELS[level]))
    return found


def test_every_event_is_documented():
    text = (ROOT / "docs" / "log-events.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| (.+?) \| (\w+) \|", text, re.MULTILINE)[1:]
    assert sorted(documented) == sorted(logged())


async def test_every_line_of_a_call_names_it(written, tmp_path):
    """Through a real gateway: every line about store, engine or carrier names its call."""
    async with FakeRemem(api_key="another") as remem:
        environ = {"REMEM_API_URL": remem.url, "REMEM_API_KEY": "wrong"}
        async with staged(tmp_path, make_carrier("telnyx"), **environ) as stage:
            set_up("json", "debug")
            call, conversation = await stage.dial()
            await conversation.user_says("Xylophone.")
            await call.stream.write({"event": "nonsense", "sequence_number": "x"})
            await conversation.close(1011)
            await stage.engine.next_conversation()
            await call.hang_up()
            await stage.document()
            await stage.idle()
    lines = [json.loads(line) for line in written().splitlines()]
    ours = [line for line in lines if line["logger"].startswith(PACKAGES)]
    of_calls = [line for line in ours if line["event"] != "event loop was held up"]  # on a busy machine
    events = {line["event"] for line in of_calls}
    assert {"phone rings", "call answered", "call ended", "call remembered", "memory could not be loaded"} <= events
    assert {line.get("call") for line in of_calls} == {of_calls[0]["call"]}
    assert "Xylophone" not in str(lines)
    assert "2025550143" not in str(lines)


def test_burst_is_one_line(caplog):
    """The next line, a minute later, has the number of lines in between. Texts are cut."""
    clock = [0.0]
    log = BurstLogger(logging.getLogger("strangers"), now=lambda: clock[0])
    for _ in range(5):
        log.warning("request refused", {"reason": "x" * 500, "status": 400})
    log.warning("another", {"reason": ""})
    clock[0] += BURST_SECONDS
    log.warning("request refused", {"reason": "x"})
    lines = [(record.message, len(record.reason), getattr(record, "left_out", 0)) for record in caplog.records]
    assert lines == [("request refused", 200, 0), ("another", 0, 0), ("request refused", 1, 4)]
