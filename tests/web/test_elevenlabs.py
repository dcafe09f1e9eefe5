"""One caller, one memory: our engine, then an agent that ElevenLabs hosts."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.responses import Response

from gateway.web.elevenlabs import MAX_AUDIO_BYTES, body_limit
from gateway.websocket import port_mux
from tests.fakes.elevenlabs import (
    AGENT_ID,
    CallDidNotStart,
    FakeElevenLabs,
    conversation,
    signature,
)
from tests.stage import CALLER, Stage, make_carrier, patient_client, staged, until_it
from tests.test_webhooks import gateway_command
from tests.web.test_widget import Site

OTHER = "+12025550188"
AGENTS = f"""
[agents.maya]
prompt = "p.md"
elevenlabs_agent = "{AGENT_ID}"
"""
HANDED_OVER = AGENTS + 'engine = "elevenlabs"\n'


@pytest.fixture
async def elevenlabs() -> AsyncIterator[FakeElevenLabs]:
    async with FakeElevenLabs().running() as made:
        yield made


@pytest.fixture
async def stage(tmp_path: Path, elevenlabs: FakeElevenLabs) -> AsyncIterator[Stage]:
    async with _gateway(tmp_path, elevenlabs) as made:
        yield made


@contextlib.asynccontextmanager
async def _gateway(
    folder: Path, elevenlabs: FakeElevenLabs, agents: str = AGENTS, *, hurries: bool = False, **environ: str
) -> AsyncIterator[Stage]:
    (folder / "p.md").write_text("You answer the phone.\n{{memory}}")
    (folder / "gateway.toml").write_text(agents)
    given = {"ALLOWED_CALLERS": f"{CALLER},*", **elevenlabs.settings(), **environ}
    async with staged(folder, make_carrier("twilio"), hurries=hurries, **given) as made:
        elevenlabs.gateway_url = made.url
        yield made


async def _talk(stage: Stage, *said: str, caller: str = CALLER) -> str:
    call, engine_side = await stage.dial(caller)
    for text in said:
        await engine_side.user_says(text)
    await call.hang_up()
    await stage.idle()
    return engine_side.prompt


async def _reported(stage: Stage, elevenlabs: FakeElevenLabs, data) -> None:
    response = await elevenlabs.report(data)
    assert response.status_code == 200, response.text
    await stage.idle()


# The caller is known on each platform


async def test_caller_is_known_on_either_platform(stage: Stage, elevenlabs: FakeElevenLabs) -> None:
    await _talk(stage, "My name is Ana Lopez. I prefer window seats.")
    prompt = await elevenlabs.rings(CALLER)
    assert "window seats" in prompt and "The caller is Ana Lopez." in prompt
    assert "window seats" not in await elevenlabs.rings(OTHER, "CA02")
    said = [("agent", "Hello Ana."), ("user", "I moved to Orlando. My dog is called Rex.")]
    await _reported(stage, elevenlabs, conversation("conv_9", *said, number=CALLER))
    documents = await stage.documents()
    assert len(documents) == 2
    [document] = [one for one in documents if "voice-session:conv_9" in one["content"]]
    assert "Ana Lopez" in document["content"] and "Rex" in document["content"]
    assert (stage.archive_dir / "voice-session-conv_9.txt").read_text() == (
        "AGENT: Hello Ana.\nCALLER: I moved to Orlando. My dog is called Rex.\n"
    )
    assert "Rex" in await _talk(stage, "Hello again.")


async def test_caller_is_known_on_the_phone_at_elevenlabs_and_in_the_browser(
    stage: Stage, elevenlabs: FakeElevenLabs, tmp_path: Path
) -> None:
    """One memory, and one erasure of all of it."""
    await _talk(stage, "I prefer window seats.")
    assert "window seats" in await elevenlabs.rings(CALLER)
    data = conversation("conv_9", ("user", "My dog is called Rex."), number=CALLER)
    await _reported(stage, elevenlabs, data)
    async with patient_client(stage.url) as http:
        website = Site(stage, http)
        prompt = await website.talk("My cat is called Minka.", number=CALLER)
        assert "window seats" in prompt and "Rex" in prompt
        assert "Minka" in await _talk(stage, "Hello again.")
        assert await asyncio.to_thread(gateway_command, tmp_path, "memory", "forget", CALLER, "--yes") == 0
        assert await stage.documents() == []
        # A report that is delivered again brings nothing back.
        await _reported(stage, elevenlabs, data)
        assert await stage.documents() == []
        left = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
        assert not any(word in left for word in (b"window seats", b"Rex", b"Minka"))
        prompts = (
            await _talk(stage, "Hello."),
            await elevenlabs.rings(CALLER, "CA03"),
            await website.talk(number=CALLER),
        )
        assert not any(word in " ".join(prompts) for word in ("window seats", "Rex", "Minka"))


# Initiation


async def test_initiation_needs_the_secret(stage: Stage, elevenlabs: FakeElevenLabs) -> None:
    await _talk(stage, "I prefer window seats.")
    body = {"caller_id": CALLER, "agent_id": AGENT_ID, "called_number": "+12025550100", "call_sid": "CA1"}
    for secret in (None, "", "wrong"):
        response = await elevenlabs.ask(secret, **body)
        assert response.status_code == 401 and "window" not in response.text
    assert (await elevenlabs.ask(**body)).status_code == 200


async def test_initiation_without_a_number_has_no_memory(stage: Stage, elevenlabs: FakeElevenLabs) -> None:
    await _talk(stage, "I prefer window seats.")
    for caller in (None, "", "anonymous", "sip:ana@example.com"):
        response = await elevenlabs.ask(caller_id=caller, agent_id=AGENT_ID, call_sid="")
        answer = response.json()
        assert "window" not in answer["dynamic_variables"]["memory"]
        assert answer["user_id"] == "" and answer["dynamic_variables"]["secret__call_token"] == ""
    assert (await elevenlabs.ask(agent_id="agent_of_another_team")).json()["dynamic_variables"]["memory"] == ""


async def test_initiation_asked_twice_answers_the_same(stage: Stage, elevenlabs: FakeElevenLabs) -> None:
    await _talk(stage, "I prefer window seats.")
    body = {"caller_id": CALLER, "agent_id": AGENT_ID, "call_sid": "CA1"}
    first, second = await asyncio.gather(elevenlabs.ask(**body), elevenlabs.ask(**body))
    await _talk(stage, "I also like tea.")
    third = await elevenlabs.ask(**body)
    assert first.json() == second.json() == third.json()
    assert (await elevenlabs.ask(**body | {"call_sid": "CA2"})).json() != first.json()


async def test_initiation_does_not_wait_for_a_store(tmp_path: Path, elevenlabs: FakeElevenLabs) -> None:
    """A remote store that never answers costs its own notes, not the call."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with _gateway(tmp_path, elevenlabs, hurries=True, REMEM_API_URL=url, REMEM_API_KEY="k"):
            began = time.monotonic()
            await elevenlabs.rings(CALLER)
            assert time.monotonic() - began < 15.0  # 0.15 s on a quiet machine; the store would take 20


async def test_unconfigured_paths_answer_503(tmp_path: Path, elevenlabs: FakeElevenLabs) -> None:
    async with _gateway(tmp_path, elevenlabs, ELEVENLABS_WEBHOOK_SECRET="", ELEVENLABS_INITIATION_SECRET=""):
        assert (await elevenlabs.ask(agent_id=AGENT_ID)).status_code == 503
        assert (await elevenlabs.report(conversation("conv_1"))).status_code == 503
        with pytest.raises(CallDidNotStart):
            await elevenlabs.rings(CALLER)


# Post-call


async def test_repeated_report_changes_nothing(stage: Stage, elevenlabs: FakeElevenLabs) -> None:
    data = conversation("conv_9", ("user", "I prefer window seats."), number=CALLER)
    responses = await asyncio.gather(*(elevenlabs.report(data) for _ in range(5)))
    assert {response.status_code for response in responses} == {200}
    await stage.idle()
    [before] = await stage.documents()
    data["transcript"].append({"role": "user", "message": "And tea.", "time_in_call_secs": 9})
    await _reported(stage, elevenlabs, data)
    assert await stage.documents() == [before]


async def test_report_after_a_restart_changes_nothing(tmp_path: Path, elevenlabs: FakeElevenLabs) -> None:
    data = conversation("conv_9", ("user", "I prefer window seats."), number=CALLER)
    for _ in range(2):
        async with _gateway(tmp_path, elevenlabs) as stage:
            await _reported(stage, elevenlabs, data)
            assert len(await stage.documents()) == 1


async def test_bad_reports_are_refused(stage: Stage, elevenlabs: FakeElevenLabs) -> None:
    body = json.dumps({"type": "post_call_transcription", "data": conversation("conv_1", ("user", "Hi"))}).encode()
    for header in (None, "t=abc,v0=00", signature(body, "wsec_wrong"), signature(body, at=time.time() - 1900)):
        assert (await elevenlabs.post(body, header)).status_code == 401
    assert (await elevenlabs.post(body + b" ", signature(body))).status_code == 401
    assert (await elevenlabs.report(conversation("../x", ("user", "Hi"), number=CALLER))).status_code == 400
    assert (await elevenlabs.post(b"{", signature(b"{"))).status_code == 400
    assert (await elevenlabs.post(body, signature(body).replace(",", ", "))).status_code == 200
    assert await stage.documents() == []


@pytest.mark.parametrize("type_comes_last", [False, True])
async def test_large_recording_is_read_piece_by_piece(
    stage: Stage, elevenlabs: FakeElevenLabs, type_comes_last: bool
) -> None:
    """Chunked, as ElevenLabs sends it. A large message of another kind, and a wrong signature, are refused."""
    kind = b'"type": "post_call_audio"'
    parts = [b'{"data": {"full_audio": "', *[b"A" * 60_000] * 100, b'"}', b", ", kind, b"}"]
    if not type_comes_last:
        parts = [b"{", kind, b", ", *[parts[0][1:], *parts[1:-3]], b"}"]
    body = b"".join(parts)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 5000):
            yield body[start : start + 5000]

    for header, status in ((signature(body), 200), (signature(body, "wsec_wrong"), 401)):
        assert (await elevenlabs.post(pieces(), header)).status_code == status
    other = body.replace(b"post_call_audio", b"post_call_transcription")
    assert (await elevenlabs.post(other, signature(other))).status_code == 413
    assert await stage.documents() == []


async def test_large_body_needs_a_signature_of_now(stage: Stage, elevenlabs: FakeElevenLabs) -> None:
    body = b'{"type": "post_call_audio", "x": "' + b"A" * 5_000_000
    for header in (None, signature(body, at=time.time() - 1900)):
        try:
            assert (await elevenlabs.post(body, header)).status_code in (401, 413)
        except httpx.TransportError:
            pass  # the gateway has closed the connection before it was all sent
    path = b"/elevenlabs/post-call"
    fresh = [(b"elevenlabs-signature", signature(body).encode())]
    assert body_limit(path, fresh) == MAX_AUDIO_BYTES
    assert body_limit(path, []) == body_limit(b"/elevenlabs/initiation", fresh) == port_mux.MAX_BODY_BYTES


async def test_other_messages_are_accepted_and_keep_nothing(stage: Stage, elevenlabs: FakeElevenLabs) -> None:
    said = ("user", "I prefer window seats.")
    audio = {"agent_id": AGENT_ID, "conversation_id": "conv_1", "full_audio": "A" * 1_000_000}
    assert (await elevenlabs.report(audio, "post_call_audio")).status_code == 200
    assert (await elevenlabs.report({"agent_id": AGENT_ID}, "call_initiation_failure")).status_code == 200
    for data in (
        conversation("conv_1", said, number=CALLER, agent_id="agent_of_another_team"),
        conversation("conv_2", said),  # nobody's
        conversation("conv_3", said, metadata={"text_only": True}, user_id=f"caller:{CALLER}"),
        conversation("conv_4", number=CALLER),
        conversation("conv_5", number=CALLER, transcript=None),
    ):
        body = json.dumps({"type": "post_call_transcription", "data": data}).encode()
        assert (await elevenlabs.post(body, signature(body))).status_code == 200
    await stage.idle()
    assert await stage.documents() == [] and stage.archives() == []


async def test_claimed_number_teaches_nothing_verified(stage: Stage, elevenlabs: FakeElevenLabs) -> None:
    """The caller is in ALLOWED_CALLERS, but a web page may claim any user id."""
    await _talk(stage, "My name is Ana Lopez. I live in Bath.")
    data = conversation("conv_9", ("user", "I live in Orlando."), user_id=f"caller:{CALLER}")
    await _reported(stage, elevenlabs, data)
    response = await stage.http.get("/v1/memory", params={"caller": CALLER})
    prompt = await elevenlabs.rings(CALLER)
    verified = prompt.split("not certain who called")[0]
    assert "Bath" in verified and "Orlando" not in verified, response.text


# Calls that are handed over


async def test_call_is_handed_over(tmp_path: Path, elevenlabs: FakeElevenLabs) -> None:
    async with _gateway(tmp_path, elevenlabs, HANDED_OVER) as stage:
        await _reported(stage, elevenlabs, conversation("conv_0", ("user", "I prefer window seats."), number=CALLER))
        call = stage.carrier.new_call(CALLER)
        twiml = (await stage.carrier.webhook(call)).answer
        assert "wss://api.elevenlabs.io" in twiml
        [registered] = elevenlabs.registered
        assert (registered["agent_id"], registered["from_number"]) == (AGENT_ID, CALLER)
        assert "window seats" in registered["conversation_initiation_client_data"]["dynamic_variables"]["memory"]
        assert (await stage.carrier.webhook(call)).answer == twiml  # repeated, registered once
        assert len(elevenlabs.registered) == 1
        await until_it(lambda: _is_idle(stage))
        data = conversation("conv_1", ("user", "My dog is called Rex."), number=CALLER)
        await _reported(stage, elevenlabs, data)
        assert len(await stage.documents()) == 2


async def _is_idle(stage: Stage) -> bool:
    return (await stage.http.get("/health")).json()["calls"] == 0


@pytest.mark.parametrize("answer", [Response(status_code=500), Response("not xml"), Response(status_code=422)])
async def test_our_engine_answers_when_they_do_not(
    tmp_path: Path, elevenlabs: FakeElevenLabs, answer: Response
) -> None:
    elevenlabs.answer = answer
    async with _gateway(tmp_path, elevenlabs, HANDED_OVER) as stage:
        await _talk(stage, "I prefer window seats.")
        assert "window seats" in await _talk(stage, "Hello again.")


async def test_refused_caller_is_not_handed_over(tmp_path: Path, elevenlabs: FakeElevenLabs) -> None:
    async with _gateway(tmp_path, elevenlabs, HANDED_OVER, ALLOWED_CALLERS=CALLER) as stage:
        assert "<Reject" in (await stage.carrier.webhook(stage.carrier.new_call(OTHER))).answer
    assert elevenlabs.registered == []
