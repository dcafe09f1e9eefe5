import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from gateway.cli.doctor import CheckState, _encrypted
from gateway.cli.main import main
from gateway.extras import how_to_install
from gateway.finalization.job import FinalizationJob, JobState
from gateway.finalization.job_table import JobTable
from gateway.history.stores import open_local_store
from gateway.simulate.gateway_under_test import serve_on_loopback
from tests.calls.aftermath import a_session
from tests.fakes.accounts import FakeTelnyxAccount, FakeTwilioAccount
from tests.fakes.audio_server import FakeAudioServer
from tests.fakes.deepgram import FakeDeepgram
from tests.fakes.elevenlabs import AGENT_ID, API_KEY, FakeElevenLabs
from tests.fakes.llm import FakeLlm
from tests.fakes.openai_realtime import FakeRealtime
from tests.fakes.remem import FakeRemem
from tests.fakes.tool_servers import TOKEN, FakeMcpServer, FakeToolServer
from tests.redis_server import running_redis
from tests.stage import make_carrier, staged

NO_MODELS = {"DEEPGRAM_API_KEY": "dg-test-key", "DEEPGRAM_AGENT_URL": "ws://127.0.0.1:1/"}
"""For tests of other checks: the models of the local engine take a second to load."""
SECRETS = ["dg-test-key", "sk-test-key", "twilio-auth-token", "telnyx-api-key", "a-remem-key", TOKEN]


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    async def run(**environ: str) -> tuple[int, dict[str, tuple[str, str]]]:
        """Exit code, and what was found of each thing: state and words."""
        monkeypatch.chdir(tmp_path)
        for name, value in {"DATA_DIR": str(tmp_path / "data"), **environ}.items():
            monkeypatch.setenv(name, value)
        code = await asyncio.to_thread(main, ["doctor", "--json"])
        told = capsys.readouterr()
        assert told.err == ""
        assert not [secret for secret in SECRETS if secret in told.out]
        return code, {
            row["check"]: (row["state"], f"{row['found']} {row['todo']}".strip()) for row in json.loads(told.out)
        }

    return run


async def test_good_set_up_is_well(doctor: Any, tmp_path: Path) -> None:
    async with (
        FakeTwilioAccount("+12025550100").running() as twilio,
        FakeTelnyxAccount("+12025550100").running() as telnyx,
        FakeDeepgram(api_key="dg-test-key") as engine,
        FakeRemem(api_key="a-remem-key") as remem,
        running_redis(tmp_path / "redis") as redis,
    ):
        code, found = await doctor(
            DEEPGRAM_API_KEY="dg-test-key",
            DEEPGRAM_AGENT_URL=engine.url,
            ALLOWED_CALLERS="*",
            SUMMARY_PROVIDER="extractive",
            REMEM_API_URL=remem.url,
            REMEM_API_KEY="a-remem-key",
            REDIS_URL=redis.url,
            VOICE_SESSION_ARCHIVE_DIR=str(tmp_path / "archive"),
            **twilio.settings(),
            **telnyx.settings(),
        )
    assert {check for check, (state, _) in found.items() if state != "ok"} == {"PUBLIC_URL"}
    assert code == 1
    assert {"engine", "twilio", "telnyx", "summaries", "remem", "redis", "store", "clock", "DATA_DIR"} <= set(found)
    assert not (tmp_path / "data").exists()


async def test_wrong_keys_are_named_and_not_shown(doctor: Any) -> None:
    async with (
        FakeTwilioAccount("+12025550100").running() as twilio,
        FakeTelnyxAccount("+12025550100").running() as telnyx,
        FakeDeepgram(api_key="another") as engine,
        FakeRemem(api_key="another") as remem,
    ):
        code, found = await doctor(
            DEEPGRAM_API_KEY="dg-test-key",
            DEEPGRAM_AGENT_URL=engine.url,
            REMEM_API_URL=remem.url,
            REMEM_API_KEY="a-remem-key",
            **twilio.settings() | {"TWILIO_AUTH_TOKEN": "wrong"},
            **telnyx.settings() | {"TELNYX_API_KEY": "wrong"},
        )
    assert code == 2
    for check, name in {
        "engine": "DEEPGRAM_API_KEY",
        "twilio": "TWILIO_AUTH_TOKEN",
        "telnyx": "TELNYX_API_KEY",
        "remem": "REMEM_API_KEY",
    }.items():
        assert found[check][0] == "wrong"
        assert name in found[check][1]
    assert found["callers"] == (
        "wrong",
        "all callers are rejected set ALLOWED_CALLERS to your number, or to * for anyone",
    )


async def test_speech_servers_are_asked(doctor: Any) -> None:
    with FakeAudioServer() as server:
        _, found = await doctor(LOCAL_RECOGNISER=server.url, LOCAL_VOICE="http://127.0.0.1:1/v1#kokoro/af_heart")
    assert found["LOCAL_RECOGNISER"] == (
        "wrong",
        f"{server.url.split('/')[2]} rejects the key correct LOCAL_SPEECH_API_KEY",
    )
    assert found["LOCAL_VOICE"] == (
        "wrong",
        "127.0.0.1:1 unreachable (ConnectError) start it, or correct LOCAL_VOICE",
    )


async def test_options_of_a_realtime_engine_are_checked(doctor: Any, tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text("[agents.maya.openai]\nsession = { temprature = 0.7 }\n")
    async with FakeRealtime("sk-test-key") as engine:
        _, found = await doctor(**engine.settings(), OPENAI_BASE_URL="http://127.0.0.1:1/v1")
        assert found["engine"] == ("ok", f"{engine.url.split('/')[2]} answers and accepts the key")
    problem = "openai does not take session.temprature: unknown correct the agent in gateway.toml"
    assert found["agent maya"] == ("wrong", problem)


async def test_missing_local_engine_is_told(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moonshine_voice", None)  # as if it were not installed
    _, found = await doctor()
    todo = f"set DEEPGRAM_API_KEY, OPENAI_API_KEY or XAI_API_KEY, or run: {how_to_install('local')}"
    assert found["engine"] == ("wrong", f"no voice engine, so calls are rejected; {todo}")


async def test_nothing_there_is_told_in_seconds(doctor: Any) -> None:
    code, found = await doctor(
        DEEPGRAM_API_KEY="dg-test-key",
        DEEPGRAM_AGENT_URL="ws://127.0.0.1:1/",
        REDIS_URL="redis://127.0.0.1:1/0",
        DATABASE_URL="postgresql://me:a-password@127.0.0.1:1/voice",
        REMEM_API_URL="http://127.0.0.1:1",
        PUBLIC_URL="https://127.0.0.1:1",
        ANTHROPIC_API_KEY="k",
        ANTHROPIC_BASE_URL="http://127.0.0.1:1",
        XAI_API_KEY="k",
        XAI_API_URL="http://127.0.0.1:1",
        OPENCLAW_GATEWAY_URL="http://127.0.0.1:1",
        OPENCLAW_GATEWAY_TOKEN="k",
    )
    assert code == 2
    unreachable = ("engine", "redis", "postgres", "remem", "PUBLIC_URL", "anthropic", "xai", "openclaw")
    assert {found[check][0] for check in unreachable} == {"wrong"}
    assert found["summaries"] == ("ok", "written by anthropic")
    assert "a-password" not in str(found)


async def test_no_account_is_no_fault(doctor: Any) -> None:
    """As README begins: the local engine, and the gateway's own phone."""
    code, found = await doctor()
    assert code == 1
    assert found["engine"] == ("ok", "local, models intact")
    assert {check for check, (state, _) in found.items() if state == "wrong"} == set()
    assert {found[check][0] for check in ("carriers", "callers")} == {"warning"}


async def test_unknown_voice_is_wrong(doctor: Any) -> None:
    _, found = await doctor(LOCAL_RECOGNISER="http://127.0.0.1:1/v1#whisper-1", LOCAL_VOICE="nobody")
    assert found["engine"][0] == "wrong"


async def test_another_service_is_no_gateway(doctor: Any) -> None:
    """What answers, but is not what was meant, is told from what is right."""

    async def website(scope: Any, receive: Any, send: Any) -> None:
        status = 200 if scope["path"] == "/health" else 404
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"<h1>Welcome</h1>"})

    async with serve_on_loopback(website, lifespan="off") as url:
        _, found = await doctor(PUBLIC_URL=url, REMEM_API_URL=url, XAI_API_KEY="k", XAI_API_URL=url, **NO_MODELS)
    host = url.removeprefix("http://")
    assert found["remem"] == ("wrong", f"{host} answers 404: not this service check REMEM_API_URL")
    assert found["xai"][0] == "wrong"


async def test_settings_file_is_looked_at(doctor: Any, tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text('database_url = "postgresql://127.0.0.1:1/voice"\n')
    _, found = await doctor(**NO_MODELS)
    assert found["postgres"] == (
        "wrong",
        "not usable (connection refused) start PostgreSQL, or correct DATABASE_URL",
    )


async def test_public_url_reaches_the_gateway(doctor: Any, tmp_path: Path) -> None:
    async with staged(tmp_path, make_carrier("twilio")) as stage:
        _, found = await doctor(PUBLIC_URL=stage.url, **stage.carrier.settings(), **NO_MODELS)
    assert found["twilio webhook"] == ("ok", f"{stage.url}/twilio/incoming, status {stage.url}/twilio/status")
    assert found["store"] == ("ok", "embedded, intact")
    assert found["PUBLIC_URL"] == ("wrong", "is not https use https; carriers require TLS for media")


async def test_clock_is_compared(doctor: Any) -> None:
    async def long_ago(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"date", b"Fri, 06 Feb 2015 23:15:00 GMT")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    async with serve_on_loopback(long_ago, date_header=False, lifespan="off") as url:
        _, found = await doctor(PUBLIC_URL=url, **NO_MODELS)
    assert found["clock"][0] == "wrong"
    assert "NTP" in found["clock"][1]


async def test_open_folder_and_damaged_store(doctor: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    (data / "gateway.db").write_bytes(b"no database at all" * 100)
    _, found = await doctor(**NO_MODELS)
    assert found["DATA_DIR"] == ("warning", f"{data} is readable by other users chmod 700 {data}")
    assert found["store"][0] == "wrong"


async def test_failed_jobs_are_found(doctor: Any, tmp_path: Path) -> None:
    store = await open_local_store(tmp_path / "data")
    await JobTable(store).save(FinalizationJob(a_session(), JobState.FAILED, problem="document: refused"))
    await store.close()
    _, found = await doctor(**NO_MODELS)
    assert found["store"][0] == "warning" and found["store"][1].startswith("1 post-call job failed")


async def test_mistake_in_settings_is_a_finding(doctor: Any) -> None:
    code, found = await doctor(PORT="eighty")
    assert (code, found["settings"][0]) == (2, "wrong")


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"ALLOWED_CALLERS": "anna"}, "ALLOWED_CALLERS"),
        ({"TELNYX_API_KEY": "k", "TELNYX_PUBLIC_KEY": "k"}, "TELNYX_PUBLIC_KEY is not a base64 Ed25519 key"),
        ({"REDIS_URL": "localhost"}, "REDIS_URL is not an address of Redis"),
        ({"REDIS_URL": "redis://:a-password@localhost:99999/0"}, "REDIS_URL is not an address of Redis"),
        ({"DATABASE_URL": "postgresql://me:a-password@localhost:999999/x"}, "DATABASE_URL is not an address"),
        ({"DATABASE_URL": "postgresql://[::1/x"}, "DATABASE_URL is not an address"),
    ],
)
async def test_what_keeps_it_from_starting_is_a_finding(doctor: Any, environ: dict[str, str], words: str) -> None:
    code, found = await doctor(TELNYX_API_URL="http://127.0.0.1:1", **environ, **NO_MODELS)
    assert code == 2
    assert words in " ".join(text for state, text in found.values() if state == "wrong")
    assert "a-password" not in str(found)


def test_text_is_for_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PUBLIC_URL", "http://127.0.0.1:1")
    assert main(["doctor"]) == 2
    text = capsys.readouterr().out
    assert "wrong    PUBLIC_URL" in text
    assert "  to do: start the gateway and the tunnel, then run this again\n" in text
    assert "ok       engine" in text
    assert "  to do: set ALLOWED_CALLERS to your number, or to * for anyone\n" in text


async def test_env_file_that_others_can_read_is_named(doctor: Any, tmp_path: Path) -> None:
    keys = tmp_path / ".env"
    keys.write_text("MAX_CALLS=5\n")
    keys.chmod(0o640)
    _, found = await doctor(**NO_MODELS)
    assert found[".env"] == ("warning", f"readable by other users of this machine chmod 600 {keys}")
    keys.chmod(0o600)
    assert ".env" not in (await doctor(**NO_MODELS))[1]


async def test_limits_that_are_off_are_named(doctor: Any) -> None:
    _, found = await doctor()
    assert found["limits"] == ("ok", "off: MAX_CALLS")
    _, found = await doctor(MAX_CALLS="20", MAX_CALL_SECONDS="0", OUTBOUND_ALLOWED="*,+881")
    state, words = found["limits"]
    assert (state, words.startswith("off: MAX_CALL_SECONDS, OUTBOUND_ALLOWED ")) == ("warning", True)
    _, found = await doctor(MAX_CALLS="20", MAX_CALL_SECONDS="600", OUTBOUND_ALLOWED="+1")
    assert found["limits"] == ("ok", "all set")


async def test_wrong_prefix_is_found(doctor: Any) -> None:
    code, found = await doctor(OUTBOUND_ALLOWED="GB")
    assert code == 2
    assert "OUTBOUND_ALLOWED: 'GB' is not a prefix" in found["settings"][1]


@pytest.mark.parametrize(
    "environ, table, found",
    [
        ({}, "", None),
        ({"RECORD_DIR": "calls"}, "", ("warning", "not encrypted; not announced by maya ")),
        (
            {"RECORD_DIR": "calls"},
            'consent = { announce = "Recorded." }',
            ("warning", "not encrypted make a RECORD_KEY with: gateway recordings key;"),
        ),
        (
            {"RECORD_DIR": "calls", "RECORD_KEY": Fernet.generate_key().decode()},
            "consent = { require = true }",
            ("ok", "encrypted and announced"),
        ),
        ({}, "consent = { require = true }", ("warning", "nothing is recorded, so maya does not announce it set ")),
        ({}, "consent = { require = true, always = true }", None),
    ],
)
async def test_recordings_are_looked_at(
    doctor: Any, tmp_path: Path, environ: dict[str, str], table: str, found: tuple[str, str] | None
) -> None:
    (tmp_path / "gateway.toml").write_text(f"[agents.maya]\n{table}\n")
    _, all_found = await doctor(**NO_MODELS, **environ)
    state, words = all_found.get("recordings", ("", ""))
    assert (state, words[: len(found[1])]) == found if found else not state


async def test_hosted_agents_are_checked(
    doctor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.md").write_text("{{memory}}")
    agent = f'[agents.maya]\nprompt = "p.md"\nelevenlabs_agent = "{AGENT_ID}"\nengine = "elevenlabs"\n'
    (tmp_path / "gateway.toml").write_text(agent)
    async with FakeElevenLabs().running() as elevenlabs:
        account = elevenlabs.account
        environ = {"ELEVENLABS_API_KEY": API_KEY, "ELEVENLABS_API_URL": elevenlabs.url, **NO_MODELS}
        environ |= {"PUBLIC_URL": "https://voice.invalid"}

        async def checked(**more: str) -> list[tuple[str, str]]:
            _, found = await doctor(**environ, **more)
            return [result for check, result in found.items() if check.startswith("elevenlabs")]

        [(state, words)] = await checked()
        assert state == "wrong" and words.startswith("not set: ELEVENLABS_INITIATION_SECRET, ELEVENLABS_WEBHOOK_SECRET")
        assert await asyncio.to_thread(main, ["setup", "elevenlabs"]) == 0
        capsys.readouterr()
        assert await checked() == [("ok", "connected both ways, and its prompt uses memory")]

        settings, [webhook] = account.agents[AGENT_ID], account.webhooks.values()
        webhook |= {"is_auto_disabled": True, "most_recent_failure_error_code": 503}
        assert "switched off after failures, the last with status 503" in (await checked())[0][1]
        webhook |= {"is_auto_disabled": False, "most_recent_failure_error_code": 401}
        assert (await checked())[0][0] == "warning"
        webhook |= {"most_recent_failure_error_code": None}
        settings["conversation_config"]["tts"]["agent_output_audio_format"] = "pcm_16000"
        assert "needs ulaw_8000 both ways" in (await checked())[0][1]
        settings["conversation_config"]["tts"]["agent_output_audio_format"] = "ulaw_8000"
        settings["conversation_config"]["agent"]["prompt"]["prompt"] = "You are Maya."
        assert (await checked())[0][1].endswith("write {{memory}} into its prompt at ElevenLabs")
        settings["platform_settings"]["workspace_overrides"]["webhooks"]["post_call_webhook_id"] = None
        settings["conversation_config"]["agent"]["prompt"]["prompt"] = "{{ memory }}"
        assert "its calls are not remembered" in (await checked())[0][1]
        account.agents.clear()
        assert "ElevenLabs has no agent" in (await checked())[0][1]
        monkeypatch.setenv("ELEVENLABS_API_KEY", "wrong")
        environ["ELEVENLABS_API_KEY"] = "wrong"
        assert "rejects the key correct ELEVENLABS_API_KEY" in (await checked())[0][1]


async def test_language_model_of_a_hosted_agent_is_checked(
    doctor: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.md").write_text("{{memory}}")
    brain = 'brain = { url = "http://127.0.0.1:1/v1", model = "llama3.2" }'
    agent = f'[agents.maya]\nprompt = "p.md"\nelevenlabs_agent = "{AGENT_ID}"\n{brain}\n'
    (tmp_path / "gateway.toml").write_text(agent)
    async with FakeElevenLabs().running() as elevenlabs:
        environ = {"ELEVENLABS_API_KEY": API_KEY, "ELEVENLABS_API_URL": elevenlabs.url, **NO_MODELS}

        async def checked(**more: str) -> tuple[str, str]:
            _, found = await doctor(**environ, **{"PUBLIC_URL": "https://voice.invalid", **more})
            [result] = [result for check, result in found.items() if check.startswith("elevenlabs")]
            return result

        await checked()  # sets the environment for the set-up
        assert await asyncio.to_thread(main, ["setup", "elevenlabs", "--llm"]) == 0
        capsys.readouterr()
        assert (await checked())[0] == "ok"

        config = elevenlabs.account.agents[AGENT_ID]["conversation_config"]
        config["turn"]["speculative_turn"] = True
        state, words = await checked()
        assert state == "warning" and words.endswith("run: gateway setup elevenlabs --llm")
        custom = config["agent"]["prompt"]["custom_llm"]
        config["turn"]["speculative_turn"], headers = False, custom.pop("request_headers")
        assert "answers know no caller: it sends no X-Call-Token" in (await checked())[1]
        custom["request_headers"] = headers
        [name] = [one["name"] for one in elevenlabs.account.secrets.values() if "_llm_" in one["name"]]
        assert await asyncio.to_thread(main, ["token", "revoke", name.removeprefix("voice_gateway_llm_")]) == 0
        capsys.readouterr()
        assert "the API token with which it asks for answers is revoked" in (await checked())[1]
        key = custom.pop("api_key")
        assert "the API token with which it asks for answers is missing" in (await checked())[1]
        custom |= {"api_key": key, "url": "https://old.example.com/elevenlabs/llm"}
        assert await asyncio.to_thread(main, ["setup", "elevenlabs", "--llm"]) == 0
        capsys.readouterr()
        assert (await checked())[0] == "ok"
        custom = elevenlabs.account.agents[AGENT_ID]["conversation_config"]["agent"]["prompt"]["custom_llm"]
        assert custom["url"] == "https://voice.invalid/elevenlabs/llm"
        custom["url"] = "https://old.example.com/elevenlabs/llm"
        assert "it asks for answers at old.example.com" in (await checked())[1]
        custom["url"] = "https://llm.example.com/v1"  # another service's, which is the owner's affair
        assert (await checked())[0] == "ok"


REMOTE_TOOLS = """
[agents.maya]
prompt = "maya.md"
tools = [
    {{ mcp = "{crm}", api_key_env = "CRM_TOKEN" }},
    {{ mcp = "http://127.0.0.1:1/mcp" }},
    {{ http = "GET {shop}/orders/{{order}}", name = "order", description = "It.", parameters = {{ order = "it" }} }},
    {{ http = "POST http://127.0.0.1:1/", name = "away", description = "It." }},
]

[agents.tom]
prompt = "maya.md"
tools = [{{ mcp = "{crm}", tools = ["find_order", "refund"], api_key_env = "CRM_TOKEN" }}]

[agents.ana]
prompt = "maya.md"
tools = [{{ mcp = "{crm}" }}]
"""


async def test_remote_tools_are_listed(doctor: Any, tmp_path: Path) -> None:
    async with FakeMcpServer(token=TOKEN).running() as crm, FakeToolServer().running() as shop:
        (tmp_path / "maya.md").write_text("You are Maya.")
        (tmp_path / "gateway.toml").write_text(REMOTE_TOOLS.format(crm=crm.url, shop=shop.url))
        _, found = await doctor(CRM_TOKEN=TOKEN, **NO_MODELS)
        host, to_do = crm.url.split("/")[2], "start the MCP server, or correct mcp in gateway.toml"
        assert {check: row for check, row in found.items() if check.startswith("tools of")} == {
            f"tools of maya: {host}": ("ok", "answers, 2 tools"),
            "tools of maya: 127.0.0.1:1": ("wrong", f"no MCP server (ConnectError) {to_do}"),
            "tools of maya: order": ("ok", f"{shop.url.split('/')[2]} answers"),
            "tools of maya: away": (
                "wrong",
                "127.0.0.1:1 unreachable (ConnectError) start it, or correct http in gateway.toml",
            ),
            f"tools of tom: {host}": ("warning", "has no tool refund use some of: cancel_order, find_order"),
            f"tools of ana: {host}": (
                "wrong",
                "rejects the key correct api_key_env or headers in gateway.toml, or the key",
            ),
        }
        assert [method for method, *_ in shop.requests] == []


async def test_missing_key_of_a_tool_is_named(doctor: Any, tmp_path: Path) -> None:
    (tmp_path / "maya.md").write_text("You are Maya.")
    (tmp_path / "gateway.toml").write_text(
        REMOTE_TOOLS.format(crm="https://crm.example.com/", shop="https://x.example")
    )
    code, found = await doctor(**NO_MODELS)
    assert code == 2
    assert found["settings"][1] == (
        "gateway.toml, [agents.maya]: tools[0] needs CRM_TOKEN; set it in the environment or in .env"
    )


def test_unencrypted_tools_beyond_this_machine_are_named() -> None:
    warned = _encrypted("tools", "http://192.168.1.9/mcp", "answers")
    assert (warned.state, warned.found) == (CheckState.WARNING, "answers; not encrypted")
    for url in ("https://192.168.1.9/mcp", "http://127.0.0.1:5678/", "http://localhost/"):
        assert _encrypted("tools", url, "answers").state is CheckState.OK


@pytest.mark.parametrize(
    ("agent", "found"),
    [
        ("main", ("ok", "{host} answers and accepts the key")),
        ("voice", ("wrong", "{host} has no agent openclaw/voice correct brain; openclaw agents list shows them")),
    ],
)
async def test_openclaw_has_the_agents(doctor: Any, tmp_path: Path, agent: str, found: tuple[str, str]) -> None:
    (tmp_path / "gateway.toml").write_text(f'[agents.maya]\nbrain = "openclaw/{agent}"\n')
    async with FakeLlm(profile="openclaw-new") as llm:
        _, results = await doctor(OPENCLAW_GATEWAY_URL=llm.url, OPENCLAW_GATEWAY_TOKEN="test-key", **NO_MODELS)
    host = llm.url.removeprefix("http://")
    assert results["openclaw"] == (found[0], found[1].format(host=host))


async def test_openclaw_without_chat_completions(doctor: Any) -> None:
    async with FakeLlm(profile="openclaw-old") as llm:  # it has no list of models: the same answer as one that is off
        _, results = await doctor(OPENCLAW_GATEWAY_URL=llm.url, OPENCLAW_GATEWAY_TOKEN="test-key", **NO_MODELS)
    assert results["openclaw"][0] == "wrong"
    assert "openclaw config set gateway.http.endpoints.chatCompletions.enabled true" in results["openclaw"][1]
