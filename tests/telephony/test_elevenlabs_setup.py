"""What the set-up at ElevenLabs changes, and what it leaves alone."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from elevenlabs.client import AsyncElevenLabs

from gateway.errors import CarrierRefused, SettingsError
from gateway.settings import Secret
from gateway.telephony.elevenlabs_setup import ElevenLabsAccount, ElevenLabsSetup, HostedAgent, LlmKeys
from tests.fakes.elevenlabs import AGENT_ID, API_KEY, FakeElevenLabs
from tests.fakes.elevenlabs_account import FakeElevenLabsAccount, merged, settings_of

ORIGIN = "https://voice.example.com"
POST_CALL = f"{ORIGIN}/elevenlabs/post-call"


class Gateway:
    """A gateway with secrets in its .env, which is set up again and again."""

    def __init__(self, elevenlabs: FakeElevenLabs) -> None:
        self.fake = elevenlabs.account
        self.account = ElevenLabsAccount(api_url=elevenlabs.url, api_key=Secret(API_KEY))
        self.env: dict[str, str] = {}
        self.writes: list[str] = []
        self.tokens: dict[str, str] = {}
        self._numbers = itertools.count(1)

    def create_token(self) -> tuple[str, str]:
        number = next(self._numbers)
        self.tokens[f"t{number}"] = f"vg_t{number}_secret"
        return f"t{number}", f"vg_t{number}_secret"

    def save(self, name: str, value: str) -> None:
        self.env[name] = value
        self.writes.append(f"{name} after {len(self.fake.changes)} changes")

    async def set_up(
        self, origin: str = ORIGIN, *, is_registered: bool = False, with_llm: bool = False, **options: Any
    ) -> dict[str, str]:
        """What changed, and how it is now."""

        def work() -> ElevenLabsSetup:
            agent = HostedAgent("maya", AGENT_ID, is_registered, self.account.agent(AGENT_ID))
            made = ElevenLabsSetup(self.account, origin, self.save, **options)
            keys = {"maya": LlmKeys(list(self.tokens), self.create_token)} if with_llm else {}
            webhook, initiation = (self.env.get(f"ELEVENLABS_{name}_SECRET", "") for name in ("WEBHOOK", "INITIATION"))
            made.connect([agent], webhook_secret=webhook, initiation_secret=initiation, llm_keys=keys)
            return made

        return {change.what: change.after for change in (await asyncio.to_thread(work)).changes}


@pytest.fixture
async def elevenlabs() -> AsyncIterator[FakeElevenLabs]:
    async with FakeElevenLabs().running() as made:
        yield made


@pytest.fixture
def gateway(elevenlabs: FakeElevenLabs) -> Gateway:
    return Gateway(elevenlabs)


@pytest.fixture
def account(elevenlabs: FakeElevenLabs) -> FakeElevenLabsAccount:
    return elevenlabs.account


def overrides(account: FakeElevenLabsAccount) -> Any:
    return account.agents[AGENT_ID]["platform_settings"]["workspace_overrides"]


@pytest.mark.parametrize("merges", [True, False])
async def test_no_foreign_setting_is_lost(gateway: Gateway, account: FakeElevenLabsAccount, merges: bool) -> None:
    account.merges = merges
    agent = account.agents[AGENT_ID]
    overrides(account)["webhooks"] |= {"events": ["audio"], "send_audio": True}
    before = settings_of(agent)
    await gateway.set_up(is_registered=True)
    after = settings_of(agent)
    # Read-only, or no longer accepted beside the ids: the real API keeps them.
    before["platform_settings"].pop("safety")
    before["conversation_config"]["agent"]["prompt"].pop("tools")
    [secret_id], [webhook_id] = account.secrets, account.webhooks
    changed = {
        "conversation_config": {
            "asr": {"user_input_audio_format": "ulaw_8000"},
            "tts": {"agent_output_audio_format": "ulaw_8000"},
            "agent": {"dynamic_variables": {"dynamic_variable_placeholders": {"memory": "", "caller_name": ""}}},
        },
        "platform_settings": {
            "overrides": {"enable_conversation_initiation_client_data_from_webhook": True},
            "workspace_overrides": {
                "conversation_initiation_client_data_webhook": {
                    "url": f"{ORIGIN}/elevenlabs/initiation",
                    "request_headers": {"X-Gateway-Secret": {"secret_id": secret_id}},
                },
                "webhooks": {
                    "post_call_webhook_id": webhook_id,
                    "events": ["audio", "transcript"],
                    "transcript_format": "json",
                },
            },
        },
    }
    after["platform_settings"].pop("safety", None)
    after["conversation_config"]["agent"]["prompt"].pop("tools", None)
    assert after == merged(before, changed)


async def test_settings_of_the_owner_are_kept_or_corrected(gateway: Gateway, account: FakeElevenLabsAccount) -> None:
    placeholders = account.agents[AGENT_ID]["conversation_config"]["agent"]["dynamic_variables"]
    placeholders["dynamic_variable_placeholders"]["memory"] = "Nothing yet."
    overrides(account)["webhooks"]["exclude_transcript"] = True
    overrides(account)["conversation_initiation_client_data_webhook"] = {
        "url": "https://old.example.com/elevenlabs/initiation",
        "request_headers": {"x-gateway-secret": "typed by hand", "X-Shop": "1"},
    }
    changes = await gateway.set_up()
    webhook = overrides(account)["conversation_initiation_client_data_webhook"]
    assert webhook["request_headers"] == {"x-gateway-secret": {"secret_id": next(iter(account.secrets))}, "X-Shop": "1"}
    assert overrides(account)["webhooks"]["exclude_transcript"] is False
    assert placeholders["dynamic_variable_placeholders"]["memory"] == "Nothing yet." and "maya: memory" not in changes
    assert "typed by hand" not in str(changes)


async def test_memory_tools_are_set_up_once(gateway: Gateway, account: FakeElevenLabsAccount) -> None:
    account.agents[AGENT_ID]["conversation_config"]["agent"]["prompt"]["mcp_server_ids"] = ["mcp_of_the_shop"]
    assert (await gateway.set_up(with_tools=True, is_dry_run=True))["MCP server"] == f"{ORIGIN}/mcp"
    assert account.mcp_servers == {}
    await gateway.set_up(with_tools=True)
    [(server_id, server)] = account.mcp_servers.items()
    assert server["config"]["request_headers"] == {"X-Call-Token": {"variable_name": "secret__call_token"}}
    agent = account.agents[AGENT_ID]["conversation_config"]["agent"]
    assert agent["prompt"]["mcp_server_ids"] == ["mcp_of_the_shop", server_id]
    assert agent["dynamic_variables"]["dynamic_variable_placeholders"]["secret__call_token"] == ""
    assert await gateway.set_up(with_tools=True) == {}


# The gateway's language model


def prompt_of(account: FakeElevenLabsAccount) -> Any:
    return account.agents[AGENT_ID]["conversation_config"]["agent"]["prompt"]


@pytest.mark.parametrize("merges", [True, False])
async def test_language_model_is_set_up_once(gateway: Gateway, account: FakeElevenLabsAccount, merges: bool) -> None:
    account.merges = merges
    await gateway.set_up()
    changes = await gateway.set_up(with_llm=True)
    assert changes == {
        "maya: API token with the scope llm": "vg_t1",
        "maya: llm": "custom-llm",
        "maya: custom_llm": f"{ORIGIN}/elevenlabs/llm",
        "maya: speculative_turn": "off",
        "maya: secret__call_token": '""',
    }
    [(secret_id, secret)] = [one for one in account.secrets.items() if "llm" in one[1]["name"]]
    assert secret == {"name": "voice_gateway_llm_t1", "value": "vg_t1_secret"}
    prompt, turn = prompt_of(account), account.agents[AGENT_ID]["conversation_config"]["turn"]
    assert prompt["llm"] == "custom-llm" and prompt["tool_ids"] == ["tool_1"]
    assert prompt["custom_llm"] == {
        "url": f"{ORIGIN}/elevenlabs/llm",
        "api_key": {"secret_id": secret_id},
        "request_headers": {"X-Call-Token": {"variable_name": "secret__call_token"}},
    }
    assert turn == {"turn_timeout": 7.0, "speculative_turn": False}
    assert await gateway.set_up(with_llm=True) == {}
    assert await gateway.set_up() == {}  # without the option it stays as it is


async def test_dry_run_makes_no_token(gateway: Gateway, account: FakeElevenLabsAccount) -> None:
    changes = await gateway.set_up(with_llm=True, is_dry_run=True)
    assert changes["maya: API token with the scope llm"] == "(new)" and changes["maya: llm"] == "custom-llm"
    assert (gateway.tokens, account.changes) == ({}, [])


async def test_language_model_of_another_service_is_not_replaced(
    gateway: Gateway, account: FakeElevenLabsAccount
) -> None:
    theirs = {"url": "https://llm.example.com/v1", "request_headers": {"X-Key": "theirs"}}
    prompt_of(account).update(llm="custom-llm", custom_llm=theirs)
    with pytest.raises(SettingsError, match="maya uses the language model at llm.example.com, .* use --replace"):
        await gateway.set_up(with_llm=True)
    assert (gateway.tokens, account.changes) == ({}, [])
    account.merges = False
    assert (await gateway.set_up(with_llm=True, replaces=True))["maya: custom_llm"] == f"{ORIGIN}/elevenlabs/llm"
    assert "X-Key" not in prompt_of(account)["custom_llm"]["request_headers"]


async def test_language_model_set_by_hand_is_corrected(gateway: Gateway, account: FakeElevenLabsAccount) -> None:
    """Another token, headers of the owner, the header in another case, a wrong kind of API, the old address."""
    await gateway.set_up(with_llm=True)
    headers = {"x-call-token": "typed", "X-Conversation": {"variable_name": "system__conversation_id"}}
    prompt_of(account)["custom_llm"] |= {"request_headers": headers, "api_type": "responses", "model_id": "maya"}
    prompt_of(account)["custom_llm"]["url"] = "https://old.example.com/elevenlabs/llm"
    gateway.tokens.clear()  # revoked
    changes = await gateway.set_up(with_llm=True)
    assert set(changes) == {
        "maya: API token with the scope llm",
        *(f"maya: custom_llm.{name}" for name in ("url", "api_key", "request_headers", "api_type")),
    }
    custom = prompt_of(account)["custom_llm"]
    assert custom["request_headers"] == {**headers, "x-call-token": {"variable_name": "secret__call_token"}}
    assert (custom["api_type"], custom["model_id"]) == ("chat_completions", "maya")
    assert await gateway.set_up(with_llm=True) == {}


@pytest.mark.parametrize("stop", [1, 2])
async def test_interrupted_language_model_set_up_is_continued(
    gateway: Gateway, account: FakeElevenLabsAccount, stop: int
) -> None:
    """The secret, then the agent."""
    await gateway.set_up()
    reads = 4  # agent, workspace, webhooks, secrets
    account.failures = [0] * (reads + stop - 1) + [500]
    with pytest.raises(CarrierRefused):
        await gateway.set_up(with_llm=True)
    account.failures = []
    await gateway.set_up(with_llm=True)
    assert await gateway.set_up(with_llm=True) == {}
    used = account.secrets[prompt_of(account)["custom_llm"]["api_key"]["secret_id"]]
    assert used["value"] in gateway.tokens.values()


async def test_secret_of_the_webhook_is_kept_before_anything_else(
    gateway: Gateway, account: FakeElevenLabsAccount
) -> None:
    await gateway.set_up()
    made = account.changes.index("POST /v1/workspace/webhooks") + 1
    assert gateway.writes[-1] == f"ELEVENLABS_WEBHOOK_SECRET after {made} changes"
    assert account.changes[made].startswith("PATCH /v1/workspace/webhooks/")


@pytest.mark.parametrize("stop", range(1, 5))
async def test_interrupted_set_up_is_continued(gateway: Gateway, account: FakeElevenLabsAccount, stop: int) -> None:
    """Whichever change fails, the next run completes the rest, with one webhook and one secret."""
    reads = 4  # agent, workspace, webhooks, secrets
    account.failures = [0] * (reads + stop - 1) + [500]
    with pytest.raises(CarrierRefused):
        await gateway.set_up()
    account.failures = []
    await gateway.set_up()
    assert await gateway.set_up() == {}
    [webhook], [secret] = account.webhooks.values(), account.secrets.values()
    assert webhook["secret"] == gateway.env["ELEVENLABS_WEBHOOK_SECRET"] and webhook["retry_enabled"]
    assert secret["value"] == gateway.env["ELEVENLABS_INITIATION_SECRET"]
    assert overrides(account)["webhooks"]["post_call_webhook_id"] == webhook["webhook_id"]


async def test_lost_secret_needs_another_webhook(gateway: Gateway, account: FakeElevenLabsAccount) -> None:
    await gateway.set_up()
    first = gateway.env.pop("ELEVENLABS_WEBHOOK_SECRET")
    await gateway.set_up()
    assert len(account.webhooks) == 2 and gateway.env["ELEVENLABS_WEBHOOK_SECRET"] != first
    used = account.webhooks[overrides(account)["webhooks"]["post_call_webhook_id"]]
    assert used["secret"] == gateway.env["ELEVENLABS_WEBHOOK_SECRET"]
    assert await gateway.set_up() == {}


async def test_changed_initiation_secret_is_sent(gateway: Gateway, account: FakeElevenLabsAccount) -> None:
    await gateway.set_up()
    gateway.env["ELEVENLABS_INITIATION_SECRET"] = "another-secret"
    assert set(await gateway.set_up()) == {"secret for the initiation webhook", "maya: request_headers"}
    header = overrides(account)["conversation_initiation_client_data_webhook"]["request_headers"]["X-Gateway-Secret"]
    assert account.secrets[header["secret_id"]]["value"] == "another-secret"


async def test_webhook_made_by_hand_is_used(gateway: Gateway, account: FakeElevenLabsAccount) -> None:
    webhook_id = account.add_webhook(POST_CALL, secret="wsec_by_hand", retry_enabled=False)
    gateway.env["ELEVENLABS_WEBHOOK_SECRET"] = "wsec_by_hand"
    changes = await gateway.set_up()
    assert changes["maya: post_call_webhook_id"] == webhook_id and changes["post-call webhook retries"] == "on"
    [webhook] = account.webhooks.values()
    assert webhook["retry_enabled"] and webhook["name"].startswith("Mine [")
    assert await gateway.set_up() == {}


@pytest.mark.parametrize("switch", ["is_disabled", "is_auto_disabled"])
async def test_webhook_that_is_off_is_switched_on(
    gateway: Gateway, account: FakeElevenLabsAccount, switch: str
) -> None:
    await gateway.set_up()
    [webhook] = account.webhooks.values()
    webhook[switch] = True
    assert await gateway.set_up() == {"post-call webhook": "on"}
    assert not webhook[switch]


async def test_new_address_gets_a_new_webhook(gateway: Gateway, account: FakeElevenLabsAccount) -> None:
    """The address of a webhook can't be changed."""
    await gateway.set_up()
    changes = await gateway.set_up("https://new.example.com")
    assert changes["maya: url"] == "https://new.example.com/elevenlabs/initiation"
    assert [one["webhook_url"] for one in account.webhooks.values()] == [
        POST_CALL,
        "https://new.example.com/elevenlabs/post-call",
    ]


@pytest.mark.parametrize("where", ["agent", "workspace", "initiation"])
async def test_webhook_of_another_service_is_not_replaced(
    gateway: Gateway, account: FakeElevenLabsAccount, where: str
) -> None:
    foreign = account.add_webhook("https://crm.example.com/calls")
    agent = account.agents[AGENT_ID]["platform_settings"]
    if where == "agent":
        overrides(account)["webhooks"]["post_call_webhook_id"] = foreign
    elif where == "workspace":
        account.workspace["webhooks"]["post_call_webhook_id"] = foreign
    else:
        agent["overrides"]["enable_conversation_initiation_client_data_from_webhook"] = True
        webhook = {"url": "https://crm.example.com/hello", "request_headers": {"Authorization": "theirs"}}
        overrides(account)["conversation_initiation_client_data_webhook"] = webhook
    with pytest.raises(SettingsError, match="webhook to crm.example.com, .* use --replace"):
        await gateway.set_up()
    assert account.changes == []
    await gateway.set_up(replaces=True)
    assert account.webhooks[overrides(account)["webhooks"]["post_call_webhook_id"]]["webhook_url"] == POST_CALL
    assert overrides(account)["conversation_initiation_client_data_webhook"]["url"] == f"{ORIGIN}/elevenlabs/initiation"


async def test_simulator_is_what_the_official_client_expects(elevenlabs: FakeElevenLabs) -> None:
    client = AsyncElevenLabs(api_key=API_KEY, base_url=elevenlabs.url, httpx_client=elevenlabs.http)
    secret = await client.conversational_ai.secrets.create(name="key", value="of the tests")
    assert [one.secret_id for one in (await client.conversational_ai.secrets.list()).secrets] == [secret.secret_id]
    made = await client.webhooks.create(settings={"name": "Mine", "webhook_url": POST_CALL})
    await client.webhooks.update(made.webhook_id, is_disabled=True, name="Mine", retry_enabled=True)
    [webhook] = (await client.webhooks.list(include_usages=True)).webhooks
    assert (webhook.webhook_id, webhook.is_disabled) == (made.webhook_id, True)
    agent = await client.conversational_ai.agents.get(AGENT_ID)
    assert agent.conversation_config.agent.prompt.tool_ids == ["tool_1"]
    assert (await client.conversational_ai.settings.get()).webhooks is not None
