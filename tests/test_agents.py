import asyncio
import json
import re
from zoneinfo import ZoneInfo

import pytest

from gateway.agents import DEFAULT_AGENT, AgentDirectory, LiveSettings
from gateway.errors import SettingsError
from gateway.memory.identity import IdentifierSource

MAYA, TOM = "+12025550100", "+12025550101"
LONG_NAME = "x" * 300  # longer than a file's name may be


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "maya.md").write_text("You are Maya.\n", encoding="utf-8")
    (tmp_path / "sound.md").write_bytes(b"\xff\x00\x7f")
    (tmp_path / "prompts" / "tom.md").write_text("You are Tom. Déjà vu: {{memory}}\n", encoding="utf-8")
    return tmp_path


def agent(folder, **table):
    return AgentDirectory({"maya": table}, folder).answering(MAYA)


def problem(folder, name="maya", **table):
    with pytest.raises(SettingsError) as raised:
        AgentDirectory({name: table}, folder)
    return str(raised.value).removeprefix(f"gateway.toml, [agents.{name}]: ")


# Who answers


def test_each_number_has_its_agent(folder):
    agents = AgentDirectory({"maya": {"numbers": [MAYA]}, "tom": {"numbers": TOM}}, folder)
    assert [agents.answering(number).name for number in (MAYA, TOM)] == ["maya", "tom"]
    assert [agent.name for agent in agents] == ["maya", "tom"]


def test_numbers_are_compared_as_e164(folder):
    agents = AgentDirectory({"maya": {}, "tom": {"numbers": ["+1 (202) 555-0101"]}}, folder)
    assert agents.answering("+1 202 555 0101").name == "tom"


def test_agent_without_numbers_answers_the_rest(folder):
    agents = AgentDirectory({"maya": {"numbers": [MAYA]}, "tom": {}}, folder)
    assert [agents.answering(called).name for called in (MAYA, TOM, "sip:desk@example.com", "")] == [
        "maya",
        *["tom"] * 3,
    ]


def test_first_agent_answers_where_all_have_numbers(folder):
    agents = AgentDirectory({"tom": {"numbers": [TOM]}, "maya": {"numbers": [MAYA]}}, folder)
    assert agents.answering("+12025550199").name == "tom"


def test_no_table_means_the_default_agent(tmp_path):
    (only,) = AgentDirectory({}, tmp_path)
    assert only.name == DEFAULT_AGENT
    assert "{{memory}}" in only.prompt  # the one that comes with the program


def test_number_of_two_agents_is_a_mistake(folder):
    with pytest.raises(SettingsError) as raised:
        AgentDirectory({"maya": {"numbers": [MAYA]}, "tom": {"numbers": [MAYA]}}, folder)
    assert str(raised.value) == f"gateway.toml: {MAYA} belongs to maya and to tom"


# How an agent is made


def test_prompt_is_read_from_the_folder(folder):
    assert agent(folder).prompt == "You are Maya."
    assert agent(folder, prompt="prompts/tom.md").prompt == "You are Tom. Déjà vu: {{memory}}"


def test_texts_and_zone_are_taken(folder):
    made = agent(folder, greeting=" Hi. ", sorry="Pardon?", timezone="America/New_York")
    assert (made.greeting, made.sorry, made.timezone) == ("Hi.", "Pardon?", ZoneInfo("America/New_York"))


def test_models_have_defaults(folder):
    made = agent(folder)
    assert made.listen == {"type": "deepgram", "version": "v2", "model": "flux-general-en"}
    assert made.think == {"type": "open_ai", "model": "gpt-5.4-mini"}
    assert made.speak == {"type": "deepgram", "model": "aura-2-thalia-en"}
    assert made.timezone is None


@pytest.mark.parametrize(
    "value, block",
    [
        ("nova-3", {"type": "deepgram", "version": "v1", "model": "nova-3"}),
        ("flux-general-en", {"type": "deepgram", "version": "v2", "model": "flux-general-en"}),
        ({"model": "nova-3", "version": "v9"}, {"type": "deepgram", "version": "v9", "model": "nova-3"}),
    ],
)
def test_listen_is_a_model_or_a_block(folder, value, block):
    assert agent(folder, listen=value).listen == block


@pytest.mark.parametrize(
    "value, block",
    [
        ("anthropic/claude", {"type": "anthropic", "model": "claude"}),
        ("open_ai/org/model", {"type": "open_ai", "model": "org/model"}),
        ({"type": "google", "model": "g", "temperature": 0}, {"type": "google", "model": "g", "temperature": 0}),
    ],
)
def test_think_is_provider_and_model(folder, value, block):
    assert agent(folder, think=value).think == block


@pytest.mark.parametrize(
    "value, block",
    [
        ("aura-2-zeus-en", {"type": "deepgram", "model": "aura-2-zeus-en"}),
        ("flux-zeus-en", {"type": "deepgram", "version": "v2", "model": "flux-zeus-en"}),
        ({"type": "cartesia", "model_id": "s"}, {"type": "cartesia", "model_id": "s"}),
    ],
)
def test_voice_is_a_model_or_a_block(folder, value, block):
    assert agent(folder, voice=value).speak == block


@pytest.mark.parametrize(
    "value, settings",
    [
        (False, (0.0, "", 0.0)),
        ({}, (20.0, "", 60.0)),
        ({"ask_after": 5, "ask": "Hello?", "hang_up_after": 10}, (5.0, "Hello?", 10.0)),
        ({"hang_up_after": 15}, (5.0, "", 15.0)),
        ({"hang_up_after": 600}, (20.0, "", 600.0)),
        ({"ask_after": 40}, (40.0, "", 120.0)),
        ({"ask_after": 0}, (0.0, "", 60.0)),
        ({"hang_up_after": 0}, (20.0, "", 0.0)),
    ],
)
def test_silence_has_defaults_that_fit(folder, value, settings):
    silence = agent(folder, silence=value).silence
    assert (silence.ask_after, silence.ask, silence.hang_up_after) == settings


# Mistakes


@pytest.mark.parametrize(
    "table, message",
    [
        (
            {"colour": "x"},
            "unknown key colour; known are brain, consent, disabled_tools, elevenlabs_agent, engine, "
            "fields, filler, first_token_seconds, functions, greeting, interrupt, knowledge, "
            "language, listen, memory, no_answer, numbers, one_moment, openai, patience, prompt, redact_brain, "
            "retell_agent, silence, sorry, text_agent, think, timezone, tools, transfer_to, vapi_assistant, voice, "
            "webhook, webhook_events, xai",
        ),
        ({"promt": "x"}, "unknown key promt; did you mean prompt?"),
        ({"prompt": "no.md"}, "prompt: there is no file no.md; create it, or name another"),
        ({"prompt": "sound.md"}, "sound.md is not UTF-8 text; save it as such"),
        ({"prompt": 3}, "prompt must be text in quotes"),
        ({"greeting": 3}, "greeting must be text in quotes"),
        (
            {"numbers": ["2025550100"]},
            "numbers has '2025550100', which is not an E.164 number; write it like +12025550100",
        ),
        (
            {"numbers": [12025550100]},
            "numbers has '12025550100', which is not an E.164 number; write it like +12025550100",
        ),
        ({"timezone": "Mars"}, "timezone is 'Mars', which is not a time zone; write it like America/New_York"),
        ({"timezone": "America"}, "timezone is 'America', which is not a time zone; write it like America/New_York"),
        pytest.param(
            {"timezone": LONG_NAME},
            f"timezone is '{LONG_NAME}', which is not a time zone; write it like America/New_York",
            id="long zone",
        ),
        ({"timezone": "../etc"}, "timezone is '../etc', which is not a time zone; write it like America/New_York"),
        ({"timezone": 5}, "timezone must be text in quotes"),
        ({"listen": ""}, "listen is empty; name a model, or leave the line out"),
        ({"listen": 3}, "listen must be text in quotes or a table"),
        ({"voice": ""}, "voice is empty; name a model, or leave the line out"),
        ({"voice": ["a"]}, "voice must be text in quotes or a table"),
        ({"think": "gpt"}, "think is 'gpt'; write provider/model, like open_ai/gpt-5.4-mini"),
        ({"think": "/gpt"}, "think is '/gpt'; write provider/model, like open_ai/gpt-5.4-mini"),
        ({"think": "open_ai/"}, "think is 'open_ai/'; write provider/model, like open_ai/gpt-5.4-mini"),
        ({"brain": 3}, "brain must be like anthropic/claude-haiku-5-5, a table with url and model, or a list"),
        ({"first_token_seconds": 0}, "first_token_seconds must be a number of seconds, up to 60"),
        ({"functions": "no.py"}, "functions: there is no file no.py; it is looked for beside gateway.toml"),
        ({"functions": "."}, "functions: there is no file .; it is looked for beside gateway.toml"),
        ({"knowledge": "no"}, "knowledge: there is no folder no; it is looked for beside gateway.toml"),
        (
            {"transfer_to": {" ": "+12025550177"}},
            'transfer_to: a target has no name; write it like sales = "+12025550177"',
        ),
        (
            {"transfer_to": {"sales": "the sales desk"}},
            "transfer_to: sales must be a number like +12025550100 or sip:desk@example.com",
        ),
        ({"text_agent": "ftp://x"}, "text_agent must be openclaw/AGENT or the https address of a webhook"),
        (
            {"consent": True},
            'consent must be a table like { announce = "This call is recorded.", require = true }',
        ),
        ({"consent": {"say": "x"}}, "consent: unknown key say; known are always, announce, require"),
        ({"consent": {"announce": "x", "always": 1}}, "consent.always must be true or false"),
        ({"consent": {"announce": 7}}, "consent.announce must be text in quotes"),
        ({"consent": {"announce": "x", "require": "yes"}}, "consent.require must be true or false"),
        ({"consent": {"announce": " "}}, 'consent.announce is missing; write announce = "This call is recorded."'),
        ({"consent": {}}, 'consent.announce is missing; write announce = "This call is recorded."'),
        ({"interrupt": "sometimes"}, "interrupt is 'sometimes'; use one of: at_once, words, never"),
        ({"patience": 3}, "patience is 3; use one of: short, normal, long"),
        ({"silence": True}, "silence must be false, or a table like { ask_after = 20, hang_up_after = 60 }"),
        ({"silence": {"say": "x"}}, "silence: unknown key say; known are ask, ask_after, hang_up_after"),
        ({"silence": {"ask": 7}}, "silence.ask must be text in quotes"),
        ({"silence": {"ask_after": -1}}, "silence.ask_after must be a number of seconds, up to 3600; 0 for never"),
        ({"silence": {"ask_after": 60, "hang_up_after": 20}}, "silence.hang_up_after must be more than ask_after"),
        ({"filler": "humming"}, 'filler must be sound = "typing", or say = ["Let me see.", "One second."]'),
        ({"filler": {"sound": "typing", "after": 0}}, "filler.after must be a number of seconds, up to 60"),
        ({"filler": {"loud": True}}, "filler: unknown key loud; known are after, say, sound"),
        (
            {"memory": {"repeat_caller": {"state_keys": "cheese"}}},
            "memory.repeat_caller.state_keys must be a list of names",
        ),
        ({"think": {"model": "g"}}, "think needs type and model, like type = 'open_ai', model = 'gpt-5.4-mini'"),
    ],
)
def test_mistake_says_what_to_write(folder, table, message):
    assert problem(folder, **table) == message


def test_file_that_can_not_be_looked_at_is_named(folder):
    """As in a folder of another user."""
    (folder / "loop.py").symlink_to("loop.py")
    with pytest.raises(SettingsError) as raised:
        AgentDirectory({"maya": {"functions": "loop.py"}}, folder)
    assert str(raised.value) == f"{folder / 'loop.py'} can't be read: Too many levels of symbolic links"


def test_data_dir_that_can_not_be_looked_at_has_no_prompts(folder):
    """Another check names it."""
    (folder / "data").symlink_to("data")
    assert AgentDirectory({}, folder, data_dir=folder / "data")


@pytest.mark.parametrize("name", ["Maya", "-maya", "may a", "", "m" * 65])
def test_name_must_be_plain(folder, name):
    assert problem(folder, name) == "an agent's name is lower-case letters, digits, - and _"


# Memory as JSON

JSON = {
    "memory": {
        "repeat_caller": {
            "analytics_enabled": True,
            "state_keys": ["booking_day", "cheese_type"],
            "identifier_blacklist": ["+1202555"],
        }
    }
}


def test_gateway_json_is_for_all_agents(folder):
    (folder / "gateway.json").write_text(json.dumps(JSON))
    for one in AgentDirectory({"maya": {}, "tom": {}}, folder):
        assert one.repeat_caller.analytics_enabled
        assert one.repeat_caller.state_keys == {"booking_day", "cheese_type"}
        assert one.repeat_caller.identifier_blacklist == ("+1202555",)


@pytest.mark.parametrize("place", ["prompts", "agents/maya"])
def test_memory_json_is_for_the_agent_beside_it(folder, place):
    (folder / "agents" / "maya").mkdir(parents=True)
    (folder / "agents" / "maya" / "functions.py").touch()
    (folder / "gateway.json").write_text(json.dumps(JSON))
    own = {"memory": {"repeat_caller": {"identifier_source": "sip_header:X-Customer-Id"}}}
    (folder / place / "memory.json").write_text(json.dumps(own))
    tables = {"maya": {"functions": "agents/maya/functions.py"}, "tom": {"prompt": "tom.md"}}
    (folder / "tom.md").write_text("You are Tom.")
    maya, tom = AgentDirectory(tables, folder)
    assert (maya.repeat_caller.identifier_source, maya.repeat_caller.state_keys) == (
        IdentifierSource("sip_header", "x-customer-id"),
        frozenset(),
    )
    assert tom.repeat_caller.state_keys == {"booking_day", "cheese_type"}


def test_table_in_gateway_toml_wins(folder):
    (folder / "gateway.json").write_text(json.dumps({"memory": {**JSON["memory"], "retention_days": 7}}))
    maya = agent(folder, memory={"repeat_caller": {"state_keys": ["size"]}})
    assert (maya.repeat_caller.state_keys, maya.retention_days) == ({"size"}, 7)


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"memory": }', "gateway.json can't be read: Expecting value: line 1 column 12 (char 11)"),
        ("[]", "gateway.json must be an object with the key memory"),
        ('{"memory": {}, "x": 1}', "gateway.json must be an object with the key memory"),
        ('{"memory": {"x": 1}}', "gateway.json: memory: unknown key x; known are repeat_caller, retention_days, trust"),
        (
            '{"memory": {"repeat_caller": {"state_keys": "x"}}}',
            "gateway.json: memory.repeat_caller.state_keys must be a list of names",
        ),
    ],
)
def test_mistake_in_json_is_one_sentence(folder, text, message):
    (folder / "gateway.json").write_text(text)
    assert problem(folder) == message


@pytest.mark.parametrize("key", ["elevenlabs_agent", "vapi_assistant", "retell_agent"])
def test_two_agents_have_different_ids_at_a_platform(folder, key):
    with pytest.raises(SettingsError, match=f"^gateway.toml: two agents have the same {key}$"):
        AgentDirectory({"maya": {key: "a1"}, "tom": {key: "a1"}}, folder)


# Changed files


async def test_changed_prompt_is_taken_over(folder):
    agents = AgentDirectory({"maya": {}, "tom": {}}, folder)
    before = agents.answering("maya")
    (folder / "prompts" / "maya.md").write_text("You are Maya, and brief.\n")
    assert agents.answering("maya") is before
    await agents.refresh()
    after = agents.answering("maya")
    assert after.prompt == "You are Maya, and brief." and after.version != before.version
    assert agents.answering("tom").prompt.startswith("You are Tom.")


async def test_changed_greeting_and_voice_are_taken_over_and_the_rest_is_not(folder):
    agents = AgentDirectory({"maya": {"language": "en"}}, folder)
    toml = '[agents.maya]\ngreeting = "Hi!"\nvoice = "aura-2-luna-en"\nlanguage = "de"\n[agents.tom]\n'
    (folder / "gateway.toml").write_text(toml)
    await agents.refresh()
    maya = agents.get("maya")
    assert maya.live == LiveSettings("You are Maya.", "Hi!", "aura-2-luna-en")
    assert maya.language == "en"
    assert agents.keys_read_at_start("maya") == ["language", "sorry"]
    assert agents.added == ["tom"]


class Users:
    """Refuses one engine; remembers the agents that it prepared."""

    def __init__(self):
        self.prepared = []

    def check(self, agent):
        if "openai" in agent.engine:
            raise SettingsError("OPENAI_API_KEY is not set")

    def prepare(self, agent):
        self.prepared.append(agent.engine)


async def test_changed_engine_and_tools_are_prepared_and_taken_over(folder):
    agents, users = AgentDirectory({"maya": {}}, folder), Users()
    agents.attach(users)
    toml = '[agents.maya]\nengine = ["local"]\ndisabled_tools = ["end_call"]\ntransfer_to = { a = "+12025550177" }\n'
    (folder / "gateway.toml").write_text(toml)
    await agents.refresh()
    maya = agents.get("maya")
    assert (maya.engine, maya.disabled_tools, maya.transfer_to) == (("local",), {"end_call"}, {"a": "+12025550177"})
    assert (users.prepared, agents.keys_read_at_start("maya"), maya.version) == ([("local",)], [], maya.live.version)


async def test_engine_that_is_not_set_up_leaves_the_agent_as_it_was(folder):
    agents, users = AgentDirectory({"maya": {}}, folder), Users()
    agents.attach(users)
    (folder / "gateway.toml").write_text('[agents.maya]\nengine = "openai"\ngreeting = "Hi!"\n')
    await agents.refresh()
    assert agents.problem == "OPENAI_API_KEY is not set"
    assert (agents.get("maya").engine, users.prepared) == ((), [])


@pytest.mark.parametrize("value", [3, [""], [1], {"a": 1}])
def test_disabled_tools_are_names(folder, value):
    with pytest.raises(SettingsError, match=r"maya\]: disabled_tools must be a list of names, like"):
        AgentDirectory({"maya": {"disabled_tools": value}}, folder)


async def test_broken_file_leaves_the_agent_as_it_was(folder, caplog):
    agents = AgentDirectory({"maya": {}}, folder)
    (folder / "gateway.toml").write_text("[agents.maya\n")
    await agents.refresh()
    await agents.refresh()
    assert agents.problem.startswith("gateway.toml can't be read: ")
    assert agents.get("maya").prompt == "You are Maya."
    assert len(caplog.records) == 1
    (folder / "gateway.toml").write_text('[agents.maya]\ngreeting = "Hi!"\n')
    await agents.refresh()
    assert (agents.problem, agents.get("maya").greeting) == ("", "Hi!")


async def test_prompt_may_be_written_after_the_key_that_names_it(folder, caplog):
    agents = AgentDirectory({"maya": {}}, folder)
    (folder / "gateway.toml").write_text('[agents.maya]\nprompt = "brief.md"\n')
    await agents.refresh()
    await agents.refresh()
    assert "brief.md" in agents.problem and len(caplog.records) == 1
    (folder / "brief.md").write_text("Be brief.")
    await agents.refresh()
    assert (agents.problem, agents.get("maya").prompt) == ("", "Be brief.")


async def test_half_of_a_change_is_not_read(folder):
    """A new prompt and a new greeting are in two files; both become one version."""
    agents = AgentDirectory({"maya": {}}, folder)
    async with agents.files_lock:
        (folder / "prompts" / "maya.md").write_text("You are brief.\n")
        refreshing = asyncio.create_task(agents.refresh())
        await asyncio.sleep(0.01)
        (folder / "gateway.toml").write_text('[agents.maya]\ngreeting = "Hi!"\n')
        assert agents.get("maya").prompt == "You are Maya."
    await refreshing
    assert (agents.get("maya").prompt, agents.get("maya").greeting) == ("You are brief.", "Hi!")


async def test_prompt_beside_the_file_replaces_the_bundled_one(tmp_path):
    agents = AgentDirectory({}, tmp_path)
    assert not agents.get("maya").prompt_file.is_relative_to(tmp_path)
    own = agents.prompt_path("maya")
    own.parent.mkdir()
    own.write_text("Mine.")
    await agents.refresh()
    assert (agents.get("maya").prompt, agents.get("maya").prompt_file) == ("Mine.", own)


def test_equal_texts_have_one_version(folder):
    one, other = agent(folder, greeting="Hi!"), agent(folder, greeting="Hi!", language="de")
    assert one.version == other.version != agent(folder, greeting="Hi").version
    assert re.fullmatch("[0-9a-f]{12}", one.version)
