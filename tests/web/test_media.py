"""The media socket in strangers' hands. Nothing of theirs reaches the engine, and no call suffers."""

import contextlib
import json

import pytest
from websockets.asyncio.client import connect as dial
from websockets.exceptions import InvalidStatus

from gateway.calls.manager import MAX_STRANGERS_PER_PEER
from gateway.settings import Secret
from gateway.telephony.media_stream import MediaStream
from gateway.web.media import MediaEndpoint
from gateway.web.request import PublicUrl
from gateway.web.softphone import MediaPass, TokenCodec
from gateway.websocket.interface import UpgradeRequest
from tests.attacks import Stranger
from tests.fakes.carrier import UpgradeRefused
from tests.stage import ADMIN, SOUND, Stage, make_carrier, running_gateway, until

POLICY_VIOLATION = 1008
TOO_BIG = 1009


async def refused(stage: Stage, call, *, token: str, **start) -> int:
    """The close code for a `start` with this token."""
    stranger = await stage.carrier.connect(call, token=token)
    await stranger.send_json(
        stage.carrier.connected_message(),
        stage.carrier.start_message(call, stream_id=stranger.stream_id, token=token, **start),
    )
    return await stranger.wait_closed()


async def test_wrong_token_is_shown_out(stage: Stage) -> None:
    call = await stage.carrier.ring()
    assert await refused(stage, call, token="guess") == POLICY_VIOLATION
    assert await refused(stage, call, token="") == POLICY_VIOLATION
    assert stage.engine.conversations == []


async def test_right_token_still_works_after_a_guess(stage: Stage) -> None:
    call = await stage.carrier.ring()
    await refused(stage, call, token="guess")
    socket = await stage.carrier.connect(call, token=call.token)
    await socket.send_json(stage.carrier.start_message(call, stream_id=socket.stream_id, token=call.token))
    conversation = await stage.engine.next_conversation()
    await conversation.configured()
    await socket.close()


async def test_token_opens_once(stage: Stage) -> None:
    call, conversation = await stage.dial()
    assert await refused(stage, call, token=call.token) == POLICY_VIOLATION
    await call.speak(SOUND)
    await conversation.hears(len(SOUND))
    assert len(stage.engine.conversations) == 1


async def test_token_is_of_one_call_only(stage: Stage) -> None:
    first, second = await stage.carrier.ring(), await stage.carrier.ring("+12025550144")
    assert await refused(stage, first, token=second.token) == POLICY_VIOLATION
    assert await refused(stage, first, token=first.token, call_id=second.id) == POLICY_VIOLATION
    assert stage.engine.conversations == []


@pytest.mark.parametrize("frame", ["hello", "[]", b"\x00\x01", '{"event": "media", "media": {"payload": "AAAA"}}'])
async def test_anything_but_a_start_is_shown_out(stage: Stage, frame: str | bytes) -> None:
    call = await stage.carrier.ring()
    stranger = await stage.carrier.connect(call, token=call.token)
    await stranger.send(frame)
    assert await stranger.wait_closed() == POLICY_VIOLATION
    assert stage.engine.conversations == []


async def test_silent_socket_is_closed(stage: Stage) -> None:
    call = await stage.carrier.ring()
    stranger = await stage.carrier.connect(call, token=call.token)
    assert await stranger.wait_closed() == POLICY_VIOLATION


async def test_huge_frame_is_refused(stage: Stage) -> None:
    call = await stage.carrier.ring()
    stranger = await stage.carrier.connect(call, token=call.token)
    await stranger.send(json.dumps({"event": "start", "start": "x" * 70_000}))
    assert await stranger.wait_closed() == TOO_BIG


async def test_oldest_silent_socket_makes_room(stage: Stage) -> None:
    call = await stage.carrier.ring()
    strangers = [await stage.carrier.connect(call, token="x") for _ in range(201)]
    assert await strangers[0].wait_closed() == 1000
    _, conversation = await stage.dial("+12025550144")
    assert conversation.settings
    for stranger in strangers[1:]:
        stranger.abort()


async def test_stranger_never_evicts_a_caller(stage: Stage) -> None:
    """A carrier that proved who it is keeps its socket, whatever others open between webhook and `start`."""
    call = await stage.carrier.ring()
    waiting = await stage.carrier.connect(call, token=call.token)
    path = "/telnyx/media?token=x" if stage.carrier.name == "telnyx" else "/twilio/media"
    url = stage.url.replace("http", "ws", 1) + path
    strangers = [await dial(url, compression=None, proxy=None) for _ in range(MAX_STRANGERS_PER_PEER + 5)]
    await strangers[0].wait_closed()
    await waiting.send_json(stage.carrier.start_message(call, stream_id=waiting.stream_id, token=call.token))
    conversation = await stage.engine.next_conversation()
    await conversation.configured()
    for stranger in strangers:
        stranger.transport.abort()
    await waiting.close()


async def test_caller_without_signature_gets_through(stage: Stage) -> None:
    """Strangers with a few addresses open 200 sockets before and after the caller's, which then sends its `start`."""
    if stage.carrier.name != "twilio":
        pytest.skip("Telnyx has the token in the address")
    stranger = Stranger(stage.url, addresses=4)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            await stranger.opens_sockets(100, stack)
            call = await stage.carrier.ring()
            waiting = await stage.carrier.connect(call, signature="none")
            await stranger.opens_sockets(100, stack)
            await waiting.send_json(stage.carrier.start_message(call, stream_id=waiting.stream_id, token=call.token))
            conversation = await stage.engine.next_conversation()
            await conversation.configured()
            await waiting.close()


async def test_twilio_signature_on_the_upgrade_is_checked(stage: Stage) -> None:
    """The signature is optional, but a wrong one is refused."""
    if stage.carrier.name != "twilio":
        pytest.skip("Twilio only")
    call = await stage.carrier.ring()
    with pytest.raises(UpgradeRefused) as refusal:
        await stage.carrier.connect(call, signature="wrong")
    assert refusal.value.status == 403
    for signature in ("right", "slash", "port", "none"):
        (await stage.carrier.connect(call, signature=signature)).abort()


async def test_phone_socket_is_closed_while_no_call_waits(stage: Stage) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        await dial(stage.url.replace("http", "ws", 1) + "/phone/media", proxy=None)
    assert refusal.value.response.status_code == 404


async def test_strangers_cause_one_line_of_log(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    call = await stage.carrier.ring()
    for _ in range(5):
        await refused(stage, call, token="guess")
    assert [r.message for r in caplog.records].count("media socket refused") == 1


async def test_bad_frames_in_a_call_are_passed_over(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """The call goes on without them; one line is logged."""
    call, conversation = await stage.dial()
    connection = call.stream.connection
    for frame in ("hello", b"\x00", '{"event": "media", "media": {"payload": "*"}}', '{"event": "weather"}'):
        await connection.send(frame)
    await connection.send(json.dumps(call.stream.start_message()))
    await call.speak(SOUND * 2)
    await conversation.hears(2 * len(SOUND))
    assert bytes(conversation.heard).startswith(SOUND * 2)
    assert [r.message for r in caplog.records].count("carrier protocol error") == 1
    await call.hang_up()


async def test_strangers_do_not_disturb_a_call(stage: Stage) -> None:
    call, conversation = await stage.dial()
    for _ in range(5):
        stranger = await stage.carrier.connect(call, token="x")
        stranger.abort()
    await call.speak(SOUND * 5)
    await conversation.hears(5 * len(SOUND))
    assert bytes(conversation.heard).startswith(SOUND * 5)
    await call.hang_up()


async def test_carrier_that_is_not_set_up_is_refused(tmp_path, carrier_name: str) -> None:
    carrier = make_carrier(carrier_name)
    async with carrier, running_gateway({"DATA_DIR": str(tmp_path)}, tmp_path) as url:
        carrier.gateway_url = url
        with pytest.raises(UpgradeRefused) as refusal:
            await carrier.connect(f"/{carrier_name}/media", token="x")
        assert refusal.value.status == 503


async def test_every_way_to_end_ends_once(stage: Stage) -> None:
    """Stop, close, callbacks and webhooks of one hangup, all at once: one ending."""
    call, conversation = await stage.dial()
    await conversation.user_says("Bye.")
    await call.hang_up()
    await call.over(5)
    await stage.idle()
    assert len(stage.archives()) == 1
    assert len(await stage.documents()) == 1
    await until(lambda: conversation.closed)


class OtherNode:
    """The manager of a node at which no call rings. Notes which sockets proved whose they are."""

    def __init__(self) -> None:
        self.verified: list[bool] = []

    def awaits_media(self, carrier: str, token: str = "") -> bool:
        return False

    def expect(self, stream: MediaStream, peer: str, *, is_verified: bool) -> None:
        self.verified.append(is_verified)

    async def admit(self, *_: object) -> None: ...
    def gone(self, *_: object) -> None: ...


@pytest.mark.parametrize("is_right", [True, False])
async def test_stranger_takes_no_room_from_a_call_of_another_node(is_right: bool) -> None:
    """Its address has a pass that every node can read."""
    node, tokens = OtherNode(), TokenCodec(Secret(ADMIN))
    endpoint = MediaEndpoint(node, frozenset({"telnyx"}), PublicUrl(""), None, tokens)  # type: ignore[arg-type]
    passed = (tokens if is_right else TokenCodec(Secret("another"))).seal(MediaPass.valid_now())
    upgrade = UpgradeRequest(f"/telnyx/media?token=unknown-here&pass={passed}", {}, "198.51.100.7")
    assert isinstance(endpoint(upgrade), MediaStream)
    assert node.verified == [is_right]


@pytest.mark.parametrize("target", ["//[", "//[/twilio/media", "/elsewhere", ""])
def test_unknown_address_is_not_found(target: str) -> None:
    tokens = TokenCodec(Secret(ADMIN))
    endpoint = MediaEndpoint(OtherNode(), frozenset({"twilio"}), PublicUrl(""), None, tokens)  # type: ignore[arg-type]
    assert endpoint(UpgradeRequest(target, {}, "198.51.100.7")) == 404
