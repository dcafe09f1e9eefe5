"""
Log set-up and the call's logger.

A thread writes the lines, so that a slow reader of the log does not delay calls. A line is a fixed phrase plus fields.
Spoken words, prompts, digits and tokens are never logged; a phone number appears as its last four digits (`last_four`).
"""

import contextlib
import contextvars
import logging
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, Literal, TextIO

import orjson

LogFormat = Literal["text", "json"]

MOST_WAITING: Final = 10_000
"""Lines buffered while the log is not read. Further ones are dropped, and counted in a line that says so."""
FLUSH_SECONDS: Final = 2.0
BURST_SECONDS: Final = 60.0
"""How often a BurstLogger repeats a line."""
_MAX_TEXT: Final = 200

_log = logging.getLogger(__name__)
_call: contextvars.ContextVar[str] = contextvars.ContextVar("call", default="")

_HTTP_CLIENTS: Final = ("httpx", "httpcore", "httpx2", "httpcore2")
_PLAIN: Final = re.compile(r"[^\s\"\\]+")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def set_up(log_format: LogFormat, level: str) -> None:
    """Send the process's log to stderr in one format. Called once, by the command that serves."""
    handler = LogWriter(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # They log whole URLs and frames: the URL of a media stream holds a token, and frames hold what was said.
    names = ("uvicorn", "uvicorn.error", "uvicorn.access", "picows", "websockets", "anthropic", "mcp", *_HTTP_CLIENTS)
    for chatty in names:
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # The client half of the MCP SDK logs what it can't parse, which may be the result of a tool.
    for chatty in ("mcp.client", "mcp.shared", "client"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)


def keep_quiet() -> None:
    """Log nothing: for a command that runs a gateway of its own and reports for it."""
    for name in ("gateway", "mcp", "client"):
        logging.getLogger(name).addHandler(logging.NullHandler())


def set_call(session_id: str) -> None:
    """Add this call to every line that this task, and tasks it starts, will log."""
    _call.set(call_name(session_id))


def current_call() -> str:
    """The call that this task's lines name; empty for none."""
    return _call.get()


def call_name(session_id: str) -> str:
    """A short name of a call, for logs."""
    return session_id.removeprefix("voice-session:")[:8]


class CallLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that adds fields to each line. The standard adapter would replace the line's own."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs


class BurstLogger:
    """Logs what unauthenticated peers cause: each phrase once per BURST_SECONDS, with long texts cut."""

    def __init__(self, logger: logging.Logger, *, now: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._now = now
        self._bursts: dict[str, tuple[float, int]] = {}
        """By phrase: when it was last logged, and how many lines have been left out since."""

    def warning(self, phrase: str, fields: Mapping[str, object]) -> None:
        now = self._now()
        logged_at, left_out = self._bursts.get(phrase, (now - BURST_SECONDS, 0))
        if now - logged_at < BURST_SECONDS:
            self._bursts[phrase] = logged_at, left_out + 1
            return
        self._bursts[phrase] = now, 0
        extra = {name: value[:_MAX_TEXT] if isinstance(value, str) else value for name, value in fields.items()}
        self._logger.warning(phrase, extra=extra | ({"left_out": left_out} if left_out else {}))


def last_four(number: str) -> str:
    """The part of a phone number that may be logged."""
    return f"…{number[-4:]}" if len(number) > 4 else "…"


class LogWriter(logging.Handler):
    """Writes to a stream that may block, on a thread of its own."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        self._dropped = 0
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # a line that can't be formatted must not stop the caller
            self.handleError(record)
            return
        if self._lines.qsize() < MOST_WAITING:
            self._lines.put(line)
        else:
            self._dropped += 1

    def flush(self) -> None:
        """Wait until everything logged so far is written, up to FLUSH_SECONDS."""
        written = threading.Event()
        self._lines.put(written)
        written.wait(FLUSH_SECONDS)

    def _write_all(self) -> None:
        while True:
            item = self._lines.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            with contextlib.suppress(OSError, ValueError):  # the stream is closed
                self._stream.write(item + "\n")
                self._stream.flush()
            if self._dropped and self._lines.qsize() < MOST_WAITING // 2:
                dropped, self._dropped = self._dropped, 0
                _log.warning("log was not read, lines dropped", extra={"lines": dropped})


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    call = {"call": _call.get()} if _call.get() else {}
    return call | {name: value for name, value in vars(record).items() if name not in _STANDARD}


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S %Z", time.localtime(record.created))
        fields = "".join(f" {name}={_quoted(value)}" for name, value in _fields(record).items())
        line = f"{clock} {record.levelname.lower():7} {record.getMessage()}{' ' if fields else ''}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        line |= {name: value for name, value in _fields(record).items() if name not in line}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def _quoted(value: Any) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else orjson.dumps(text).decode()
