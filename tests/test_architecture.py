"""The structure of the package: layers, names, sizes and language."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "gateway").rglob("*.py"))


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
