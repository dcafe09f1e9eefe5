"""The carriers' REST APIs for calls: dial, answer, reject, hang up, transfer."""

import asyncio
import contextlib
import hashlib
import uuid
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol
from urllib.parse import quote, urljoin

import httpx

from gateway.errors import CarrierRefused, NumberNotAllowed, StreamInUse
from gateway.metrics import REFUSED
from gateway.settings import Secret
from gateway.telephony import twilio
from gateway.telephony.machine_detection import MachineDetection
from gateway.telephony.phone_numbers import DialingRules
from gateway.telephony.telnyx import order_state, stream_command, transfer_state

RING_SECONDS: Final = 30
"""How long a dialled number may ring. Twilio adds about 5 s (Twilio docs, "TwiML Voice: <Dial>", timeout)."""
GOODBYE_SECONDS: Final = 60
"""A carrier ends a call without warning, so its limit is this much longer than the gateway's own."""
SHORTEST_LIMIT: Final = 60
"""Telnyx accepts no shorter time limit (Telnyx API reference, "Dial", time_limit_secs)."""

_TIMEOUT: Final = httpx.Timeout(5.0, connect=2.0)
_RETRY_PAUSES: Final = (0.2, 0.6)
_STOP_PAUSES: Final = (0.1, 0.3, 0.6, 1.0)
"""Pauses between `streaming_stop` and each attempt to start a new stream: 200 means accepted, not done."""
HANG_UP_PAUSES: Final = (0.2, 0.6, 1.5, 3.0)
"""Pauses between attempts to end a Telnyx call. More than for other commands: nothing else would end the call."""
_HANG_UP_TIMEOUT: Final = httpx.Timeout(2.0)
# Telnyx docs, "Error codes".
_TELNYX_ENDED: Final = frozenset({"90018", "90015"})  # call has already ended, invalid call control id
_TELNYX_STREAM_IN_USE: Final = "90045"
_TELNYX_NO_STREAM: Final = _TELNYX_ENDED | {"90048"}
_DETECTION: Final = {MachineDetection.MACHINE: "detect", MachineDetection.GREETING_END: "greeting_end"}
"""`answering_machine_detection` (Telnyx API reference, "Dial"). Premium detection reports no end without a beep."""


class CallControl(Protocol):
    """A carrier's REST API for one account."""

    stop_ends_call: ClassVar[bool]
    """Whether a `stop` on the media stream means that the call has ended."""
    asks_to_resume: ClassVar[bool]
    """Whether the carrier requests instructions when a stream is lost. Otherwise the gateway starts a new stream."""

    async def hang_up(self, call_id: str) -> None:
        """End the call. Succeeds if it has already ended. CarrierRefused if all attempts failed."""

    async def is_alive(self, call_id: str) -> bool | None:
        """Whether the call is still live; None if the carrier does not answer."""

    async def restart_stream(self, call_id: str, *, stream_url: str, replaces: bool) -> None:
        """
        Start a new media stream of a live call. Raises CarrierRefused, or StreamInUse if the call still has a stream.

        `replaces`: the existing stream is known to be dead and is stopped first.
        """

    async def dial(self, to: str, *, caller_id: str, order_id: str, media_url: str, detection: MachineDetection) -> str:
        """
        Call an E.164 number from a number of the account. Returns the call id. Raises CarrierRefused.

        Webhooks report the outcome and contain `order_id`. `media_url` is the URL of the call's media stream.
        """

    async def transfer(self, call_id: str, target: str, *, caller_id: str, media_url: str) -> None:
        """
        Transfer the caller to an E.164 number or a SIP address; the call's media stream ends.

        The other side sees `caller_id`, a number of the account; if empty, the carrier chooses. `media_url` is the URL
        of the call's media stream. On return the other side is being called; webhooks report the outcome. After
        CarrierRefused the caller is still connected to the agent, unless the carrier's answer was lost. Raises
        NumberNotAllowed, too.
        """


@dataclass(frozen=True)
class DialLimits:
    """What may be dialled, and how many seconds such a call may last; 0: as long as the carrier allows."""

    rules: DialingRules = DialingRules()
    seconds: int = 0

    def check(self, carrier: str, target: str, own: str) -> None:
        """Raise NumberNotAllowed, and count it, unless the agent with the number `own` may dial this."""
        try:
            self.rules.check(target, own)
        except NumberNotAllowed:
            REFUSED.labels(carrier, "number not allowed").inc()
            raise


class _RestApi:
    """Sends commands to one carrier."""

    carrier: ClassVar[str]
    longest_call: ClassVar[int]
    """The highest time limit that the carrier accepts, in seconds."""

    def __init__(self, http: httpx.AsyncClient, url: str, limits: DialLimits, **credentials: Any) -> None:
        """`credentials` are httpx options of every request."""
        self._http = http
        self._url = url
        self._limits = limits
        self._credentials = credentials

    async def _send(
        self,
        command: str,
        path: str,
        *,
        method: str = "POST",
        ended: frozenset[str] = frozenset(),
        pauses: tuple[float, ...] = _RETRY_PAUSES,
        timeout: httpx.Timeout = _TIMEOUT,
        **content: Any,
    ) -> dict[str, Any]:
        """
        Send a command and return the answer. Retries after each pause if the failure is temporary.

        `ended` are the error codes or statuses of a call that has ended; they count as success.
        """
        options = {**self._credentials, **content, "timeout": timeout}
        for pause in (*pauses, None):
            try:
                response = await self._http.request(method, self._url + path, **options)
            except httpx.HTTPError as error:
                refusal = CarrierRefused(self.carrier, command, 0, type(error).__name__, retryable=True)
            else:
                try:
                    body = response.json()
                except ValueError:
                    body = {}
                code, status = error_code(body), response.status_code
                if response.is_success or ended & {code, str(status)}:
                    return body if isinstance(body, dict) else {}
                refusal = CarrierRefused(self.carrier, command, status, code, retryable=status == 429 or status >= 500)
            if not refusal.retryable or pause is None:
                break
            await asyncio.sleep(pause)
        raise refusal

    def _time_limit(self, *, extra: int = 0) -> int:
        """The carrier's own limit for a call that is dialled. It holds if the gateway dies, and for transfers."""
        seconds = self._limits.seconds + extra if self._limits.seconds else self.longest_call
        return min(max(seconds, SHORTEST_LIMIT), self.longest_call)

    async def _read_call(self, path: str) -> dict[str, Any] | None:
        """The carrier's record of a call; None if it has none, empty if it does not answer."""
        try:
            return await self._send("call", path, method="GET", pauses=())
        except CarrierRefused as refused:
            return None if refused.status in (404, 422) else {}  # Telnyx answers 422 for an id that has expired


class TwilioControl(_RestApi):
    """Twilio's Calls resource."""

    carrier: ClassVar[str] = "twilio"
    longest_call: ClassVar[int] = 24 * 3600  # Twilio docs, "TwiML Voice: <Dial>", timeLimit
    stop_ends_call: ClassVar[bool] = True
    asks_to_resume: ClassVar[bool] = True

    def __init__(
        self, http: httpx.AsyncClient, *, api_url: str, account_sid: str, auth_token: Secret, limits: DialLimits
    ) -> None:
        url = f"{api_url.rstrip('/')}/2010-04-01/Accounts/{quote(account_sid, safe='')}/Calls"
        super().__init__(http, url, limits, auth=httpx.BasicAuth(account_sid, auth_token.reveal()))

    async def hang_up(self, call_id: str) -> None:
        # A finished call gives 404 (20404) or 400 (21220) (Twilio docs, "Error and Warning Dictionary").
        ended = frozenset({"404", "20404", "21220"})
        await self._send("hang-up", _twilio_path(call_id), data={"Status": "completed"}, ended=ended)

    async def is_alive(self, call_id: str) -> bool | None:
        call = await self._read_call(_twilio_path(call_id))
        if call is None:
            return False
        status = call.get("status")
        return status in ("queued", "ringing", "in-progress") if isinstance(status, str) else None

    async def restart_stream(self, call_id: str, *, stream_url: str, replaces: bool) -> None:
        raise CarrierRefused("twilio", "a new stream", 0, "it requests one itself")

    async def dial(self, to: str, *, caller_id: str, order_id: str, media_url: str, detection: MachineDetection) -> str:
        webhooks = _webhooks(media_url)
        form = {
            "To": to,
            "From": caller_id,
            "Url": urljoin(webhooks, f"outbound?order={order_id}"),
            "StatusCallback": urljoin(webhooks, f"status?order={order_id}"),
            "Timeout": str(RING_SECONDS),
            "TimeLimit": str(self._time_limit(extra=GOODBYE_SECONDS)),
        }
        if detection is not MachineDetection.OFF:
            # Asynchronous: otherwise the called party hears nothing until Twilio is sure.
            form |= {
                "MachineDetection": "Enable" if detection is MachineDetection.MACHINE else "DetectMessageEnd",
                "AsyncAmd": "true",
                "AsyncAmdStatusCallback": form["StatusCallback"],
            }
        # No retry: if only the answer was lost, the phone is ringing already and would get a second call.
        call = await self._send("dial", ".json", data=form, pauses=())
        return str(call.get("sid", ""))

    async def transfer(self, call_id: str, target: str, *, caller_id: str, media_url: str) -> None:
        self._limits.check(self.carrier, target, caller_id)
        # Absolute URLs: TwiML sent by REST has no base URL for relative ones (error 15004).
        resume_url, status_url = (urljoin(_webhooks(media_url), name) for name in ("resume", "status"))
        document = twilio.dial(
            target,
            caller_id=caller_id,
            ring_seconds=RING_SECONDS,
            time_limit=self._time_limit(),
            resume_url=resume_url,
            status_url=status_url,
        )
        # No retry: if only the answer was lost, the target is ringing already and would be called twice.
        await self._send("transfer", _twilio_path(call_id), data={"Twiml": document}, pauses=())


def _twilio_path(call_id: str) -> str:
    return f"/{quote(call_id, safe='')}.json"


def _webhooks(media_url: str) -> str:
    """The base URL of the carrier's webhooks: they share the path prefix of its media."""
    return media_url.replace("wss:", "https:", 1)


class SoftphoneControl:
    """The gateway's own softphone: the call ends with its media socket."""

    stop_ends_call: ClassVar[bool] = True
    asks_to_resume: ClassVar[bool] = False

    async def hang_up(self, call_id: str) -> None:
        pass  # the socket closes with the call

    async def is_alive(self, call_id: str) -> bool | None:
        return False

    async def restart_stream(self, call_id: str, *, stream_url: str, replaces: bool) -> None:
        raise CarrierRefused("softphone", "a new stream", 0, "it has no REST API")

    async def dial(self, to: str, *, caller_id: str, order_id: str, media_url: str, detection: MachineDetection) -> str:
        raise CarrierRefused("softphone", "dial", 0, "it has no phone line")

    async def transfer(self, call_id: str, target: str, *, caller_id: str, media_url: str) -> None:
        raise CarrierRefused("softphone", "transfer", 0, "it has no phone line")


class TelnyxControl(_RestApi):
    """
    Telnyx Call Control. A call does not end with its media socket, so every exit path must call `hang_up`.

    Command ids are derived from the call: a repeated webhook or another node sends the same command id, and Telnyx
    executes it once (Telnyx docs, "Call Control: command_id").
    """

    carrier: ClassVar[str] = "telnyx"
    longest_call: ClassVar[int] = 14_400  # Telnyx API reference, "Dial", time_limit_secs
    stop_ends_call: ClassVar[bool] = False
    asks_to_resume: ClassVar[bool] = False

    def __init__(
        self,
        http: httpx.AsyncClient,
        *,
        api_url: str,
        api_key: Secret,
        limits: DialLimits,
        hang_up_pauses: tuple[float, ...] = HANG_UP_PAUSES,
    ) -> None:
        super().__init__(http, api_url.rstrip("/"), limits, headers={"Authorization": f"Bearer {api_key.reveal()}"})
        self._hang_up_pauses = hang_up_pauses

    async def answer(self, call_id: str, *, stream_url: str, command_key: str) -> None:
        await self._act(call_id, "answer", stream_command(stream_url=stream_url, command_id=f"answer-{command_key}"))

    async def reject(self, call_id: str, *, command_key: str, busy: bool = False) -> None:
        cause = "USER_BUSY" if busy else "CALL_REJECTED"
        await self._act(call_id, "reject", {"cause": cause, "command_id": f"reject-{command_key}"})

    async def is_alive(self, call_id: str) -> bool | None:
        answer = await self._read_call(f"/calls/{quote(call_id, safe='')}")
        call = answer.get("data") if answer is not None else {"is_alive": False}
        is_alive = call.get("is_alive") if isinstance(call, dict) else None
        return is_alive if isinstance(is_alive, bool) else None

    async def restart_stream(self, call_id: str, *, stream_url: str, replaces: bool) -> None:
        # Telnyx ignores a repeated command id for a minute, so each new stream needs a new one, even after a restart of
        # the gateway. The hash of the URL is unique because each stream has its own token.
        intention = hashlib.blake2b(stream_url.encode(), digest_size=16).hexdigest()
        for number, pause in enumerate((*_STOP_PAUSES, None)):
            command = stream_command(stream_url=stream_url, command_id=f"stream-{intention}-{number}")
            try:
                return await self._act(call_id, "streaming_start", command, ended=frozenset())
            except CarrierRefused as refused:
                if refused.code != _TELNYX_STREAM_IN_USE:
                    raise
                if pause is None or not replaces:
                    raise StreamInUse("telnyx", "streaming_start", refused.status, refused.code) from None
            if number == 0:
                await self._stop_stream(call_id, intention)
            await asyncio.sleep(pause)

    async def dial(self, to: str, *, caller_id: str, order_id: str, media_url: str, detection: MachineDetection) -> str:
        # The number's Call Control application, whose webhooks this gateway receives.
        query = {"filter[phone_number]": caller_id}
        found = (await self._send("phone_numbers", "/phone_numbers", method="GET", params=query)).get("data")
        numbers = found if isinstance(found, list) else []
        connections = [one["connection_id"] for one in numbers if isinstance(one, dict) and one.get("connection_id")]
        if not connections:
            raise CarrierRefused("telnyx", "dial", 0, "the calling number has no connection")
        command = {
            "connection_id": str(connections[0]),
            "to": to,
            "from": caller_id,
            "timeout_secs": RING_SECONDS,
            "time_limit_secs": self._time_limit(extra=GOODBYE_SECONDS),
            "client_state": order_state(order_id),
            "command_id": f"dial-{order_id}",
            **({"answering_machine_detection": _DETECTION[detection]} if detection in _DETECTION else {}),
        }  # without a stream: it starts after the answer, so that no audio goes to a ringing phone
        call = (await self._send("dial", "/calls", json=command)).get("data")
        return str(call.get("call_control_id", "")) if isinstance(call, dict) else ""

    async def transfer(self, call_id: str, target: str, *, caller_id: str, media_url: str) -> None:
        self._limits.check(self.carrier, target, caller_id)
        # A new command id each time: the agent may transfer to the same number again.
        intention = uuid.uuid4().hex
        command = {
            "command_id": f"transfer-{intention}",
            "to": target,
            "timeout_secs": RING_SECONDS,
            "time_limit_secs": self._time_limit(),
            "target_leg_client_state": transfer_state(call_id),
            **({"from": caller_id} if caller_id else {}),
        }
        await self._act(call_id, "transfer", command, ended=frozenset())
        # Stop the stream afterwards, so that a refused transfer leaves the caller with the agent.
        with contextlib.suppress(CarrierRefused):
            await self._stop_stream(call_id, intention)

    async def hang_up(self, call_id: str) -> None:
        ended, pauses = _TELNYX_ENDED | {"404"}, self._hang_up_pauses
        command = {"command_id": f"hangup-{call_id}"}
        await self._act(call_id, "hangup", command, ended=ended, pauses=pauses, timeout=_HANG_UP_TIMEOUT)

    async def _stop_stream(self, call_id: str, intention: str) -> None:
        await self._act(call_id, "streaming_stop", {"command_id": f"stop-{intention}"}, ended=_TELNYX_NO_STREAM)

    async def _act(
        self, call_id: str, action: str, command: object, *, ended: frozenset[str] = _TELNYX_ENDED, **options: Any
    ) -> None:
        path = f"/calls/{quote(call_id, safe='')}/actions/{action}"
        await self._send(action, path, json=command, ended=ended, **options)


def error_code(body: Any) -> str:
    """The error code in an answer, as Twilio, Telnyx and ElevenLabs write it; empty if it has none."""
    match body:
        case {"code": code} | {"errors": [{"code": code}, *_]} | {"detail": {"status": str(code)}}:
            return str(code)
        case _:
            return ""
