import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path, PurePath

import pytest

from gateway.agent_files import MAX_PROMPT_BYTES, AgentFiles, with_values
from gateway.agents import BUNDLED_PROMPTS, AgentDirectory, LiveSettings
from gateway.errors import FileChanged, SettingsError
from gateway.settings import read_agent_tables

TOML = """# Ours
max_calls = 3   # a small machine

[agents.maya]
greeting = "Hello."   # short
numbers = ["+12025550100"]

[agents.maya.fields]
city = "Where the caller lives"

# The other one
[agents.tom]
prompt = "prompts/tom.md"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "prompts").mkdir()
    for name in ("maya", "tom"):
        (tmp_path / "prompts" / f"{name}.md").write_text(f"You are {name}.\n")
    (tmp_path / "gateway.toml").write_text(TOML)
    return tmp_path


@pytest.fixture
def agents(folder):
    return AgentDirectory(read_agent_tables(folder), folder)


def write(agents, name="maya", **changes):
    agent = agents.get(name)
    AgentFiles(agents).write(agent, replace(agent.live, **changes))


def test_prompt_is_replaced_and_keeps_its_mode(agents, folder):
    path = folder / "prompts" / "maya.md"
    path.chmod(0o640)
    write(agents, prompt="You are brief.\nDéjà vu.")
    assert path.read_text() == "You are brief.\nDéjà vu.\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert (folder / "gateway.toml").read_text() == TOML
    assert sorted(os.listdir(folder / "prompts")) == ["maya.md", "tom.md"]


def test_greeting_is_replaced_and_the_rest_stays(agents, folder):
    write(agents, greeting='Say "hi" \\ ciao')
    assert (folder / "gateway.toml").read_text() == TOML.replace('"Hello."', '"Say \\"hi\\" \\\\ ciao"')
    assert (folder / "prompts" / "maya.md").read_text() == "You are maya.\n"


def test_new_key_stands_in_its_table(agents, folder):
    write(agents, voice="aura-2-luna-en")
    assert read_agent_tables(folder)["maya"]["voice"] == "aura-2-luna-en"
    assert read_agent_tables(folder)["tom"] == {"prompt": "prompts/tom.md"}
    assert "# The other one\n[agents.tom]" in (folder / "gateway.toml").read_text()


def test_missing_files_are_made(tmp_path):
    agents = AgentDirectory({}, tmp_path)
    write(agents, prompt="Mine.", greeting="Hi!")
    assert (tmp_path / "prompts" / "maya.md").read_text() == "Mine.\n"
    assert (tmp_path / "gateway.toml").read_text() == '[agents.maya]\ngreeting = "Hi!"\n'


def test_link_stays_a_link_and_line_ends_stay(agents, folder):
    path, real = folder / "prompts" / "maya.md", folder / "real.md"
    real.write_bytes(b"You are maya.\r\n")
    path.unlink()
    path.symlink_to(real)
    write(agents, prompt="One.\nTwo.")
    assert path.is_symlink() and real.read_bytes() == b"One.\r\nTwo.\r\n"


@pytest.mark.parametrize("file", ["prompts/maya.md", "gateway.toml"])
def test_file_that_was_changed_elsewhere_is_not_overwritten(agents, folder, file):
    path = folder / file
    path.write_text(path.read_text().replace("You are maya.", "You are Ana.").replace('"Hello."', '"Hi."'))
    with pytest.raises(FileChanged):
        write(agents, prompt="Mine.")
    assert (folder / "prompts" / "maya.md").read_text() in ("You are Ana.\n", "You are maya.\n")
    assert sorted(os.listdir(folder / "prompts")) == ["maya.md", "tom.md"]


def test_folder_that_does_not_exist_for_writing_says_so(agents, folder):
    path = folder / "prompts"
    (path / "maya.md").unlink()
    (path / "tom.md").unlink()
    path.rmdir()
    path.write_text("a file")
    with pytest.raises(SettingsError, match="maya.md can't be written: "):
        write(agents, prompt="Mine.")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder_is_named(agents, folder):
    path = folder / "prompts"
    path.chmod(0o500)
    try:
        assert AgentFiles.why_read_only(path / "maya.md") == f"{path} is read-only for this program"
        with pytest.raises(SettingsError, match="can't be written: Permission denied"):
            write(agents, prompt="Mine.")
    finally:
        path.chmod(0o700)


def test_writable_file_has_no_reason(folder):
    assert AgentFiles.why_read_only(folder / "prompts" / "maya.md") == ""
    assert AgentFiles.why_read_only(folder / "new" / "file.md") == ""


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "é" * MAX_PROMPT_BYTES}, "the prompt has 50,000 bytes; it can have 25,000"),
        ({"prompt": "Hi.\nHo\x07."}, "line 2 of the prompt has a control character, shown as \ufffd; delete it"),
        ({"greeting": "Hi" * 501}, "the greeting has 1,002 characters; it can have 1,000"),
        ({"voice": ""}, "the voice is empty"),
    ],
)
def test_unusable_texts_are_refused(agents, changes, problem):
    with pytest.raises(SettingsError) as raised:
        write(agents, **changes)
    assert str(raised.value) == problem


@pytest.mark.parametrize(
    "toml",
    [
        "",
        "# nothing but a remark",
        "max_calls = 1\n",
        "[agents]\n",
        'agents = { maya = { greeting = "Hello." }, tom = {} }\n',
        "agents.maya.greeting = 'Hello.'\nagents.tom.language = 'de'\n",
        "[agents.maya]\n[agents.tom]\nlanguage = 'de'\n[agents.maya.fields]\ncity = 'x'\n",
        '[agents.maya]\ngreeting = """\nHello.\n"""\n\n# end\n',
        '[agents.tom]\nlanguage = "de"\n\n[other]\nx = 1\n\n[agents.maya]\nnumbers = []\n',
    ],
)
def test_every_way_to_write_a_table_is_changed_or_refused(toml):
    """The result has the new value and everything else as before."""
    import tomllib

    before = tomllib.loads(toml)
    before.setdefault("agents", {}).setdefault("maya", {})["greeting"] = "Hi!"
    assert tomllib.loads(with_values(toml, "maya", {"greeting": "Hi!"})) == before


def test_version_needs_all_settings():
    live = LiveSettings("a", "b", "c")
    changed = {"engine": ("local",), "disabled_tools": frozenset({"end_call"}), "transfer_to": {"desk": "+12025550177"}}
    changes = {**dict.fromkeys(("prompt", "greeting", "voice"), "x"), **changed}
    versions = {replace(live, **{name: value}).version for name, value in changes.items()}
    assert len(versions | {live.version}) == 7


# Engine and tools

TOOLS_TOML = """[agents.maya]
engine = "deepgram"   # paid monthly
transfer_to = { sales = "+1 202 555 0177", desk = "sip:desk@example.com" }   # office hours

[agents.tom]
prompt = "prompts/tom.md"
engine = [{ listen = "deepgram/nova-3", speak = "local" }, "deepgram"]
"""


@pytest.fixture
def with_tools(folder):
    (folder / "gateway.toml").write_text(TOOLS_TOML)
    return AgentDirectory(read_agent_tables(folder), folder)


def test_engine_is_a_name_or_a_list_or_left_out(with_tools, folder):
    write(with_tools, engine=("local",))
    assert 'engine = "local"   # paid monthly\n' in (folder / "gateway.toml").read_text()
    (folder / "gateway.toml").write_text(TOOLS_TOML)
    write(with_tools, engine=("local", "deepgram"))
    assert 'engine = ["local", "deepgram"]' in (folder / "gateway.toml").read_text()
    (folder / "gateway.toml").write_text(TOOLS_TOML)
    write(with_tools, engine=())
    assert "engine" not in read_agent_tables(folder)["maya"]


def test_tables_among_the_engines_stay(with_tools, folder):
    write(with_tools, "tom", engine=("deepgram/nova-3+local", "openai"))
    table = {"listen": "deepgram/nova-3", "speak": "local"}
    assert read_agent_tables(folder)["tom"]["engine"] == [table, "openai"]


def test_engine_with_a_language_model_is_left_to_the_file(folder):
    toml = '[agents.maya]\nengine = { listen = "deepgram/nova-3", think = "script", speak = "local" }\n'
    (folder / "gateway.toml").write_text(toml)
    agents = AgentDirectory(read_agent_tables(folder), folder)
    with pytest.raises(SettingsError, match="^engine has think, the agent's language model, in gateway.toml; change"):
        write(agents, engine=("local",))
    write(agents, greeting="Hi!")
    assert (folder / "gateway.toml").read_text().startswith(toml)


def test_transfer_targets_change_one_by_one(with_tools, folder):
    targets = {"sales": "+12025550177", "night": "+12025550178"}
    assert with_tools.get("maya").transfer_to["sales"] == "+12025550177"
    write(with_tools, transfer_to=targets)
    text = (folder / "gateway.toml").read_text()
    assert 'night = "+12025550178"' in text and "desk" not in text and "# office hours" in text
    assert AgentDirectory(read_agent_tables(folder), folder).get("maya").transfer_to == targets
    (folder / "gateway.toml").write_text(TOOLS_TOML)
    write(with_tools, transfer_to={})
    assert "transfer_to" not in read_agent_tables(folder)["maya"]


def test_disabled_tools_are_a_list(with_tools, folder):
    write(with_tools, disabled_tools=frozenset({"end_call", "book"}))
    assert 'disabled_tools = ["book", "end_call"]\n' in (folder / "gateway.toml").read_text()


def test_result_is_known_before_it_is_written(with_tools, folder):
    maya = with_tools.get("maya")
    files, live = AgentFiles(with_tools), replace(maya.live, prompt="New.", transfer_to={"desk": "+1 (202) 555-0177"})
    found = files.check(maya, live)
    assert (found.prompt, found.transfer_to) == ("New.", {"desk": "+12025550177"})
    files.write(maya, found)
    assert with_tools.read("maya").version == found.version


class Refusing:
    def check(self, agent):
        raise SettingsError(f"{agent.engine[0]} is not set up")

    def prepare(self, agent): ...


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"engine": ("local", "elevenlabs")}, r"\[agents.maya\]: engine: elevenlabs must be the first of the list"),
        ({"transfer_to": {"desk": "four"}}, "transfer_to: desk must be a number like"),
        ({"engine": ("local",)}, "^local is not set up$"),
    ],
)
def test_what_the_gateway_would_not_start_with_is_not_written(with_tools, folder, changes, problem):
    with_tools.attach(Refusing())
    with pytest.raises(SettingsError, match=problem):
        write(with_tools, **changes)
    assert (folder / "gateway.toml").read_text() == TOOLS_TOML


# A prompt that comes with the program

ROOT = Path(__file__).parent.parent


async def test_repository_stays_as_it_is(tmp_path):
    """Its prompt is saved under DATA_DIR, and read from there."""
    tracked = (ROOT / "prompts/maya.md").read_bytes()
    agents = AgentDirectory({}, ROOT, data_dir=tmp_path / "data")
    before = agents.get("maya")
    assert before.prompt_file == ROOT / "prompts/maya.md"
    AgentFiles(agents).write(before, replace(before.live, prompt="Be brief."))
    await agents.refresh()
    copy = tmp_path / "data/prompts/maya.md"
    assert (agents.get("maya").prompt, agents.get("maya").prompt_file) == ("Be brief.", copy)
    assert agents.prompt_path("maya") == copy
    assert (ROOT / "prompts/maya.md").read_bytes() == tracked

    AgentFiles(agents).write(agents.get("maya"), before.live)  # as a restored version is
    assert AgentDirectory({}, ROOT, data_dir=tmp_path / "data").get("maya").version == before.version
    copy.unlink()
    await agents.refresh()
    assert agents.get("maya").prompt_file == ROOT / "prompts/maya.md"


def test_prompt_of_ones_own_is_changed_in_place(tmp_path):
    own = tmp_path / "prompts/maya.md"
    own.parent.mkdir()
    own.write_text("Mine.")
    (tmp_path / "data/prompts").mkdir(parents=True)
    (tmp_path / "data/prompts/maya.md").write_text("Saved before.")
    agents = AgentDirectory({}, tmp_path, data_dir=tmp_path / "data")
    maya = agents.get("maya")
    assert (maya.prompt, agents.prompt_path("maya")) == ("Mine.", own)
    AgentFiles(agents).write(maya, replace(maya.live, prompt="Be brief."))
    assert own.read_text() == "Be brief.\n"


def test_prompt_with_another_name_is_saved_beside_gateway_toml(tmp_path):
    """In the repository too: the program has no such file, so it is not tracked."""
    agents = AgentDirectory({"maya": {}, "tom": {"prompt": "README.md"}}, ROOT, data_dir=tmp_path)
    assert agents.prompt_path("tom") == ROOT / "README.md"


def test_every_tracked_prompt_is_known_as_bundled():
    tracked = subprocess.run(["git", "ls-files", "prompts"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {PurePath(name) for name in tracked.stdout.split()} == BUNDLED_PROMPTS
