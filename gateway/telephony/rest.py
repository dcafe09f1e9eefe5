"""The carriers' REST interfaces, as far as a call needs them: dial, answer, reject, hang up, transfer."""

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
"""How long somebody whom the caller is put through to may take to pick up. Twilio adds about 5."""

_TIMEOUT: Final = httpx.Timeout(5.0, connect=2.0)
_PAUSES: Final = (0.2, 0.6)
_STOPPING: Final = (0.1, 0.3, 0.6, 1.0)
"""Before a stream is asked for in place of one that was to be stopped: that it is accepted does not make it done."""
HANG_UP_PAUSES: Final = (0.2, 0.6, 1.5, 3.0)
"""Before each further try to end a call that nothing else would end."""
_HANG_UP_TIMEOUT: Final = httpx.Timeout(2.0)
_TELNYX_OVER: Final = frozenset({"90018", "90015"})
_TELNYX_STREAM_IN_USE: Final = "90045"
_TELNYX_NO_STREAM: Final = _TELNYX_OVER | {"90048"}


class CallControl(Protocol):
    """What a call's end, or its hand-over, needs of a carrier."""

    stop_ends_call: ClassVar[bool]
    """Whether the end of the media stream, told by the carrier, is the end of the call too."""
    asks_to_resume: ClassVar[bool]
    """Whether the carrier asks by itself what to do with a call whose stream was lost. Else we ask for a new one."""

    async def hang_up(self, call_id: str) -> None:
        """End the call. One that is over already is a success; CarrierRefused when all tries failed."""

    async def is_alive(self, call_id: str) -> bool | None:
        """Whether the caller is still there; None when the carrier does not say."""

    async def restart_stream(self, call_id: str, *, stream_url: str, replaces: bool) -> None:
        """
        Ask for a new media stream of a live call. CarrierRefused when there can't be one, StreamInUse: there is.

        `replaces`: a stream that the carrier still has is known to be dead, and is stopped.
        """

    async def dial(self, to: str, *, caller_id: str, order_id: str, media_url: str) -> str:
        """
        Call an E.164 number from one of the account's; returns the call's id. CarrierRefused when it can't be done.

        Webhooks tell what comes of it, and bring `order_id` along. `media_url` is where the call's media will come.
        """

    async def transfer(self, call_id: str, target: str, *, caller_id: str, media_url: str) -> None:
        """
        Put the caller through to an E.164 number or a SIP address; the call's media stream ends.

        `caller_id` is what the other side is shown, a number of the account; empty leaves it to the carrier.
        `media_url` is where the call's media came. On return the other side is being called, and webhooks tell what
        came of it. CarrierRefused: the caller is still with the agent, unless the carrier carried it out and its
        answer was lost.
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
        # A finished call is 404 (20404) or 400 (21220); both are seen, and both mean "already done".
        over = frozenset({"404", "20404", "21220"})
        await self._update(call_id, "hang-up", {"Status": "completed"}, over=over)

    async def is_alive(self, call_id: str) -> bool | None:
        url = f"{self._calls_url}/{quote(call_id, safe='')}.json"
        call = await _read(lambda: self._http.get(url, auth=self._auth, timeout=_TIMEOUT))
        if call is None:
            return False
        status = call.get("status")
        return status in ("queued", "ringing", "in-progress") if isinstance(status, str) else None

    async def restart_stream(self, call_id: str, *, stream_url: str, replaces: bool) -> None:
        raise CarrierRefused("twilio", "a new stream", 0, "it asks for one by itself")

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

        # Once: where the answer is lost their phone may ring already, and a second call would come after it.
        call = await _command("twilio", "dial", request, over=frozenset(), code_of=_twilio_code, pauses=())
        return str(call.get("sid", ""))

    async def transfer(self, call_id: str, target: str, *, caller_id: str, media_url: str) -> None:
        # The webhooks stand beside the media. A document sent by REST has no address of its own for relative ones
        # to start from (15004).
        webhooks = _webhooks(media_url)
        document = twilio.dial(
            target,
            caller_id=caller_id,
            ring_seconds=RING_SECONDS,
            resume_url=urljoin(webhooks, "resume"),
            status_url=urljoin(webhooks, "status"),
        )
        # Once: where the answer is lost the first try may have taken effect, and a second would ring them anew.
        await self._update(call_id, "transfer", {"Twiml": document}, pauses=())

    async def _update(
        self,
        call_id: str,
        command: str,
        form: Mapping[str, str],
        *,
        over: frozenset[str] = frozenset(),
        pauses: tuple[float, ...] = _PAUSES,
    ) -> None:
        async def request() -> httpx.Response:
            url = f"{self._calls_url}/{quote(call_id, safe='')}.json"
            return await self._http.post(url, data=dict(form), auth=self._auth, timeout=_TIMEOUT)

        await _command("twilio", command, request, over=over, code_of=_twilio_code, pauses=pauses)


class SoftphoneControl:
    """The gateway's own phone: its media socket is the whole call."""

    stop_ends_call: ClassVar[bool] = True
    asks_to_resume: ClassVar[bool] = False

    async def hang_up(self, call_id: str) -> None:
        pass  # the socket closes with the call

    async def is_alive(self, call_id: str) -> bool | None:
        return False

    async def restart_stream(self, call_id: str, *, stream_url: str, replaces: bool) -> None:
        raise CarrierRefused("softphone", "a new stream", 0, "it can't be called")

    async def dial(self, to: str, *, caller_id: str, order_id: str, media_url: str) -> str:
        raise CarrierRefused("softphone", "dial", 0, "it has no line to call on")

    async def transfer(self, call_id: str, target: str, *, caller_id: str, media_url: str) -> None:
        raise CarrierRefused("softphone", "transfer", 0, "it has no line to put the caller through on")


class TelnyxControl:
    """
    Telnyx Call Control. A Telnyx call never ends because its socket did, so every way out passes `hang_up`.

    Command ids follow from the call: a repeated webhook, or another node, repeats the same command, and Telnyx
    carries it out once.
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
        told = call.get("is_alive") if isinstance(call, dict) else None
        return told if isinstance(told, bool) else None

    async def restart_stream(self, call_id: str, *, stream_url: str, replaces: bool) -> None:
        # A new id for each intention, also of a gateway that died and has forgotten the last: the same one would be
        # ignored for a minute. No two streams have one token.
        intention = hashlib.blake2b(stream_url.encode(), digest_size=16).hexdigest()
        for number, pause in enumerate((*_STOPPING, None)):
            try:
                return await self._start_stream(call_id, stream_url, f"{intention}-{number}")
            except StreamInUse:
                if pause is None or not replaces:
                    raise
            if number == 0:
                stop = {"command_id": f"stop-{intention}"}
                await self._act(call_id, "streaming_stop", stop, over=_TELNYX_NO_STREAM)
            await asyncio.sleep(pause)

    async def _start_stream(self, call_id: str, stream_url: str, intention: str) -> None:
        command = stream_command(stream_url=stream_url, command_id=f"stream-{intention}")
        try:
            await self._act(call_id, "streaming_start", command, over=frozenset())
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

        answer = await _command("telnyx", "dial", request, over=frozenset(), code_of=_telnyx_code)
        call = answer.get("data")
        return str(call.get("call_control_id", "")) if isinstance(call, dict) else ""

    async def _connection(self, number: str) -> str:
        """The application that the number belongs to: it is the one whose webhooks come here."""
        query = {"filter[phone_number]": number}

        async def request() -> httpx.Response:
            url = f"{self._api_url}/phone_numbers"
            return await self._http.get(url, params=query, headers=self._headers, timeout=_TIMEOUT)

        answer = await _command("telnyx", "phone_numbers", request, over=frozenset(), code_of=_telnyx_code)
        found = answer.get("data")
        numbers = found if isinstance(found, list) else []
        connections = [one.get("connection_id") for one in numbers if isinstance(one, dict)]
        if not any(connections):
            raise CarrierRefused("telnyx", "dial", 0, "the number that is called from has no connection")
        return str(next(filter(None, connections)))

    async def transfer(self, call_id: str, target: str, *, caller_id: str, media_url: str) -> None:
        # A new id for each intention: the agent may try the same number again.
        intention = uuid.uuid4()
        command = transfer_command(
            target, call_id=call_id, caller_id=caller_id, ring_seconds=RING_SECONDS, command_id=f"transfer-{intention}"
        )
        await self._act(call_id, "transfer", command, over=frozenset())
        # Afterwards, so that a refused transfer leaves the caller with the agent. To close the socket ends it as well.
        with contextlib.suppress(CarrierRefused):
            await self._act(call_id, "streaming_stop", {"command_id": f"stop-{intention}"}, over=_TELNYX_NO_STREAM)

    async def hang_up(self, call_id: str) -> None:
        command = {"command_id": f"hangup-{call_id}"}
        over, pauses = _TELNYX_OVER | {"404"}, self._hang_up_pauses
        await self._act(call_id, "hangup", command, over=over, pauses=pauses, timeout=_HANG_UP_TIMEOUT)

    async def _act(
        self,
        call_id: str,
        action: str,
        body: Mapping[str, str | int],
        *,
        over: frozenset[str] = _TELNYX_OVER,
        pauses: tuple[float, ...] = _PAUSES,
        timeout: httpx.Timeout = _TIMEOUT,
    ) -> None:
        async def request() -> httpx.Response:
            url = f"{self._api_url}/calls/{quote(call_id, safe='')}/actions/{action}"
            return await self._http.post(url, json=dict(body), headers=self._headers, timeout=timeout)

        await _command("telnyx", action, request, over=over, code_of=_telnyx_code, pauses=pauses)


async def _command(
    carrier: str,
    command: str,
    request: Callable[[], Awaitable[httpx.Response]],
    *,
    over: frozenset[str],
    code_of: Callable[[Any], str],
    pauses: tuple[float, ...] = _PAUSES,
) -> dict[str, Any]:
    """
    Send a command and return what is answered, again after a passing fault, as long as there is a pause left.

    `over` are the codes, or statuses, of a call that has ended.
    """
    refusal = CarrierRefused(carrier, command, 0, "no answer", retryable=True)
    for pause in (*pauses, None):
        try:
            response = await request()
        except httpx.HTTPError as error:
            refusal = CarrierRefused(carrier, command, 0, type(error).__name__, retryable=True)
        else:
            code = _code(response, code_of)
            if response.is_success or over & {code, str(response.status_code)}:
                return _body(response)
            retryable = response.status_code == 429 or response.status_code >= 500
            refusal = CarrierRefused(carrier, command, response.status_code, code, retryable=retryable)
        if not refusal.retryable or pause is None:
            break
        await asyncio.sleep(pause)
    raise refusal


async def _read(request: Callable[[], Awaitable[httpx.Response]]) -> dict[str, Any] | None:
    """A resource; an empty one when the carrier does not give it, None when it says that there is none."""
    try:
        response = await request()
        answer = response.json() if response.is_success else {}
    except (httpx.HTTPError, ValueError):
        return {}
    if response.status_code in (404, 422):  # 422 is Telnyx's for an id that it does not know any more
        return None
    return answer if isinstance(answer, dict) else {}


def _body(response: httpx.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _webhooks(media_url: str) -> str:
    """The address beside which a carrier's webhooks stand: that of its media."""
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
