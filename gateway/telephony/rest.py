"""The carriers' REST APIs for calls: dial, answer, reject, hang up, transfer."""

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Final, Protocol
from urllib.parse import quote, urljoin

import httpx

from gateway.errors import CarrierRefused, StreamInUse
from gateway.settings import Secret
from gateway.telephony import twilio
from gateway.telephony.telnyx import dial_command, stream_command, transfer_command

RING_SECONDS: Final = 30
"""How long a dialled number may ring. Twilio adds about 5 s (Twilio docs, "TwiML Voice: <Dial>", timeout)."""

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

    async def dial(self, to: str, *, caller_id: str, order_id: str, media_url: str) -> str:
        """
        Call an E.164 number from a number of the account. Returns the call id. Raises CarrierRefused.

        Webhooks report the outcome and contain `order_id`. `media_url` is the URL of the call's media stream.
        """

    async def transfer(self, call_id: str, target: str, *, caller_id: str, media_url: str) -> None:
        """
        Transfer the caller to an E.164 number or a SIP address; the call's media stream ends.

        The other side sees `caller_id`, a number of the account; if empty, the carrier chooses. `media_url` is the URL
        of the call's media stream. On return the other side is being called; webhooks report the outcome. After
        CarrierRefused the caller is still connected to the agent, unless the carrier's answer was lost.
        """


class TwilioControl:
    """Twilio's Calls resource."""

    stop_ends_call: ClassVar[bool] = True
    asks_to_resume: ClassVar[bool] = True

    def __init__(self, http: httpx.AsyncClient, *, api_url: str, account_sid: str, auth_token: Secret) -> None:
        self._http = http
        self._calls_url = f"{api_url.rstrip('/')}/2010-04-01/Accounts/{quote(account_sid, safe='')}/Calls"
        self._auth = httpx.BasicAuth(account_sid, auth_token.reveal())

    async def hang_up(self, call_id: str) -> None:
        # A finished call gives 404 (20404) or 400 (21220) (Twilio docs, "Error and Warning Dictionary").
        ended = frozenset({"404", "20404", "21220"})
        await self._update(call_id, "hang-up", {"Status": "completed"}, ended=ended)

    async def is_alive(self, call_id: str) -> bool | None:
        url = f"{self._calls_url}/{quote(call_id, safe='')}.json"
        call = await _read(lambda: self._http.get(url, auth=self._auth, timeout=_TIMEOUT))
        if call is None:
            return False
        status = call.get("status")
        return status in ("queued", "ringing", "in-progress") if isinstance(status, str) else None

    async def restart_stream(self, call_id: str, *, stream_url: str, replaces: bool) -> None:
        raise CarrierRefused("twilio", "a new stream", 0, "it requests one itself")

    async def dial(self, to: str, *, caller_id: str, order_id: str, media_url: str) -> str:
        webhooks = _webhooks(media_url)
        form = {
            "To": to,
            "From": caller_id,
            "Url": urljoin(webhooks, f"outbound?order={order_id}"),
            "StatusCallback": urljoin(webhooks, f"status?order={order_id}"),
            "Timeout": str(RING_SECONDS),
        }

        async def request() -> httpx.Response:
            return await self._http.post(f"{self._calls_url}.json", data=form, auth=self._auth, timeout=_TIMEOUT)

        # No retry: if only the answer was lost, the phone is ringing already and would get a second call.
        call = await _command("twilio", "dial", request, ended=frozenset(), code_of=_twilio_code, pauses=())
        return str(call.get("sid", ""))

    async def transfer(self, call_id: str, target: str, *, caller_id: str, media_url: str) -> None:
        # Absolute URLs: TwiML sent by REST has no base URL for relative ones (error 15004).
        webhooks = _webhooks(media_url)
        document = twilio.dial(
            target,
            caller_id=caller_id,
            ring_seconds=RING_SECONDS,
            resume_url=urljoin(webhooks, "resume"),
            status_url=urljoin(webhooks, "status"),
        )
        # No retry: if only the answer was lost, the target is ringing already and would be called twice.
        await self._update(call_id, "transfer", {"Twiml": document}, pauses=())

    async def _update(
        self,
        call_id: str,
        command: str,
        form: Mapping[str, str],
        *,
        ended: frozenset[str] = frozenset(),
        pauses: tuple[float, ...] = _RETRY_PAUSES,
    ) -> None:
        async def request() -> httpx.Response:
            url = f"{self._calls_url}/{quote(call_id, safe='')}.json"
            return await self._http.post(url, data=dict(form), auth=self._auth, timeout=_TIMEOUT)

        await _command("twilio", command, request, ended=ended, code_of=_twilio_code, pauses=pauses)


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

    async def dial(self, to: str, *, caller_id: str, order_id: str, media_url: str) -> str:
        raise CarrierRefused("softphone", "dial", 0, "it has no phone line")

    async def transfer(self, call_id: str, target: str, *, caller_id: str, media_url: str) -> None:
        raise CarrierRefused("softphone", "transfer", 0, "it has no phone line")


class TelnyxControl:
    """
    Telnyx Call Control.

    A Telnyx call does not end with its media socket, so every exit path must call `hang_up`. Command ids are derived
    from the call: a repeated webhook or another node sends the same command id, and Telnyx executes it once (Telnyx
    docs, "Call Control: command_id").
    """

    stop_ends_call: ClassVar[bool] = False
    asks_to_resume: ClassVar[bool] = False

    def __init__(
        self,
        http: httpx.AsyncClient,
        *,
        api_url: str,
        api_key: Secret,
        hang_up_pauses: tuple[float, ...] = HANG_UP_PAUSES,
    ) -> None:
        self._http = http
        self._hang_up_pauses = hang_up_pauses
        self._api_url = api_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key.reveal()}"}

    async def answer(self, call_id: str, *, stream_url: str, command_key: str) -> None:
        await self._act(call_id, "answer", stream_command(stream_url=stream_url, command_id=f"answer-{command_key}"))

    async def reject(self, call_id: str, *, command_key: str, busy: bool = False) -> None:
        cause = "USER_BUSY" if busy else "CALL_REJECTED"
        await self._act(call_id, "reject", {"cause": cause, "command_id": f"reject-{command_key}"})

    async def is_alive(self, call_id: str) -> bool | None:
        url = f"{self._api_url}/calls/{quote(call_id, safe='')}"
        answer = await _read(lambda: self._http.get(url, headers=self._headers, timeout=_TIMEOUT))
        call = answer.get("data") if answer is not None else {"is_alive": False}
        is_alive = call.get("is_alive") if isinstance(call, dict) else None
        return is_alive if isinstance(is_alive, bool) else None

    async def restart_stream(self, call_id: str, *, stream_url: str, replaces: bool) -> None:
        # Telnyx ignores a repeated command id for a minute, so each new stream needs a new one, even after a restart of
        # the gateway. The hash of the URL is unique because each stream has its own token.
        intention = hashlib.blake2b(stream_url.encode(), digest_size=16).hexdigest()
        for number, pause in enumerate((*_STOP_PAUSES, None)):
            try:
                return await self._start_stream(call_id, stream_url, f"{intention}-{number}")
            except StreamInUse:
                if pause is None or not replaces:
                    raise
            if number == 0:
                stop = {"command_id": f"stop-{intention}"}
                await self._act(call_id, "streaming_stop", stop, ended=_TELNYX_NO_STREAM)
            await asyncio.sleep(pause)

    async def _start_stream(self, call_id: str, stream_url: str, intention: str) -> None:
        command = stream_command(stream_url=stream_url, command_id=f"stream-{intention}")
        try:
            await self._act(call_id, "streaming_start", command, ended=frozenset())
        except CarrierRefused as refused:
            if refused.code == _TELNYX_STREAM_IN_USE:
                raise StreamInUse("telnyx", "streaming_start", refused.status, refused.code) from None
            raise

    async def dial(self, to: str, *, caller_id: str, order_id: str, media_url: str) -> str:
        command = dial_command(
            to,
            connection_id=await self._connection(caller_id),
            caller_id=caller_id,
            order_id=order_id,
            ring_seconds=RING_SECONDS,
        )

        async def request() -> httpx.Response:
            return await self._http.post(
                f"{self._api_url}/calls", json=command, headers=self._headers, timeout=_TIMEOUT
            )

        answer = await _command("telnyx", "dial", request, ended=frozenset(), code_of=_telnyx_code)
        call = answer.get("data")
        return str(call.get("call_control_id", "")) if isinstance(call, dict) else ""

    async def _connection(self, number: str) -> str:
        """The id of the number's Call Control application, whose webhooks this gateway receives."""
        query = {"filter[phone_number]": number}

        async def request() -> httpx.Response:
            url = f"{self._api_url}/phone_numbers"
            return await self._http.get(url, params=query, headers=self._headers, timeout=_TIMEOUT)

        answer = await _command("telnyx", "phone_numbers", request, ended=frozenset(), code_of=_telnyx_code)
        found = answer.get("data")
        numbers = found if isinstance(found, list) else []
        connections = [one.get("connection_id") for one in numbers if isinstance(one, dict)]
        if not any(connections):
            raise CarrierRefused("telnyx", "dial", 0, "the calling number has no connection")
        return str(next(filter(None, connections)))

    async def transfer(self, call_id: str, target: str, *, caller_id: str, media_url: str) -> None:
        # A new command id each time: the agent may transfer to the same number again.
        intention = uuid.uuid4()
        command = transfer_command(
            target, call_id=call_id, caller_id=caller_id, ring_seconds=RING_SECONDS, command_id=f"transfer-{intention}"
        )
        await self._act(call_id, "transfer", command, ended=frozenset())
        # Stop the stream afterwards, so that a refused transfer leaves the caller with the agent.
        with contextlib.suppress(CarrierRefused):
            await self._act(call_id, "streaming_stop", {"command_id": f"stop-{intention}"}, ended=_TELNYX_NO_STREAM)

    async def hang_up(self, call_id: str) -> None:
        command = {"command_id": f"hangup-{call_id}"}
        ended, pauses = _TELNYX_ENDED | {"404"}, self._hang_up_pauses
        await self._act(call_id, "hangup", command, ended=ended, pauses=pauses, timeout=_HANG_UP_TIMEOUT)

    async def _act(
        self,
        call_id: str,
        action: str,
        body: Mapping[str, str | int],
        *,
        ended: frozenset[str] = _TELNYX_ENDED,
        pauses: tuple[float, ...] = _RETRY_PAUSES,
        timeout: httpx.Timeout = _TIMEOUT,
    ) -> None:
        async def request() -> httpx.Response:
            url = f"{self._api_url}/calls/{quote(call_id, safe='')}/actions/{action}"
            return await self._http.post(url, json=dict(body), headers=self._headers, timeout=timeout)

        await _command("telnyx", action, request, ended=ended, code_of=_telnyx_code, pauses=pauses)


async def _command(
    carrier: str,
    command: str,
    request: Callable[[], Awaitable[httpx.Response]],
    *,
    ended: frozenset[str],
    code_of: Callable[[Any], str],
    pauses: tuple[float, ...] = _RETRY_PAUSES,
) -> dict[str, Any]:
    """
    Send a command and return the answer. Retries after each pause if the failure is temporary.

    `ended` are the error codes or statuses of a call that has ended; they count as success.
    """
    refusal = CarrierRefused(carrier, command, 0, "no answer", retryable=True)
    for pause in (*pauses, None):
        try:
            response = await request()
        except httpx.HTTPError as error:
            refusal = CarrierRefused(carrier, command, 0, type(error).__name__, retryable=True)
        else:
            code = _code(response, code_of)
            if response.is_success or ended & {code, str(response.status_code)}:
                return _body(response)
            retryable = response.status_code == 429 or response.status_code >= 500
            refusal = CarrierRefused(carrier, command, response.status_code, code, retryable=retryable)
        if not refusal.retryable or pause is None:
            break
        await asyncio.sleep(pause)
    raise refusal


async def _read(request: Callable[[], Awaitable[httpx.Response]]) -> dict[str, Any] | None:
    """A resource; empty if the carrier did not return it, None if it does not exist."""
    try:
        response = await request()
        answer = response.json() if response.is_success else {}
    except (httpx.HTTPError, ValueError):
        return {}
    if response.status_code in (404, 422):  # Telnyx answers 422 for an id that has expired
        return None
    return answer if isinstance(answer, dict) else {}


def _body(response: httpx.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _webhooks(media_url: str) -> str:
    """The base URL of the carrier's webhooks: they share the path prefix of its media."""
    return media_url.replace("wss:", "https:", 1)


def _code(response: httpx.Response, code_of: Callable[[Any], str]) -> str:
    try:
        return code_of(response.json())
    except (ValueError, KeyError, IndexError, TypeError):
        return ""


def _twilio_code(body: Any) -> str:
    return str(body["code"])


def _telnyx_code(body: Any) -> str:
    return str(body["errors"][0]["code"])
