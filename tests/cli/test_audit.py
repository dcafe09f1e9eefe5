"""`gateway audit`, and the entries of commands, in both databases."""

import asyncio
import io
import json
import re

import pytest

from gateway.cli.audit import write_entry
from gateway.cli.main import main
from gateway.history.audit_log import AuditAction, AuditFilter, AuditLog, AuditNote, AuditOutcome
from gateway.history.stores import open_stores
from gateway.memory.stores.documents import NewDocument
from gateway.settings import Secret, Settings

TOKEN = "admin-token-of-the-tests"
ANA, BEN = "+12025550143", "+12025550199"


@pytest.fixture
def gateway(ground, tmp_path, monkeypatch, capsys):
    """Runs a command; returns its exit code, output and complaint."""
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", TOKEN)
    monkeypatch.setenv("LOGNAME", "ada")
    if ground.database_url:
        monkeypatch.setenv("DATABASE_URL", ground.database_url.reveal())
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        code = main([*arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def stored(ground, tmp_path):
    """Runs work on the log, in the database that the commands use."""

    def run(work):
        async def opened():
            stores = await open_stores(tmp_path / "data", ground.database_url)
            try:
                return await work(stores.memory)
            finally:
                await stores.close()

        return asyncio.run(opened())

    return run


@pytest.fixture
def filled(stored):
    async def fill(store):
        audit = AuditLog(store, Secret(TOKEN))
        await audit.write(AuditNote(AuditAction.LOGIN, "admin", address="192.0.2.7"))
        await audit.write(AuditNote(AuditAction.CALLER_ERASE, "caller", agent="maya", caller=ANA))
        await audit.write(
            AuditNote(AuditAction.CALL_DIAL, "tok_1", AuditOutcome.REFUSED, session="3f2a9c1e-1", caller=BEN)
        )

    stored(fill)


def test_list_is_a_table_with_the_newest_first(gateway, filled):
    code, out, _ = gateway("audit")
    lines = [re.sub(" {2,}", "|", line) for line in out.splitlines()]
    assert code == 0
    assert lines[0] == "time|actor|action|outcome|caller|agent|call or item|address"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+\|tok_1\|call.dial\|refused\|…0199\|3f2a9c1e", lines[1])
    assert lines[3].endswith("|admin|login|done|192.0.2.7")


@pytest.mark.parametrize(
    ("options", "actions"),
    [
        ([], ["call.dial", "caller.erase", "login"]),
        (["--limit", "1"], ["call.dial"]),
        (["--actor", "caller"], ["caller.erase"]),
        (["--action", "caller"], ["caller.erase"]),
        (["--action", "login"], ["login"]),
        (["--caller", "+1 202 555 0143"], ["caller.erase"]),
        (["--since", "1h"], ["call.dial", "caller.erase", "login"]),
        (["--since", "2999-01-01"], []),
    ],
)
def test_filters(gateway, filled, options, actions):
    code, out, _ = gateway("audit", "--json", *options)
    assert (code, [entry["action"] for entry in json.loads(out)]) == (0, actions)
    assert ANA not in out


def test_empty_log(gateway, stored):
    stored(lambda store: AuditLog(store, Secret(TOKEN)).verify())
    assert gateway("audit")[:2] == (0, "no entries\n")
    assert gateway("audit", "--verify")[:2] == (0, "0 entries verified\n")


def test_verify_finds_a_change(gateway, filled, stored):
    code, out, _ = gateway("audit", "--verify")
    [noted] = re.findall("[0-9a-f]{64}", out)
    assert (code, out) == (0, f"3 entries verified\nlast hash: {noted}\n")
    assert gateway("audit", "--verify", noted)[0] == 0
    code, out, _ = gateway("audit", "--verify", "ab12")
    assert (code, out.splitlines()[0]) == (1, "the audit log was changed: no entry has this hash")
    stored(lambda store: store.change("UPDATE audit_log SET actor = 'ben' WHERE number = 2"))
    code, out, _ = gateway("audit", "--verify", "--json")
    assert (code, json.loads(out)["problem"]) == (1, "entry 2 was changed")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--limit", "0"], "--limit is 0; use 1 or more"),
        (["--action", "call.er"], "no action is named 'call.er'; use one of: login, login.link, logout"),
        (["--since", "soon"], "'soon' is not a valid time"),
    ],
)
def test_mistake_is_one_line(gateway, filled, options, problem):
    code, out, err = gateway("audit", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert problem in err


def test_no_gateway_here_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "nothing"))
    monkeypatch.chdir(tmp_path)
    assert main(["audit"]) == 2
    assert "run `gateway serve` once" in capsys.readouterr().err
    write_entry(Settings(data_dir=tmp_path / "nothing"), AuditNote(AuditAction.NUMBER_SETUP))
    assert not (tmp_path / "nothing").exists()


def test_commands_leave_entries(gateway, stored, monkeypatch, tmp_path):
    note = NewDocument("Note", "Likes tea.", "mcp", ("agent:default", f"caller:{ANA}"))
    stored(lambda store: store.create(note))
    monkeypatch.setattr("sys.stdin", io.StringIO("4711\n"))
    assert gateway("memory", "pin-code", ANA)[0] == 0
    assert gateway("memory", "pin-code", ANA, "--remove")[0] == 0
    assert gateway("memory", "pin", ANA, "The bike")[0] == 0
    assert gateway("memory", "unpin", ANA, "The boat")[0] == 2
    assert gateway("memory", "export", ANA)[0] == 0
    assert gateway("memory", "forget", ANA, "--yes")[0] == 0
    assert gateway("sessions", "retry")[0] == 0
    assert gateway("login-link")[0] == 0
    monkeypatch.setenv("RECORD_DIR", str(tmp_path))
    monkeypatch.setenv("RECORD_KEY", gateway("recordings", "key")[1].strip())
    assert gateway("recordings", "rotate")[0] == 0

    entries = stored(lambda store: AuditLog(store, Secret(TOKEN)).page(AuditFilter(), limit=20))
    assert [(entry.action, entry.outcome) for entry in entries[::-1]] == [
        ("pin.set", "done"),
        ("pin.remove", "done"),
        ("topic.pin", "done"),
        ("topic.unpin", "failed"),
        ("caller.export", "done"),
        ("caller.erase", "done"),
        ("call.retry", "done"),
        ("login.link", "done"),
        ("recording.rotate", "done"),
    ]
    assert {entry.actor for entry in entries} == {"cli:ada"}
    assert {entry.caller for entry in entries} == {"…0143", ""}
    assert gateway("memory", "forget", ANA, "--yes", "--verify", ANA, "4711", "bike")[0] == 0
