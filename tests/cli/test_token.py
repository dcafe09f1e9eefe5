"""`gateway token` and `gateway login-link`, without a running gateway."""

import json
import re

import pytest

from gateway.cli.main import main
from gateway.settings import Secret
from gateway.web.login_sessions import LoginLinks


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def gateway(capsys):
    def run(*arguments):
        code = main(list(arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_token_is_created_listed_and_revoked(gateway):
    code, out, _ = gateway("token", "create", "--scope", "read", "--days", "30", "--label", "Grafana")
    text, summary = out.splitlines()
    assert code == 0 and re.fullmatch(r"vg_[0-9a-f]{8}_[\w-]{43}", text)
    assert re.fullmatch(r"scope read, until \d{4}-\d\d-\d\d [A-Z+-]\S+. Copy it now: it can't be shown again.", summary)
    _, listed, _ = gateway("token", "list")
    head, row = listed.splitlines()
    assert head.split()[:3] == ["id", "scope", "label"] and row.split()[:3] == [text[:11], "read", "Grafana"]
    assert row.endswith("active") and text not in listed
    code, out, _ = gateway("token", "revoke", text[:11])
    assert (code, out) == (0, f"revoked {text[:11]}; running gateways refuse it within 5 s\n")
    assert gateway("token", "list")[1].splitlines()[1].endswith("revoked")
    entries = json.loads(gateway("audit", "--action", "token", "--json")[1])
    assert [(entry["action"], entry["item"]) for entry in entries] == [
        ("token.revoke", text[3:11]),
        ("token.create", text[3:11]),
    ]


def test_json_is_for_machines(gateway):
    made = json.loads(gateway("token", "create", "--scope", "store", "--days", "0", "--json")[1])
    [listed] = json.loads(gateway("token", "list", "--json")[1])
    assert made["token"].startswith(f"vg_{made['id']}_") and made["expires_at"] is None
    assert "token" not in listed and "hash" not in listed
    assert (listed["id"], listed["scope"], listed["status"]) == (made["id"], "store", "active")
    assert json.loads(gateway("token", "revoke", made["id"], "--json")[1]) == {"id": made["id"], "status": "revoked"}


def test_token_lasts_90_days(gateway):
    made = json.loads(gateway("token", "create", "--scope", "read", "--json")[1])
    assert made["expires_at"][:10] > made["created_at"][:10]
    code, out, _ = gateway("token", "create", "--scope", "admin", "--days", "0")
    assert "scope admin, no expiry." in out


def test_token_is_bound_to_an_agent_and_a_caller(gateway, folder):
    (folder / "gateway.toml").write_text("[agents.maya]\n")
    bound = ("token", "create", "--scope", "mcp", "--agent", "maya", "--caller", "+1 202-555-0143")
    assert "scope mcp for maya, +12025550143, until" in gateway(*bound)[1]
    assert gateway(*bound[:-2])[0] == 2


def test_empty_list_says_how_to_create_one(gateway):
    assert gateway("token", "list")[1] == "no tokens; `gateway token create --scope read` creates one\n"


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ("create --scope read --days 5000", "a token is valid for 1 to 3650 days; 0 for no expiry"),
        ("create --scope read --agent otto --caller +12025550143", "no agent is named otto; the agents are "),
        ("create --scope mcp --caller 5", "'5' is not a phone number; write it like +12025550143"),
        ("revoke vg_00000000", "no active token vg_00000000; `gateway token list` lists all tokens"),
    ],
)
def test_mistake_is_one_line(gateway, arguments, problem):
    code, out, err = gateway("token", *arguments.split())
    assert (code, out) == (2, "") and err.startswith(f"gateway: {problem}") and err.count("\n") == 1


@pytest.mark.parametrize("arguments", ["create", "create --scope write", "create --scope read --days x", ""])
def test_wrong_options_are_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["token", *arguments.split()])
    assert exit_.value.code == 2 and capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "environ, arguments, address",
    [
        ({}, [], "http://127.0.0.1:8000"),
        ({"PORT": "8001", "HOST": "0.0.0.0"}, [], "http://127.0.0.1:8001"),
        ({"PUBLIC_URL": "https://voice.example.com/"}, [], "https://voice.example.com"),
        ({}, ["--url", "https://other.example.com"], "https://other.example.com"),
    ],
)
def test_login_link_is_printed(gateway, monkeypatch, folder, environ, arguments, address):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    (folder / "data").mkdir()
    (folder / "data" / "admin-token").write_text("made-at-the-first-start\n")
    code, out, _ = gateway("login-link", *arguments)
    link, _, made = out.strip().partition("?code=")
    assert (code, link) == (0, f"{address}/login") and LoginLinks(Secret("made-at-the-first-start")).read(made)[0]


def test_login_link_needs_the_token_of_a_gateway(gateway, folder):
    """In another folder than the gateway's, it would print a link that can't work."""
    code, out, err = gateway("login-link", "--url", "https://voice.example.com")
    how = "start one with `gateway serve`, or set GATEWAY_ADMIN_TOKEN to the token of the one at https://voice.example.com"
    assert (code, out) == (2, "")
    assert err == f"gateway: no gateway has been started with DATA_DIR={folder / 'data'}; {how}\n"
    assert not (folder / "data").exists()


def test_login_link_needs_a_whole_address(gateway):
    code, out, err = gateway("login-link", "--url", "voice.example.com")
    assert (code, out) == (2, "")
    assert err == "gateway: --url is 'voice.example.com'; write it like https://voice.example.com\n"
