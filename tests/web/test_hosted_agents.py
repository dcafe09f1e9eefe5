"""One caller, one memory: our engine, then an agent that Vapi or Retell hosts."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.fakes import retell, vapi
from tests.fakes.retell import FakeRetell
from tests.fakes.vapi import FakeVapi
from tests.stage import CALLER, Stage, make_carrier, staged

OTHER = "+12025550188"
Platform = FakeRetell | FakeVapi


@pytest.fixture(params=[FakeVapi, FakeRetell], ids=["vapi", "retell"])
async def platform(request: pytest.FixtureRequest) -> AsyncIterator[Platform]:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        yield request.param(http)


@pytest.fixture
async def stage(tmp_path: Path, platform: Platform) -> AsyncIterator[Stage]:
    async with _gateway(tmp_path, platform) as made:
        yield made


@contextlib.asynccontextmanager
async def _gateway(folder: Path, platform: Platform, *, hurries: bool = False, **environ: str) -> AsyncIterator[Stage]:
    (folder / "p.md").write_text("You answer the phone.\n{{memory}}")
    (folder / "gateway.toml").write_text(platform.agents)
    given = {"ALLOWED_CALLERS": f"{CALLER},*", **platform.settings, **environ}
    async with staged(folder, make_carrier("twilio"), hurries=hurries, **given) as made:
        platform.gateway_url = made.url
        yield made


async def _talk(stage: Stage, *said: str) -> str:
    call, engine_side = await stage.dial(CALLER)
    for text in said:
        await engine_side.user_says(text)
    await call.hang_up()
    await stage.idle()
    return engine_side.prompt


async def test_caller_is_known_on_either_platform(stage: Stage, platform: Platform) -> None:
    await _talk(stage, "My name is Ana Lopez. I prefer window seats.")
    prompt = await platform.rings(CALLER)
    assert "window seats" in prompt and "The caller is Ana Lopez." in prompt
    assert "window seats" not in await platform.rings(OTHER)
    said = [("agent", "Hello Ana."), ("user", "I moved to Orlando. My dog is called Rex.")]
    responses = await asyncio.gather(*(platform.report("call_9", *said, number=CALLER) for _ in range(3)))
    assert [response.status_code for response in responses] == [200, 200, 200]
    await stage.idle()
    assert (await platform.report("call_9", *said, ("user", "And tea."), number=CALLER)).status_code == 200
    await stage.idle()
    assert len(await stage.documents()) == 2
    assert (stage.archive_dir / "voice-session-call_9.txt").read_text() == (
        "AGENT: Hello Ana.\nCALLER: I moved to Orlando. My dog is called Rex.\n"
    )
    assert "Rex" in await _talk(stage, "Hello again.")


async def test_secret_opens_memory_and_nothing_else_does(stage: Stage, platform: Platform) -> None:
    await _talk(stage, "I prefer window seats.")
    for secret in (None, "wrong"):
        asked, reported = await platform.ask(CALLER, secret), await platform.report("c1", number=CALLER, secret=secret)
        assert (asked.status_code, reported.status_code) == (401, 401)
        assert "window" not in asked.text
    assert "window" in (await platform.ask(CALLER)).text
    assert "window" not in (await platform.ask("anonymous")).text
    assert len(await stage.documents()) == 1


async def test_chats_and_strange_reports_are_not_kept(stage: Stage, platform: Platform) -> None:
    said = ("user", "I prefer window seats.")
    assert (await platform.report_chat(said)).status_code == 200
    assert (await platform.report("call_1", said)).status_code == 200  # no caller
    assert (await platform.report("call_2", number=CALLER)).status_code == 200  # nothing was said
    assert (await platform.report("../x", said, number=CALLER)).status_code == 400
    await stage.idle()
    assert await stage.documents() == [] and stage.archives() == []


async def test_claimed_number_teaches_nothing_verified(stage: Stage, platform: Platform) -> None:
    """The caller is in ALLOWED_CALLERS, but it is a web call."""
    await _talk(stage, "My name is Ana Lopez. I live in Bath.")
    assert (await platform.report_web_call("c9", ("user", "I live in Orlando."), claims=CALLER)).status_code == 200
    await stage.idle()
    verified = (await platform.rings(CALLER)).split("not certain who called")[0]
    assert "Bath" in verified and "Orlando" not in verified


async def test_answer_does_not_wait_for_a_store(tmp_path: Path, platform: Platform) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with _gateway(tmp_path, platform, hurries=True, REMEM_API_URL=url, REMEM_API_KEY="k"):
            began = time.monotonic()
            await platform.rings(CALLER)
            assert time.monotonic() - began < 15.0  # 0.15 s on a quiet machine; the store would take 20


async def test_paths_without_a_secret_answer_503(tmp_path: Path, platform: Platform) -> None:
    [setting] = platform.settings
    async with _gateway(tmp_path, platform, **{setting: ""}):
        for response in (await platform.ask(CALLER), await platform.report("call_1", number=CALLER)):
            assert response.status_code == 503 and response.text == f"set {setting}"


@pytest.mark.parametrize("platform", [FakeVapi], indirect=True)
async def test_vapi_details(tmp_path: Path, platform: FakeVapi) -> None:
    platform.agents = f"""
        [agents.maya]
        prompt = "p.md"
        numbers = ["{vapi.NUMBER}"]
        vapi_assistant = "{vapi.ASSISTANT_ID}"
        [agents.tom]
        prompt = "p.md"
        """
    async with _gateway(tmp_path, platform) as stage:
        # A report without the assistant's id belongs to the agent of the number.
        report = vapi.end_of_call("call_1", ("user", "I prefer window seats."), number=CALLER)
        del report["call"]["assistantId"]
        assert (await platform.send(report)).status_code == 200
        await stage.idle()
        assert "window seats" in await platform.rings(CALLER)
        # A SIP client can claim any number.
        sip = {"type": "assistant-request", "call": vapi.call_object("call-sip", CALLER)}
        sip |= {"phoneNumber": {"provider": "vapi", "number": vapi.NUMBER, "sipUri": "sip:maya@sip.vapi.ai"}}
        answer = (await platform.send(sip)).raise_for_status().json()
        assert "window" not in answer["assistantOverrides"]["variableValues"]["memory"]
        # Numbers of agents that are not at Vapi.
        other = {
            "type": "assistant-request",
            "call": vapi.call_object("call-8", CALLER),
            "phoneNumber": {"number": OTHER},
        }
        assert (await platform.send(other)).status_code == 404
        assert (await platform.send({"type": "status-update", "call": {"id": "x"}})).status_code == 200


@pytest.mark.parametrize("platform", [FakeRetell], indirect=True)
async def test_retell_details(stage: Stage, platform: FakeRetell) -> None:
    # A number without an agent gets ours; one with another team's agent keeps it.
    assert (await platform.ask(CALLER, agent_id="")).json()["call_inbound"]["override_agent_id"] == retell.AGENT_ID
    answer = (await platform.ask(CALLER, agent_id="agent_of_another_team")).json()
    assert answer == {"call_inbound": {"dynamic_variables": {"memory": "", "caller_name": ""}}}
    assert (await platform.ask(CALLER)).json()["call_inbound"].keys() == {"dynamic_variables"}
    # An outbound call belongs to the person who was called. Both events of a call make one document.
    numbers = {"direction": "outbound", "from_number": retell.NUMBER, "to_number": CALLER}
    call = retell.call_object("call_1", ("user", "I prefer window seats."), number=CALLER, **numbers)
    for event in ("call_started", "call_ended", "call_analyzed"):
        assert (await platform.send("events", {"event": event, "call": call})).status_code == 200
        await stage.idle()
    assert len(await stage.documents()) == 1
    assert "window seats" in await platform.rings(CALLER)
