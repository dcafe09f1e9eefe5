"""The documentation matches the program: settings, commands, routes, paths, links, language."""

import argparse
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from starlette.routing import Route

from gateway.agents import AgentDirectory
from gateway.app import create_app
from gateway.cli.main import COMMANDS, build_parser
from gateway.errors import SettingsError
from gateway.settings import NAMES, Secret, Settings, load
from gateway.web.media import CODECS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
TEXTS = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")), *PAGES]
ENV_EXAMPLE = (ROOT / ".env.example").read_text(encoding="utf-8")

DASHBOARD = (
    "/audit",
    "/calls",
    "/callers",
    "/agents",
    "/live",
    "/login",
    "/logout",
    "/phone",
    "/setup",
    "/static",
    "/tokens",
    "/vitals",
)
# Words that do not occur in the documentation of comparable projects.
DIALECT = re.compile(
    r"\b(told|tells?|whoever|whomever|whom|nobody|somebody|nameless|meanwhile|thereof|there is none|so long as"
    r"|in mid-\w+|hears? of|is known by|what is said|see through|anew)\b",
    re.IGNORECASE,
)


def by_name(path: Path) -> str:
    return path.name


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def without_code(text: str) -> str:
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)


def shell_blocks(path: Path) -> list[list[str]]:
    """The lines of each sh block. Continued lines, and those within quotes, are one."""
    blocks = re.findall(r"^( *)```sh\n(.*?)^\1```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    texts = (re.sub(r"'[^']*'", lambda quoted: quoted[0].replace("\n", " "), block) for _, block in blocks)
    return [[line.strip() for line in text.replace("\\\n", " ").splitlines()] for text in texts]


def settings_table() -> dict[str, str]:
    """Name and default of each documented setting."""
    return dict(re.findall(r"^\| `([A-Z_]+)` \| (.*?) \|", page("settings.md"), re.MULTILINE))


def default_text(name: str) -> str:
    """The default as written in the docs; empty if there is none."""
    value = getattr(Settings(), name.lower())
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None or value == frozenset() else str(value)


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


# Settings


def test_docs_list_every_setting():
    assert list(settings_table()) == list(NAMES)


def test_docs_have_the_defaults_in_force():
    table = settings_table()
    wrong = [name for name in NAMES if (text := default_text(name)) and table[name] != f"`{text}`"]
    assert wrong == []


def test_footprint_lists_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = page("performance.md").partition("| extra | on disk |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(extras)


def test_architecture_lists_every_layer():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    drawn = page("architecture.md").partition("\n## Layers\n")[2].partition("\n```\n")[2].partition("```")[0]
    assert [line.split() for line in drawn.splitlines()] == [layer.split(" : ") for layer in contract["layers"]]


def test_docs_list_every_key_of_an_agent():
    with pytest.raises(SettingsError, match="known are ") as unknown:
        AgentDirectory({"maya": {"nonsense": 1}}, ROOT)
    known = str(unknown.value).partition("known are ")[2].split(", ")
    section = page("agents.md").partition("\n## Keys\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == sorted(known)


def test_env_example_lists_every_setting():
    names = re.findall(r"^#?([A-Z_]+)=", ENV_EXAMPLE, re.MULTILINE)
    assert sorted(names) == sorted(NAMES)


def test_env_example_holds_the_defaults(tmp_path):
    uncommented = re.sub(r"^#([A-Z_]+=)", r"\1", ENV_EXAMPLE, flags=re.MULTILINE)
    (tmp_path / ".env").write_text(uncommented, encoding="utf-8")
    assert load({}, tmp_path) == Settings(folder=tmp_path)
    assert [name for name in NAMES if f"\n#{name}={default_text(name)}\n" not in ENV_EXAMPLE] == []


def test_untouched_env_example_sets_nothing(tmp_path):
    (tmp_path / ".env").write_text(ENV_EXAMPLE, encoding="utf-8")
    assert load({"XAI_API_KEY": "k"}, tmp_path) == Settings(folder=tmp_path, xai_api_key=Secret("k"))


def test_agents_example_can_be_used(tmp_path):
    (tmp_path / "gateway.toml").write_text((ROOT / "gateway.toml.example").read_text(encoding="utf-8"))
    agents = AgentDirectory(load({}, tmp_path).agents, ROOT)
    assert [agent.name for agent in agents] == ["maya", "maya-evening"]
    assert agents.answering("+12025550102").name == "maya-evening"


# Commands


def test_docs_name_every_command():
    assert [name for name in COMMANDS if f"| `gateway {name}" not in page("cli.md")] == []


def options_of(parser):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from options_of(command)
        else:
            yield from (name for name in action.option_strings if name.startswith("--"))


def command_parsers():
    [commands] = [one for one in build_parser(COMMANDS)._actions if isinstance(one, argparse._SubParsersAction)]
    return commands.choices


@pytest.mark.parametrize("name", COMMANDS)
def test_docs_name_every_option_of_a_command(name):
    rows = "".join(row for row in page("cli.md").splitlines() if row.startswith(f"| `gateway {name}"))
    everywhere = {"--help", "--json", "--url"}  # said once, below the table
    assert sorted({one for one in options_of(command_parsers()[name]) if f"`{one}" not in rows} - everywhere) == []
    known = set(options_of(command_parsers()[name]))
    assert [one for one in re.findall("`(--[a-z-]+)", rows) if one not in known] == []


def test_docs_say_which_commands_print_json():
    paragraph = page("cli.md").partition("`--json` prints machine-readable output for ")[2].partition(". ")[0]
    having = {name for name, parser in command_parsers().items() if "--json" in options_of(parser)}
    assert set(re.findall("`([a-z-]+)`", paragraph)) == having


@pytest.mark.parametrize("path", TEXTS, ids=by_name)
def test_commands_in_the_docs_can_be_parsed(path, capsys):
    parser = build_parser(COMMANDS)
    for line in (line for block in shell_blocks(path) for line in block):
        if found := re.match(r"(?:[A-Z_]+=\S* )*(?:gateway|\./start\.sh) (\w.*)", line):
            try:
                parser.parse_args(shlex.split(found[1], comments=True))
            except SystemExit:
                pytest.fail(f"{line}: {capsys.readouterr().err.splitlines()[-1]}")


@pytest.mark.parametrize("path", TEXTS, ids=by_name)
def test_scripts_in_the_docs_exist(path):
    scripts = set(re.findall(r"(?<![\w/])(?:\./)?(scripts/[\w-]+|start\.sh)", path.read_text(encoding="utf-8")))
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


# Routes


def documented_routes() -> set[tuple[str, str]]:
    section = page("http-api.md").partition("\n## Routes\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([A-Z]+)` \| `([^`]+)` \|", section, re.MULTILINE))


def methods(route: Route) -> set[str]:
    return (route.methods or set()) - {"HEAD"}


async def test_docs_list_every_route(tmp_path):
    settings = Settings(data_dir=tmp_path, folder=ROOT, voice_session_archive_dir=tmp_path, allowed_callers=frozenset())
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        routes = [route for route in app.routes if isinstance(route, Route)]
    is_page = {
        route.path: route.path == "/" or any(f"{route.path}/".startswith(f"{start}/") for start in DASHBOARD)
        for route in routes
    }
    documented = documented_routes()
    found = {(method, route.path) for route in routes if not is_page[route.path] for method in methods(route)}
    found |= {("WS", path) for path in CODECS}  # PortMux takes media sockets before ASGI
    # An ASGI application as endpoint decides on methods itself.
    undecided = {route.path for route in routes if not methods(route)}
    assert {route for route in documented if route[1] not in undecided} == found
    assert undecided - {path for path, shown in is_page.items() if shown} <= {path for _, path in documented}
    missing = [
        path
        for path, shown in is_page.items()
        if shown and path.count("/") == 1 and f"`{path}`" not in page("http-api.md")
    ]
    assert missing == []


# Pages


def test_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) < 8000


@pytest.mark.parametrize("path", TEXTS, ids=by_name)
def test_relative_links_resolve(path):
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", without_code(path.read_text(encoding="utf-8")))
    broken = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert broken == []


def test_overview_links_every_page():
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", page("index.md")))
    assert {path.name for path in PAGES} - {"index.md"} == linked


@pytest.mark.parametrize("path", TEXTS, ids=by_name)
def test_modules_named_in_the_docs_exist(path):
    text = path.read_text(encoding="utf-8")
    modules = re.findall(r"(?<![\w/.])((?:[a-z_]+/)+[a-z_]+\.py)\b", text)
    packages = re.findall(r"`(gateway/(?:[a-z_]+/)+)`", text)
    missing = [name for name in modules if not ((ROOT / name).is_file() or (ROOT / "gateway" / name).is_file())]
    missing += [name for name in packages if not list((ROOT / name).glob("*.py"))]
    assert missing == []


def test_language_is_plain():
    texts = {path.name: path.read_text(encoding="utf-8") for path in TEXTS}
    found = {name: DIALECT.findall(text) for name, text in texts.items()}
    words = sum(len(text.split()) for text in texts.values())
    count = sum(map(len, found.values()))
    assert count < words / 1000, {name: words for name, words in found.items() if words}


def test_changelog_begins_with_unreleased():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", changelog, re.MULTILINE)[0] == "Unreleased"


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / ".env.example", ROOT / "gateway.toml.example", *PAGES], ids=by_name
)
def test_example_numbers_are_fictitious(path):
    numbers = re.findall(r"\+\d[\d ()-]{6,}\d", path.read_text(encoding="utf-8"))
    assert [number for number in numbers if not re.fullmatch(r"\+1 ?202 ?555 ?01\d\d", number)] == []


# Promises


def promises() -> dict[str, list[str]]:
    """The rows of the tables about protection and limits in docs/security.md, each with the tests that it names."""
    text = page("security.md").partition("\n## What is protected\n")[2].partition("\n## Fuzzing\n")[0]
    rows = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("| --- ")]
    return {row: re.findall(r"`(test_\w+)`", row.rpartition(" | ")[2]) for row in rows if not row.endswith("| tests |")}


def names_of_tests(folder: Path) -> set[str]:
    sources = [path.read_text(encoding="utf-8") for path in folder.rglob("test_*.py")]
    return {name for source in sources for name in re.findall(r"^(?:async )?def (test_\w+)\(", source, re.MULTILINE)}


def test_every_promise_has_a_test():
    named = promises()
    assert len(named) > 40
    assert [row for row, tests in named.items() if not tests] == []
    assert {test for tests in named.values() for test in tests} - names_of_tests(ROOT / "tests") == set()


def test_every_test_of_a_promise_is_named():
    own = (ROOT / "tests" / "test_promises.py").read_text(encoding="utf-8")
    written = set(re.findall(r"^(?:async )?def (test_\w+)\(", own, re.MULTILINE))
    assert written - {test for tests in promises().values() for test in tests} == set()


def test_nothing_is_promised_outside_of_the_tables():
    """Between the tables stands one sentence of introduction at most, so that no promise is without tests."""
    text = page("security.md").partition("\n## What is protected\n")[2].partition("\n## Fuzzing\n")[0]
    prose = [part.strip() for part in text.split("\n\n") if part.strip() and not part.lstrip().startswith(("|", "## "))]
    assert [
        part for part in prose if not part.startswith(("Each row is a promise.", "What a peer without a token"))
    ] == []


# The repository


def test_lock_names_public_hosts_only():
    lock = (ROOT / "uv.lock").read_text(encoding="utf-8")
    assert set(re.findall(r"\w+://([^/\"]+)", lock)) == {"pypi.org", "files.pythonhosted.org"}
    assert set(re.findall(r"source = \{ (\w+) =", lock)) == {"registry", "editable"}


def test_no_file_names_a_private_folder():
    private = re.compile(rb"/(?:home|root|Users|work)/[\w.]")
    assert [path.name for path in tracked_files() if private.search(path.read_bytes())] == []
