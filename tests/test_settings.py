import re
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest

from gateway.errors import SettingsError
from gateway.settings import DEEPCLAW_SETTINGS, NAMES, Secret, Settings, load, read_table

TWILIO = {"TWILIO_ACCOUNT_SID": "AC1", "TWILIO_AUTH_TOKEN": "twilio-secret"}
TELNYX = {"TELNYX_API_KEY": "KEY1", "TELNYX_PUBLIC_KEY": "e30="}
LONG_NUMBER = "9" * 5000  # more digits than int() takes


def problem(environ, folder):
    with pytest.raises(SettingsError) as raised:
        load(environ, folder)
    return str(raised.value)


# Where a value comes from


def test_nothing_given_means_defaults(tmp_path):
    assert load({}, tmp_path) == Settings(folder=tmp_path)


def test_environment_beats_dotenv_beats_toml(tmp_path):
    (tmp_path / "gateway.toml").write_text("host = 'toml'\nport = 1\nsummary_model = 'toml'\n")
    (tmp_path / ".env").write_text("HOST=dotenv\nPORT=2\n")
    settings = load({"HOST": "environ"}, tmp_path)
    assert (settings.host, settings.port, settings.summary_model) == ("environ", 2, "toml")


def test_blank_value_means_the_default(tmp_path):
    (tmp_path / "gateway.toml").write_text("host = 'toml'\n")
    (tmp_path / ".env").write_text("PORT=\nLOG_LEVEL\n")
    settings = load({"HOST": "  ", "REMEM_API_KEY": ""}, tmp_path)
    assert settings == Settings(folder=tmp_path)


def test_values_are_trimmed(tmp_path):
    settings = load({"HOST": " 0.0.0.0\n", "XAI_API_KEY": " key "}, tmp_path)
    assert (settings.host, settings.xai_api_key) == ("0.0.0.0", Secret("key"))


def test_dotenv_is_taken_literally(tmp_path):
    (tmp_path / ".env").write_text("REMEM_API_KEY='a${HOME}b'\n")
    assert load({}, tmp_path).remem_api_key == Secret("a${HOME}b")


def test_foreign_variables_are_ignored(tmp_path):
    (tmp_path / ".env").write_text("COLOUR=blue\n")
    assert load({"PATH": "/bin", "host": "lower"}, tmp_path) == Settings(folder=tmp_path)


DEEPCLAW = """# DeepClaw
DEEPGRAM_API_KEY=dg-key
TWILIO_ACCOUNT_SID=AC0123
TWILIO_AUTH_TOKEN=token
TELNYX_API_KEY=KEY0123
TELNYX_PUBLIC_KEY=base64=
VOICE_PROVIDER=telnyx
OPENCLAW_GATEWAY_URL=http://127.0.0.1:18789
OPENCLAW_GATEWAY_TOKEN=claw
OPENCLAW_VOICE_MODEL=anthropic/claude-haiku-5-5
PROXY_SECRET=secret
HOST=0.0.0.0
PORT=8000
"""


def test_env_of_deepclaw_is_taken(tmp_path):
    """Each name has a row in the table of docs/migrating-from-deepclaw.md: the same here, or ignored."""
    (tmp_path / ".env").write_text(DEEPCLAW)
    settings = load({}, tmp_path)
    assert (settings.engines, settings.carriers) == (("deepgram",), {"twilio", "telnyx"})
    assert (settings.openclaw_gateway_url, settings.host) == ("http://127.0.0.1:18789", "0.0.0.0")
    assert settings.openclaw_gateway_token == Secret("claw")
    assert settings.ignored == (
        "VOICE_PROVIDER: every carrier with keys is active; "
        "OPENCLAW_VOICE_MODEL: choose the model in OpenClaw, or set brain in gateway.toml; "
        "PROXY_SECRET: each call has a token of its own"
    )
    assert load({}, tmp_path / "elsewhere").ignored == ""
    page = (Path(__file__).parent.parent / "docs/migrating-from-deepclaw.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    named = {name: here for names, here in rows for name in re.findall(r"`([A-Z_]+)`", names)}
    assert set(named) == {line.partition("=")[0] for line in DEEPCLAW.splitlines()[1:]}
    assert {name for name, here in named.items() if "ignored" in here} == set(DEEPCLAW_SETTINGS)


def test_every_name_can_stand_in_a_file(tmp_path):
    (tmp_path / "gateway.toml").write_text("".join(f"{name.lower()} = ''\n" for name in NAMES))
    assert load({}, tmp_path) == Settings(folder=tmp_path)


def test_every_setting_says_what_it_means():
    internal = {"agents", "folder", "agent_keys", "from_deepclaw", "misspelt", "otel"}
    assert {name.lower() for name in NAMES} == set(Settings.model_fields) - internal


# Kinds of values


@pytest.mark.parametrize("text", ["true", "TRUE", "1", "yes", "on"])
def test_words_for_true(text, tmp_path):
    assert load({"VOICE_SESSION_ENABLED": text}, tmp_path).voice_session_enabled is True


@pytest.mark.parametrize("text", ["false", "False", "0", "no", "off"])
def test_words_for_false(text, tmp_path):
    assert load({"VOICE_SESSION_ENABLED": text}, tmp_path).voice_session_enabled is False


def test_comma_list_becomes_a_set(tmp_path):
    settings = load({"ALLOWED_CALLERS": "+12025550101, +12025550102,, +12025550101 ,"}, tmp_path)
    assert settings.allowed_callers == {"+12025550101", "+12025550102"}


def test_toml_list_and_booleans_are_taken(tmp_path):
    (tmp_path / "gateway.toml").write_text(
        "allowed_callers = ['+12025550101', '+12025550102']\nvoice_session_enabled = false\nport = 0\n"
    )
    settings = load({}, tmp_path)
    assert settings.allowed_callers == {"+12025550101", "+12025550102"}
    assert (settings.voice_session_enabled, settings.port) == (False, 0)


def test_toml_names_may_be_upper_case(tmp_path):
    (tmp_path / "gateway.toml").write_text("HOST = '0.0.0.0'\n")
    assert load({}, tmp_path).host == "0.0.0.0"


def test_tilde_is_the_home_folder(tmp_path):
    settings = load({"DATA_DIR": "~/voice", "RECORD_DIR": "/var/calls"}, tmp_path)
    assert settings.data_dir == Path.home() / "voice"
    assert settings.record_dir == Path("/var/calls")


def test_choices_ignore_case(tmp_path):
    settings = load({"LOG_LEVEL": "Debug", "LOG_FORMAT": "JSON", "SUMMARY_PROVIDER": "Extractive"}, tmp_path)
    assert (settings.log_level, settings.log_format, settings.summary_provider) == ("debug", "json", "extractive")


@pytest.mark.parametrize(
    "environ, engines",
    [
        ({}, ("local",)),
        ({"DEEPGRAM_API_KEY": "k"}, ("deepgram",)),
        ({"DEEPGRAM_API_KEY": "k", "VOICE_ENGINE": "local"}, ("local",)),
        ({"DEEPGRAM_API_KEY": "k", "VOICE_ENGINE": "deepgram"}, ("deepgram",)),
        ({"DEEPGRAM_API_KEY": "k", "VOICE_ENGINE": "Deepgram, local,"}, ("deepgram", "local")),
    ],
)
def test_engines_follow_the_key(environ, engines, tmp_path):
    assert load(environ, tmp_path).engines == engines


def test_agents_are_handed_on_as_read(tmp_path):
    (tmp_path / "gateway.toml").write_text("[agents.maya]\nnumbers = ['+12025550100']\n[agents.tom]\n")
    assert load({}, tmp_path).agents == {"maya": {"numbers": ["+12025550100"]}, "tom": {}}


# Mistakes


@pytest.mark.parametrize(
    "environ, message",
    [
        ({"PORT": "http"}, "PORT is 'http'; use a whole number, 0 or more"),
        ({"PORT": "-1"}, "PORT is '-1'; use a whole number, 0 or more"),
        ({"PORT": "8000.5"}, "PORT is '8000.5'; use a whole number, 0 or more"),
        ({"PORT": "65536"}, "PORT is 65536; use a number from 0 to 65535"),
        pytest.param(
            {"PORT": LONG_NUMBER}, f"PORT is '{LONG_NUMBER}'; use a whole number, 0 or more", id="PORT of 5000 digits"
        ),
        ({"DATA_DIR": "~nosuchuser/x"}, "DATA_DIR is '~nosuchuser/x'; there is no such user"),
        ({"VOICE_SESSION_ENABLED": "maybe"}, "VOICE_SESSION_ENABLED is 'maybe'; use true or false"),
        ({"LOG_LEVEL": "loud"}, "LOG_LEVEL is 'loud'; use one of: debug, info, warning, error"),
        ({"LOG_FORMAT": "xml"}, "LOG_FORMAT is 'xml'; use one of: text, json"),
        ({"VOICE_ENGINE": "deepgram"}, "VOICE_ENGINE is deepgram but DEEPGRAM_API_KEY is not set"),
        ({"SUMMARY_PROVIDER": "anthropic"}, "SUMMARY_PROVIDER is anthropic but ANTHROPIC_API_KEY is not set"),
        ({"SUMMARY_PROVIDER": "xai"}, "SUMMARY_PROVIDER is xai but XAI_API_KEY is not set"),
        (
            {"SUMMARY_PROVIDER": "gpt"},
            "SUMMARY_PROVIDER is 'gpt'; use one of: anthropic, xai, openai, openclaw, brain, extractive, or the URL of "
            "a server with chat completions",
        ),
    ],
)
def test_mistake_says_what_to_write(environ, message, tmp_path):
    assert problem(environ, tmp_path) == message


@pytest.mark.parametrize(
    "name",
    ["PUBLIC_URL", "TWILIO_API_URL", "TELNYX_API_URL", "REMEM_API_URL", "XAI_API_URL", "OPENCLAW_GATEWAY_URL"],
)
@pytest.mark.parametrize(
    "value",
    ["voice.example.com", "ftp://voice.example.com", "https://", "wss://host", "https://[bad", "https://host:65536"],
)
def test_address_must_be_an_http_one(name, value, tmp_path):
    message = f"{name} is not an address with https:// or http://; write it like https://host/path"
    assert problem({name: value}, tmp_path) == message


@pytest.mark.parametrize("value", ["agent.example.com", "https://agent.example.com", "wss:///v1"])
def test_engine_address_must_be_a_socket(value, tmp_path):
    message = "DEEPGRAM_AGENT_URL is not an address with wss:// or ws://; write it like wss://host/path"
    assert problem({"DEEPGRAM_AGENT_URL": value}, tmp_path) == message


@pytest.mark.parametrize("key", ["…", "a\nb", "Schlüssel"])
@pytest.mark.parametrize("name", ["DEEPGRAM_API_KEY", "GATEWAY_ADMIN_TOKEN", "ANTHROPIC_API_KEY"])
def test_key_that_no_header_can_carry_is_a_mistake(name, key, tmp_path):
    """The three dots of an example, copied along with it."""
    message = f"{name} has a character that is not allowed in a header; copy it again"
    assert problem({name: key}, tmp_path) == message


@pytest.mark.parametrize("name", TWILIO)
def test_half_of_twilio_is_a_mistake(name, tmp_path):
    message = "set TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN together; the Twilio console shows both"
    assert problem({name: TWILIO[name]}, tmp_path) == message


@pytest.mark.parametrize("name", TELNYX)
def test_half_of_telnyx_is_a_mistake(name, tmp_path):
    message = "set TELNYX_API_KEY and TELNYX_PUBLIC_KEY together; the Telnyx portal shows both"
    assert problem({name: TELNYX[name]}, tmp_path) == message


def test_unknown_key_in_the_file_is_named(tmp_path):
    (tmp_path / "gateway.toml").write_text("Prot = 8000\nzone = 1\n")
    assert problem({}, tmp_path) == "gateway.toml: unknown setting prot; did you mean port?"
    (tmp_path / "gateway.toml").write_text("zone = 1\n")
    assert problem({}, tmp_path) == "gateway.toml: unknown setting zone; docs/settings.md lists them all"


@pytest.mark.parametrize("text", ["agents = 1\n", "[agents]\nmaya = 'prompts/maya.md'\n", "[[agents]]\nname = 'm'\n"])
def test_agents_must_be_tables(text, tmp_path):
    (tmp_path / "gateway.toml").write_text(text)
    assert problem({}, tmp_path) == "gateway.toml: agents must be tables; write [agents.NAME]"


@pytest.mark.parametrize("text", ["host = { a = 1 }\n", "host = [['a']]\n"], ids=["table", "list of lists"])
def test_toml_value_must_be_plain(text, tmp_path):
    (tmp_path / "gateway.toml").write_text(text)
    assert problem({}, tmp_path) == "gateway.toml: host must be a plain value"


def test_broken_file_says_where(tmp_path):
    (tmp_path / "gateway.toml").write_text("host = 'a'\nport = = 1\n")
    assert problem({}, tmp_path) == "gateway.toml can't be read: Invalid value (at line 2, column 8)"


def test_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "gateway.toml").write_bytes(b"host = '\xff'")
    assert problem({}, tmp_path).startswith("gateway.toml can't be read: ")


@pytest.mark.parametrize("name", ["gateway.toml", ".env"])
def test_folder_in_place_of_a_file_is_refused(name, tmp_path):
    """Docker makes one for a mounted file that is missing; the settings would silently be the defaults."""
    (tmp_path / name).mkdir()
    with pytest.raises(SettingsError) as raised:
        load({}, tmp_path)
    assert str(raised.value) == f"{name} can't be read: Is a directory"


def test_file_that_can_not_be_looked_at_is_refused(tmp_path):
    """As in a folder of another user; the tests may run as root, who is refused only by a link to itself."""
    (tmp_path / ".env").symlink_to(".env")
    with pytest.raises(SettingsError) as raised:
        load({}, tmp_path)
    assert str(raised.value) == f"{tmp_path / '.env'} can't be read: Too many levels of symbolic links"


def test_dotenv_line_without_a_value_is_refused(tmp_path):
    (tmp_path / ".env").write_text("PORT=8001\n\nthis is not a setting\n")
    with pytest.raises(SettingsError) as raised:
        load({}, tmp_path)
    assert str(raised.value) == ".env, line 3 can't be read; write NAME=value, or # before a comment"


def test_dotenv_that_is_not_text_is_refused(tmp_path):
    (tmp_path / ".env").write_bytes(b"HOST=\xff")
    assert problem({}, tmp_path) == ".env is not UTF-8 text; save it as such"


@dataclass(frozen=True)
class Table:
    """A table of gateway.toml."""

    name: str = ""
    options: dict[str, int] = field(default_factory=dict)


def test_table_becomes_a_dataclass():
    assert read_table(Table, {"name": "maya"}, "[agents.maya]") == Table("maya")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("maya", "[agents.maya] must be a table"),
        ({"nam": 1}, "[agents.maya]: unknown key nam; known are name, options"),
        ({"name": 1}, "[agents.maya].name must be text in quotes"),
        ({"options": 1}, "[agents.maya].options must be a table"),
    ],
)
def test_mistake_in_a_table_names_the_place(table, message):
    with pytest.raises(SettingsError) as raised:
        read_table(Table, table, "[agents.maya]")
    assert str(raised.value) == message


# Secrets


@pytest.mark.parametrize("show", [repr, str, "{}".format, "%s".__mod__, lambda secret: f"{secret!r}"])
def test_secret_never_shows(show):
    assert show(Secret("hunter2")) == "Secret(…)"


def test_secret_stays_hidden_in_settings(tmp_path):
    settings = load(TWILIO | TELNYX | {"GATEWAY_ADMIN_TOKEN": "hunter2-hunter2-hunter2"}, tmp_path)
    assert not any(word in repr(settings) for word in ("twilio-secret", "KEY1", "hunter2"))
    assert b"hunter2" not in orjson.dumps(settings.gateway_admin_token, default=str)


@pytest.mark.parametrize("token", ["x", "fifteen-letters"])
def test_short_admin_token_is_a_mistake(token, tmp_path):
    message = "GATEWAY_ADMIN_TOKEN is shorter than 16 characters; use what this prints: openssl rand -hex 32"
    assert problem({"GATEWAY_ADMIN_TOKEN": token}, tmp_path) == message
    assert load({"GATEWAY_ADMIN_TOKEN": "sixteen-letters."}, tmp_path).gateway_admin_token is not None


def test_secret_reveals_and_compares():
    assert Secret("a").reveal() == "a"
    assert Secret("a") == Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a")}) == 1


def test_every_credential_is_a_secret():
    kinds = {name: field.annotation for name, field in Settings.model_fields.items()}
    named = [name for name in kinds if name.endswith(("_token", "_api_key", "_password", "_secret"))]
    assert len(named) > 9
    assert all(kinds[name] == Secret | None for name in named)


def test_bad_address_is_not_repeated(tmp_path):
    """An address may hold a password."""
    assert "hunter2" not in problem({"REMEM_API_URL": "ftp://me:hunter2@host"}, tmp_path)


@pytest.mark.parametrize("proxies", ["*", "10.0.0.5", "127.0.0.1, ::1,172.28.77.0/24"])
def test_proxies_are_addresses_and_networks(proxies, tmp_path):
    assert load({"FORWARDED_ALLOW_IPS": proxies}, tmp_path).forwarded_allow_ips == proxies


@pytest.mark.parametrize("entry", ["caddy", "10.0.0.5/8"])
def test_proxy_that_would_never_match_is_a_mistake(entry, tmp_path):
    message = f"FORWARDED_ALLOW_IPS has {entry!r}; use addresses and networks, such as 10.0.0.5 or 172.28.77.0/24"
    assert problem({"FORWARDED_ALLOW_IPS": f"127.0.0.1,{entry}"}, tmp_path) == message


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:a?b#c%40@db.example.com:5432/voice?sslmode=require",
        "postgres://127.0.0.1/x",
        "postgresql://me@[::1]:5432/x",
        "postgresql:///x?host=/run/postgresql",
        "postgresql://me:pw@one:5432,two:5433/x?target_session_attrs=any",
        "postgresql://%2Frun%2Fpostgresql/x",
    ],
)
def test_address_of_a_database_is_accepted(url, tmp_path):
    assert load({"DATABASE_URL": url}, tmp_path).database_url == Secret(url)


@pytest.mark.parametrize("password", ["se@same", "se/same", "1/sesame", "se@same/word", "open@@sesame"])
def test_password_that_takes_an_address_apart_is_a_mistake(password, tmp_path):
    told = problem({"DATABASE_URL": f"postgresql://me:{password}@127.0.0.1:5432/x"}, tmp_path)
    assert told.startswith("DATABASE_URL is not an address of PostgreSQL; ") and "PGPASSWORD" in told
    assert not [part for part in ("sesame", "same") if part in told]
