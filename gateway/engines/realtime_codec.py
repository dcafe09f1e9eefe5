"""
OpenAI Realtime messages, and those of services with the same protocol, without I/O: text in, events out; commands in,
text out.

The server keeps the conversation and decides when to answer. The codec follows its responses, so that at most one is
requested at a time, and counts the audio of each item, so that an interrupted answer can be cut where the caller
stopped listening. What has to be sent is collected in `outgoing`.
"""

from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import orjson

from gateway.audio import SILENCE_FRAME
from gateway.engines import interface as engine
from gateway.engines.interface import AgentSettings, EngineEvent, FunctionCall
from gateway.engines.realtime_dialect import Dialect, table, tool
from gateway.engines.tts_queue import SentenceSplitter
from gateway.errors import RemoteProtocolError

NOT_TRANSCRIBED: Final = "[not transcribed]"
"""The text of a turn that the model heard and the recogniser did not."""
_BYTES_PER_MS: Final = 8
_SHORTEST_CUT_MS: Final = 20
"""An answer of which less is missing was heard. Cutting it would delete its text at the server."""
_PACKED: Final = "The conversation so far. Go on with it, in speech:"
_CANCELLED: Final = '{"error":"cancelled"}'
# The same mistake would be made again, or the account does not allow more.
_FINAL_ERRORS: Final = frozenset(
    "insufficient_quota credit_balance_exhausted invalid_api_key account_deactivated billing_hard_limit_reached "
    "beta_api_shape_disabled model_not_found".split()
)
_LOST_ERRORS: Final = frozenset({"session_expired", "max_duration", "timeout", "server_error"})
# Races between what we send and what the server does at the same time.
_HARMLESS_ERRORS: Final = frozenset({"response_cancel_not_active", "input_audio_buffer_commit_empty"})
_HARMLESS_TEXTS: Final = ("no active response", "already shorter", "truncat")
_BUSY: Final = "conversation_already_has_active_response"

_BETA_NAMES: Final = {
    "response.audio.delta": "response.output_audio.delta",
    "response.audio_transcript.delta": "response.output_audio_transcript.delta",
    "response.audio_transcript.done": "response.output_audio_transcript.done",
    "response.text.delta": "response.output_text.delta",
    "conversation.item.created": "conversation.item.added",
}
_IGNORED: Final = frozenset(
    "conversation.created conversation.item.done conversation.item.deleted conversation.item.retrieved "
    "conversation.item.truncated conversation.item.input_audio_transcription.delta "
    "conversation.item.input_audio_transcription.segment input_audio_buffer.cleared input_audio_buffer.speech_stopped "
    "input_audio_buffer.timeout_triggered input_audio_buffer.dtmf_event_received rate_limits.updated "
    "response.content_part.added response.content_part.done response.output_audio.done response.audio.done "
    "response.output_text.done response.text.done response.function_call_arguments.delta "
    "response.function_call_arguments.done output_audio_buffer.started output_audio_buffer.stopped "
    "output_audio_buffer.cleared mcp_list_tools.in_progress mcp_list_tools.completed mcp_list_tools.failed "
    "response.mcp_call_arguments.delta response.mcp_call_arguments.done response.mcp_call.in_progress "
    "response.mcp_call.completed response.mcp_call.failed ping".split()
)


class _Phase(Enum):
    """At most one response exists at a time."""

    IDLE = auto()
    REQUESTED = auto()
    """By us, or by the server at the end of the caller's turn."""
    ACTIVE = auto()


@dataclass
class _Item:
    """A message of the agent: its id, and the bytes of audio that were passed on."""

    id: str
    response: str
    size: int = 0


@dataclass
class _Response:
    """The response that is being generated."""

    id: str
    said: str = ""
    """The text that we asked for, if we did."""
    has_audio: bool = False
    has_text: bool = False
    is_muted: bool = False
    """Cancelled: the rest of it is dropped."""


_AUDIO: Final = "response.output_audio.delta"
_APPEND: Final = b'{"type":"input_audio_buffer.append","audio":"'
_SILENCE: Final = _APPEND + b2a_base64(SILENCE_FRAME, newline=False) + b'"}'


def append_audio(audio: bytes) -> bytes:
    """The message for a frame of the caller. Fifty a second of each call: built without a JSON library."""
    return _SILENCE if audio == SILENCE_FRAME else _APPEND + b2a_base64(audio, newline=False) + b'"}'


class RealtimeCodec:
    """The messages of one connection."""

    def __init__(self, dialect: Dialect) -> None:
        self.outgoing: list[bytes] = []
        self.unknown_types: set[str] = set()
        self.is_applied = False
        self.caller_speaks = False
        self.failures = 0
        """Responses in a row that failed."""
        self._dialect = dialect
        self._name = dialect.name
        self._settings: AgentSettings
        self._instructions = ""
        self._session: dict[str, Any] = {}
        self._phase = _Phase.IDLE
        self._awaits_auto = False
        """The server is about to answer the caller's turn by itself."""
        self._response = _Response("")
        self._past: set[str] = set()
        """Responses that are over, or that the caller must not hear."""
        self._to_say: deque[str] = deque()
        self._saying = ""
        self._owes_answer = False
        self._cancels_next = False
        self._cancels_saying = False
        self._splitter = SentenceSplitter()
        self._ready_texts: list[str] = []
        """Sentences whose audio has not begun."""
        self._items: list[_Item] = []
        self._answer_is_over = False
        self._requested: list[FunctionCall] = []
        self._known_calls: set[str] = set()
        self._open_calls: set[str] = set()
        self._turns: dict[str, str] = {}
        """Turns of the caller that have no final text yet, and what is known of it."""
        self._transcribed_turns: set[str] = set()
        self._takes_repeats = dialect.repeats_transcripts
        self._answered_turns = 0
        self._history_ids: list[str] = []
        self._notes: list[str] = []
        """Ids of system messages that add to the instructions."""
        self._ids = 0

    # Commands

    def configure(self, settings: AgentSettings) -> None:
        """The first message of a connection."""
        self._settings, self._instructions = settings, settings.prompt
        self._session = self._dialect.session(settings)
        self._put("session.update", session=self._session)

    def say(self, text: str, *, interrupt: bool = False) -> bool:
        """Returns False where the text is refused because the caller is speaking."""
        if interrupt:
            self._to_say.clear()
            self._owes_answer = False
            self._drop_answer()
        elif self.caller_speaks:
            return False
        self._to_say.append(text)
        self.pump()
        return True

    def update_instructions(self, text: str) -> None:
        """
        At the beginning the instructions are replaced by longer ones. Later that would cost the cached conversation,
        and a system message is added.
        """
        self._instructions += f"\n{text}"
        if not self._answered_turns:
            self._put("session.update", session=self._dialect.typed({"instructions": self._instructions}))
        else:
            self._notes.append(self._new_id("note"))
            self._create_item("message", id=self._notes[-1], role="system", content=_text_part("input_text", text))

    def replace_settings(self, settings: AgentSettings) -> None:
        self._settings, self._instructions = settings, settings.prompt
        for note in self._notes:
            self._put("conversation.item.delete", item_id=note)
        self._notes.clear()
        changes = {"instructions": settings.prompt, "tools": [tool(function) for function in settings.functions]}
        self._put("session.update", session=self._dialect.typed(changes))

    def expect_dictation(self, expected: bool) -> None:
        """Wait for longer pauses, or no longer."""
        agent = self._settings.agent
        detection = self._dialect.turn_detection(agent, "dictation" if expected else agent.patience)
        is_flat = self._dialect.is_flat
        changes = {"turn_detection": detection} if is_flat else {"audio": {"input": {"turn_detection": detection}}}
        self._put("session.update", session=self._dialect.typed(changes))

    def truncate(self, unheard_ms: int) -> None:
        """Cut the agent's items where the caller stopped listening, and delete those that were not begun."""
        if not self._interrupts_itself and self._phase is _Phase.ACTIVE and not self._response.is_muted:
            self._cancel()
        unheard = unheard_ms * _BYTES_PER_MS
        items, self._items = self._items, []
        for item in reversed(items):
            if unheard < _SHORTEST_CUT_MS * _BYTES_PER_MS:
                break
            heard_ms = max(item.size - unheard, 0) // _BYTES_PER_MS
            unheard -= item.size
            if heard_ms:
                self._put("conversation.item.truncate", item_id=item.id, content_index=0, audio_end_ms=heard_ms)
            else:
                self._put("conversation.item.delete", item_id=item.id)

    def end_user_turn(self) -> list[EngineEvent]:
        """
        Silence ends a turn for a detector of volume. One that judges the sentence would wait for seconds.

        Returns texts that are final by that.
        """
        detection = self._turn_detection
        self._takes_repeats = False
        if not self.caller_speaks:
            final = [(turn, text) for turn, text in self._turns.items() if text]
            return [event for turn, text in final for event in self._transcribed(turn, text)]
        if detection.get("type") == "semantic_vad":
            self._put("input_audio_buffer.commit")
        else:
            frames = (int(detection.get("silence_duration_ms") or 500) + 400) // 20
            self.outgoing += [_SILENCE] * frames
        return []

    def answer_tool(self, call_id: str, result: str) -> None:
        """The agent goes on after the last result of a response."""
        if call_id not in self._open_calls:
            return
        self._open_calls.discard(call_id)
        self._create_item("function_call_output", call_id=call_id, output=result)
        if not self._open_calls:
            self._owes_answer = True
            self.pump()

    def pump(self) -> None:
        """Request the next response, if none exists: a text that has to be said, or an answer that is due."""
        if not self.is_applied or self._phase is not _Phase.IDLE:
            return
        if self._to_say:
            self._saying = self._to_say.popleft()
            self._phase = _Phase.REQUESTED
            if self._dialect.speaks_verbatim:
                content = _text_part("output_text", self._saying)
                self._create_item("force_message", role="assistant", content=content)
            else:
                self._put("response.create", response=_verbatim(self._saying))
        elif self._owes_answer:
            self._owes_answer = False
            self._phase = _Phase.REQUESTED
            self._put("response.create")

    @property
    def is_idle(self) -> bool:
        """Whether nothing is said, requested or awaited by either side."""
        is_busy = self.caller_speaks or self._to_say or self._owes_answer or self._open_calls or self._turns
        return self.is_applied and self._phase is _Phase.IDLE and not is_busy

    def give_up(self, turn: str) -> list[EngineEvent]:
        """This turn has neither text nor answer after a long time: go on without."""
        if self._phase is _Phase.REQUESTED:
            self._phase, self._awaits_auto = _Phase.IDLE, False
        text = self._turns.get(turn)
        return [] if text is None else [*self._transcribed(turn, text or NOT_TRANSCRIBED)]

    @property
    def waits_for_text(self) -> bool:
        """Whether the server leaves it to us to answer a turn, when its text is there."""
        return not self._turn_detection.get("create_response", True)

    def answer(self) -> None:
        """Request an answer to what was said, or once more one that failed."""
        self._owes_answer = True
        self.pump()

    # From the server

    def receive(self, frame: bytes | str) -> list[EngineEvent | bytes]:
        """The events in one text frame, and the agent's audio. Raises RemoteProtocolError if it is not a message."""
        try:
            message = orjson.loads(frame)
        except orjson.JSONDecodeError:
            raise RemoteProtocolError(self._name, "sent text that is not JSON") from None
        if not isinstance(message, dict) or not isinstance(kind := message.get("type"), str):
            raise RemoteProtocolError(self._name, "sent a message without a type")
        if kind == _AUDIO or (kind := _BETA_NAMES.get(kind, kind)) == _AUDIO:
            return self._audio(message)
        match kind.partition(".")[0]:
            case "response":
                return [*self._response_event(kind, message)]
            case "input_audio_buffer":
                return [*self._caller_event(kind, message)]
            case "conversation":
                return [*self._conversation_event(kind, message)]
            case _:
                return [*self._session_event(kind, message)]

    def _audio(self, message: Mapping[str, Any]) -> list[EngineEvent | bytes]:
        if not self._is_audible(message):
            return []
        response, item_id = self._response, message.get("item_id")
        try:
            audio = a2b_base64(message["delta"])
        except (Base64Error, ValueError, TypeError, KeyError):
            raise RemoteProtocolError(self._name, "sent audio that is not base64") from None
        if self._answer_is_over:
            self._items, self._answer_is_over = [], False
        item = self._items[-1] if self._items else None
        if item is None or item.id != item_id:
            item = _Item(str(item_id), response.id)
            self._items.append(item)
        item.size += len(audio)
        if response.has_audio and not self._ready_texts:
            return [audio]
        response.has_audio = True
        if response.said and not response.has_text:
            self._ready_texts, response.has_text = [response.said], True
        return [*self._final_turns(), audio, *self._said()]

    # Responses

    def _response_event(self, kind: str, message: Mapping[str, Any]) -> Iterable[EngineEvent]:
        match kind:
            case "response.created":
                return self._created(message)
            case "response.done":
                return self._done(table(message, "response"), message)
            case "response.output_audio_transcript.delta" if self._has_own_words(message):
                self._response.has_text = True
                self._ready_texts += self._splitter.feed(_text(message, "delta"))
                return self._said()
            case "response.output_audio_transcript.done" if self._has_own_words(message):
                if not self._response.has_text:
                    self._ready_texts += self._splitter.feed(_text(message, "transcript"))
                return self._said(is_last=True)
            case "response.output_text.delta" if self._has_own_words(message) and not self._response.has_text:
                self._response.has_text = True
                if self._history_ids:
                    self._history_ids.append(_text(message, "item_id"))
                    self._pack_history()
                return [engine.EngineWarned("ANSWERED_IN_TEXT")]
            case "response.output_item.done":
                self._add_function(table(message, "item"))
        return self._unknown(kind)

    def _is_audible(self, message: Mapping[str, Any]) -> bool:
        """Whether this belongs to a response that the caller may hear. Some servers do not announce responses."""
        if (response_id := message.get("response_id")) == self._response.id and response_id:
            return not self._response.is_muted
        if not isinstance(response_id, str) or not response_id or response_id in self._past:
            return False
        self._begin(response_id, is_ours=True)
        return not self._response.is_muted

    def _has_own_words(self, message: Mapping[str, Any]) -> bool:
        """The same for a text that is not the one we asked for."""
        return self._is_audible(message) and not self._response.said

    def _begin(self, response_id: str, *, is_ours: bool) -> None:
        """A response exists. Some services drop the one before it silently."""
        self._past.add(self._response.id)
        self._phase, self._awaits_auto = _Phase.ACTIVE, False
        self._response = _Response(response_id)
        if is_ours:
            self._response.said, self._saying = self._saying, ""
            self._cancels_next |= self._cancels_saying
            self._cancels_saying = False
        self._requested.clear()
        self._splitter, self._ready_texts = SentenceSplitter(), []
        if self._cancels_next:
            self._cancels_next = False
            self._cancel()

    def _created(self, message: Mapping[str, Any]) -> Iterable[EngineEvent]:
        response = table(message, "response")
        response_id = str(response.get("id"))
        if response_id != self._response.id and response_id not in self._past:
            # Servers that do not return our metadata answer the caller by themselves only after a turn.
            is_ours = bool(table(response, "metadata")) or "metadata" not in response or not self._awaits_auto
            if not (is_ours and self._saying):
                self._owes_answer = False  # this response knows the results, too
            self._begin(response_id, is_ours=is_ours)
        return ()

    def _done(self, response: Mapping[str, Any], message: Mapping[str, Any]) -> Iterable[EngineEvent]:
        if usage := _usage(table(response, "usage") or table(message, "usage")):
            yield engine.UsageReported(usage)
        response_id = str(response.get("id"))
        is_other = self._phase is _Phase.ACTIVE and response_id != self._response.id
        if is_other or response_id in self._past:
            return  # of one that another has replaced
        for item in response.get("output") or ():
            if isinstance(item, dict):
                self._add_function(item)
        current, status = self._response, response.get("status")
        self._past.add(response_id)
        self._phase = _Phase.REQUESTED if self._awaits_auto else _Phase.IDLE
        self._response = _Response("")
        self._saying, self._cancels_saying = "", False
        calls, self._requested = tuple(self._requested), []
        if current.is_muted or status == "cancelled":
            for call in calls:  # without any result the model would wait for it
                self._create_item("function_call_output", call_id=call.id, output=_CANCELLED)
            if current.said and not current.has_audio:
                yield engine.InjectionRefused()
            elif not current.is_muted:
                yield from self._said(is_last=True)
        elif status == "failed":
            yield from self._failed(response)
        else:
            self.failures = 0
            yield from self._final_turns()
            yield from self._said(is_last=True)
            if status == "incomplete":
                yield engine.EngineWarned(f"INCOMPLETE_{table(response, 'status_details').get('reason', '')}".upper())
            if current.has_audio:
                yield engine.AgentAudioDone()
            if calls:
                self._open_calls |= {call.id for call in calls}
                yield engine.FunctionsRequested(calls)

    def _failed(self, response: Mapping[str, Any]) -> Iterable[EngineEvent]:
        error = table(table(response, "status_details"), "error")
        code = str(error.get("code") or error.get("type") or "RESPONSE_FAILED")
        self.failures += 1
        if code in _FINAL_ERRORS or self.failures > 1:
            yield engine.EngineFailed(code, retryable=code not in _FINAL_ERRORS)
        else:
            yield engine.EngineWarned(code)

    def _add_function(self, item: Mapping[str, Any]) -> None:
        call_id = item.get("call_id")
        is_call = item.get("type") == "function_call" and isinstance(call_id, str)
        if is_call and item.get("status", "completed") == "completed" and call_id not in self._known_calls:
            self._known_calls.add(str(call_id))
            call = FunctionCall(str(call_id), str(item.get("name") or ""), str(item.get("arguments") or ""))
            self._requested.append(call)

    def _said(self, *, is_last: bool = False) -> list[EngineEvent]:
        """Sentences whose audio has begun: the call takes a text for one of audio that was sent before it."""
        if is_last:
            self._ready_texts += self._splitter.finish()
        if not self._response.has_audio and not is_last:
            return []
        texts, self._ready_texts = self._ready_texts, []
        return [engine.AgentSaid(clean) for text in texts if (clean := text.replace("\0", "").strip())]

    def _cancel(self) -> None:
        self._response.is_muted = True
        self._put("response.cancel", **({"response_id": self._response.id} if self._response.id else {}))

    def _drop_answer(self) -> None:
        """The gateway answers in the model's place: cancel its answer, and delete what was not meant to be heard."""
        if self._phase is _Phase.REQUESTED:
            self._cancels_next = True
            return
        if self._phase is _Phase.ACTIVE and not self._response.is_muted:
            self._cancel()
        last = self._items[-1].response if self._items and not self._answer_is_over else ""
        for item in self._items:
            if item.response == last:
                self._put("conversation.item.delete", item_id=item.id)
        self._items = []

    # The caller

    def _caller_event(self, kind: str, message: Mapping[str, Any]) -> Iterable[EngineEvent]:
        turn = _text(message, "item_id")
        match kind:
            case "input_audio_buffer.speech_started":
                self.caller_speaks = True
                if turn not in self._turns:
                    yield from self._final_turns()
                self._answer_is_over = self._interrupts_itself or self._phase is not _Phase.ACTIVE
                if self._phase is _Phase.ACTIVE and self._interrupts_itself and not self._response.is_muted:
                    yield from self._said(is_last=True) if self._response.has_audio else ()
                    self._response.is_muted = True
                elif self._phase is _Phase.REQUESTED and self._saying:
                    self._cancels_saying = True
                yield engine.UserStartedSpeaking(not self._interrupts_itself)
            case "input_audio_buffer.committed":
                self.caller_speaks = False
                self._answered_turns += 1
                if self._turn_detection.get("create_response", True):
                    self._awaits_auto = True
                    if self._phase is _Phase.IDLE:
                        self._phase = _Phase.REQUESTED
                if self._has_transcription:
                    self._turns.setdefault(turn, "")
                yield engine.TurnEnded(turn if self._has_transcription else "")
            case _:
                self._unknown(kind)

    def _conversation_event(self, kind: str, message: Mapping[str, Any]) -> Iterable[EngineEvent]:
        turn = _text(message, "item_id")
        match kind.removeprefix("conversation.item."):
            case "input_audio_transcription.updated":
                if turn in self._turns:
                    self._turns[turn] = _text(message, "transcript")
            case "input_audio_transcription.completed":
                if usage := _transcription_usage(table(message, "usage")):
                    yield engine.UsageReported(usage)
                text = _text(message, "transcript").replace("\0", "").strip()
                if self._takes_repeats and turn in self._turns:
                    self._turns[turn] = text
                else:
                    yield from self._transcribed(turn, text)
            case "input_audio_transcription.failed":
                yield engine.EngineWarned("TRANSCRIPTION_FAILED")
                yield from self._transcribed(turn, NOT_TRANSCRIBED)
            case "added":
                if table(message, "item").get("id") in self._notes:
                    yield engine.PromptUpdated()
            case _:
                self._unknown(kind)

    def _transcribed(self, turn: str, text: str) -> Iterable[EngineEvent]:
        """The final text of a turn, once. Some servers do not report the end of the turn."""
        if turn in self._transcribed_turns:
            return
        self._transcribed_turns.add(turn)
        if self._turns.pop(turn, None) is None:
            self.caller_speaks = False
            yield engine.TurnEnded(turn)
        yield engine.UserSaid(text, turn)

    def _final_turns(self) -> list[EngineEvent]:
        """The answer begins, or another turn: texts that were repeated so far are final."""
        if not self._takes_repeats:
            return []
        turns, self._turns = self._turns, {}
        self._transcribed_turns |= turns.keys()
        return [engine.UserSaid(text, turn) for turn, text in turns.items()]

    # The session

    def _session_event(self, kind: str, message: Mapping[str, Any]) -> Iterable[EngineEvent]:
        match kind:
            case "session.created":
                yield engine.EngineGreeted(str(table(message, "session").get("id", "")))
            case "session.updated" if self.is_applied:
                yield engine.PromptUpdated()
            case "session.updated":
                if problem := self._dialect.format_problem(table(message, "session")):
                    yield engine.EngineFailed(problem, retryable=False)
                else:
                    self.is_applied = True
                    self._open_conversation()
                    yield engine.SettingsApplied()
            case "error":
                yield from self._error(table(message, "error"))
            case _:
                self._unknown(kind)

    def _open_conversation(self) -> None:
        """The conversation so far, or the greeting."""
        for number, item in enumerate(self._settings.history, 1):
            item_id = f"earlier_{number}"
            self._history_ids.append(item_id)
            if isinstance(item, engine.HistoryMessage):
                kind = "input_text" if item.role == "user" else "output_text"
                self._create_item("message", id=item_id, role=item.role, content=_text_part(kind, item.text))
            else:
                call = {"call_id": item_id, "name": item.call.name, "arguments": item.call.arguments or "{}"}
                self._history_ids.append(f"{item_id}_result")
                self._create_item("function_call", id=item_id, **call)
                self._create_item("function_call_output", id=f"{item_id}_result", call_id=item_id, output=item.answer)
        last = self._settings.history[-1:]
        self._owes_answer = any(isinstance(item, engine.HistoryMessage) and item.role == "user" for item in last)
        if self._settings.greeting:
            self._to_say.append(self._settings.greeting)

    def _pack_history(self) -> None:
        """Some models answer texts of the assistant in text. As one message of the user they do not."""
        self._cancel()
        for item_id in self._history_ids:
            self._put("conversation.item.delete", item_id=item_id)
        self._history_ids = []
        messages = [item for item in self._settings.history if isinstance(item, engine.HistoryMessage)]
        lines = [_PACKED, *(f"{message.role}: {message.text}" for message in messages)]
        self._create_item("message", role="user", content=_text_part("input_text", "\n".join(lines)))
        self._owes_answer = True

    def _error(self, error: Mapping[str, Any]) -> Iterable[EngineEvent]:
        code, kind, text = (str(error.get(name) or "") for name in ("code", "type", "message"))
        name = " ".join(filter(None, [code or kind or "ERROR", str(error.get("param") or "")]))
        text = text.casefold()
        if {code, kind} & _FINAL_ERRORS:
            yield engine.EngineFailed(name, retryable=False)
        elif {code, kind} & _LOST_ERRORS:
            yield engine.EngineFailed(name, retryable=True)
        elif not self.is_applied:  # nothing of our settings is in effect
            yield engine.EngineFailed(name, retryable=False)
        elif code == _BUSY or "already has an active response" in text:
            if not self._saying:
                self._owes_answer = True
            elif not self._cancels_saying:
                self._to_say.appendleft(self._saying)
            self._saying, self._cancels_saying = "", False
            self._phase = _Phase.ACTIVE if self._response.id else _Phase.REQUESTED
        elif code not in _HARMLESS_ERRORS and not any(part in text for part in _HARMLESS_TEXTS):
            yield engine.EngineWarned(name)

    def _unknown(self, kind: str) -> Iterable[EngineEvent]:
        if kind not in _IGNORED and not kind.startswith("response.output"):
            self.unknown_types.add(kind)
        return ()

    # Messages

    @property
    def _turn_detection(self) -> Mapping[str, Any]:
        audio_input = table(table(self._session, "audio"), "input")
        return table(self._session, "turn_detection") or table(audio_input, "turn_detection")

    @property
    def _interrupts_itself(self) -> bool:
        """Whether the server cancels its answer when the caller speaks."""
        return self._turn_detection.get("interrupt_response", True) is not False

    @property
    def _has_transcription(self) -> bool:
        return bool(table(table(table(self._session, "audio"), "input"), "transcription"))

    def _create_item(self, kind: str, **fields: Any) -> None:
        self._put("conversation.item.create", item={"type": kind, **fields})

    def _new_id(self, kind: str) -> str:
        self._ids += 1
        return f"{kind}_{self._ids}"

    def _put(self, kind: str, **fields: Any) -> None:
        self.outgoing.append(orjson.dumps({"type": kind, "event_id": self._new_id("ev"), **fields}))


def _verbatim(text: str) -> dict[str, Any]:
    """Without input the model has nothing else to speak about. Its answer enters the conversation all the same."""
    return {
        "input": [],
        "instructions": f"Say exactly the following, word for word, and nothing else:\n\n{text}",
        "tool_choice": "none",
        "metadata": {"purpose": "say"},
    }


def _text_part(kind: str, text: str) -> list[dict[str, str]]:
    return [{"type": kind, "text": text}]


def _usage(usage: Mapping[str, Any]) -> dict[str, int]:
    """Tokens by kind, for the price of a call: cached ones are part of those that went in."""
    incoming, outgoing = table(usage, "input_token_details"), table(usage, "output_token_details")
    cached = table(incoming, "cached_tokens_details")
    counts = {
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "cached_tokens": incoming.get("cached_tokens"),
        "input_audio_tokens": incoming.get("audio_tokens"),
        "output_audio_tokens": outgoing.get("audio_tokens"),
        "cached_audio_tokens": cached.get("audio_tokens"),
    }
    return {name: count for name, count in counts.items() if isinstance(count, int) and count > 0}


def _transcription_usage(usage: Mapping[str, Any]) -> dict[str, int]:
    tokens, seconds = usage.get("total_tokens"), usage.get("seconds")
    if isinstance(tokens, int) and tokens > 0:
        return {"transcription_tokens": tokens}
    return {"transcription_ms": round(seconds * 1000)} if isinstance(seconds, int | float) and seconds > 0 else {}


def _text(message: Mapping[str, Any], name: str) -> str:
    value = message.get(name)
    return value if isinstance(value, str) else ""
