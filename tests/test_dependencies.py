"""What the program depends on: licences, hashes, bill of materials. Advisories need a network: scripts/audit."""

import importlib.metadata
import json
import re
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).parent.parent
LOCK = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]

ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0"),
    *("Zlib", "Apache Software License", "BSD License", "3-Clause BSD License", "MIT License"),
    *("Mozilla Public License 2.0 (MPL 2.0)", "Python Software Foundation License"),
}
"""Licences that allow use in a program under MIT, as SPDX expressions and as classifiers."""
LIBRARIES = {"psycopg", "psycopg-binary", "psycopg-pool"}
"""LGPL: used as they are, installed beside the program, replaceable."""
WITHOUT_FIELD = {"aiofastnet": "MIT License", "picows": "MIT License", "py-nanotts": "Apache License"}
"""No field in the metadata names the licence: the first words of its file."""


@pytest.fixture(scope="module")
def bill() -> str:
    return subprocess.run([ROOT / "scripts" / "sbom"], capture_output=True, text=True, check=True).stdout


def licences(name: str) -> set[str]:
    fields = importlib.metadata.metadata(name)
    classified = {text.split(" :: ")[-1] for text in fields.get_all("Classifier", []) if text.startswith("License ::")}
    expression = fields.get("License-Expression") or ("" if classified else fields.get("License"))
    return (set(re.split(r" AND | OR |[()]", expression)) if expression else classified) - {""}


def test_bill_of_materials_is_valid(bill):
    assert JsonStrictValidator(SchemaVersion.V1_5).validate_str(bill) is None
    broken = bill.replace('"type": "library"', '"type": "nonsense"', 1)
    assert JsonStrictValidator(SchemaVersion.V1_5).validate_str(broken) is not None


def test_bill_of_materials_names_everything_from_public_places(bill):
    found = json.loads(bill)
    assert set(re.findall(r"\w+://([^/\"]+)", bill)) == {"files.pythonhosted.org"}
    assert found["metadata"]["component"]["name"] == "voice-gateway"
    purls = {part["purl"] for part in found["components"]}
    locked = {package["name"]: package["version"] for package in LOCK}
    assert {f"pkg:pypi/{name}@{locked[name]}" for name in ("starlette", "redis", "psycopg", "onnxruntime")} < purls
    assert not [purl for purl in purls if purl.startswith("pkg:pypi/pytest@")]


def test_licences_fit_ours(bill):
    installed = {dist.metadata["Name"].lower().replace("_", "-") for dist in importlib.metadata.distributions()}
    names = {part["name"] for part in json.loads(bill)["components"]} & installed
    assert len(names) > 80
    wrong = {name for name in names if not licences(name) <= ALLOWED}
    assert wrong == LIBRARIES
    assert {name for name in names if not licences(name)} == set(WITHOUT_FIELD)


@pytest.mark.parametrize("name", WITHOUT_FIELD)
def test_licence_file_stands_in_for_the_field(name):
    files = [file for file in importlib.metadata.files(name) or [] if "LICEN" in file.name.upper()]
    assert any(WITHOUT_FIELD[name] in file.read_text()[:300] for file in files)


def test_every_package_is_pinned_by_hash():
    files = {package["name"]: [*package.get("wheels", []), package.get("sdist")] for package in LOCK}
    files.pop("voice-gateway")
    unpinned = [
        name for name, parts in files.items() if not all(part["hash"].startswith("sha256:") for part in parts if part)
    ]
    assert unpinned == [] and all(any(parts) for parts in files.values())


def test_installed_is_what_is_locked():
    locked: dict[str, set[str]] = {}
    for package in LOCK:
        locked.setdefault(package["name"], set()).add(package["version"])
    installed = {
        re.sub(r"[-_.]+", "-", dist.metadata["Name"]).lower(): dist.version
        for dist in importlib.metadata.distributions()
    }
    assert {
        name: version for name, version in installed.items() if name in locked and version not in locked[name]
    } == {}


# Platforms, as docs/getting-started.md names them

PLATFORMS = {
    "Linux x86-64": ["manylinux2014_x86_64", *(f"manylinux_2_{minor}_x86_64" for minor in range(5, 37))],
    "Linux arm64": ["manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in range(17, 37))],
    "macOS arm64": list(mac_platforms((15, 0), "arm64")),
    "macOS x86-64": list(mac_platforms((15, 0), "x86_64")),
}
EXTRAS = ("local", "mcp", "otel", "pdf", "postgres", "redis", "vectors", "workers")
WITHOUT_WHEEL = {
    ("macOS arm64", "local"): {"py-nanotts"},
    ("macOS x86-64", ""): {"cryptography"},
    ("macOS x86-64", "local"): {"moonshine-voice", "onnxruntime", "py-nanotts"},
    ("macOS x86-64", "mcp"): {"cryptography"},
    ("macOS x86-64", "vectors"): {"onnxruntime"},
}
"""Packages that are built from source there, or can't be installed."""


def required(extra: str) -> set[str]:
    """The packages that the program, or one of its extras, needs outside Windows."""
    [project] = [package for package in LOCK if package["name"] == "voice-gateway"]
    waiting = list(project["optional-dependencies"][extra] if extra else project["dependencies"])
    found: set[str] = set()
    while waiting:
        needed = waiting.pop()
        if "== 'win32'" in needed.get("marker", "") or needed["name"] in found:
            continue
        found.add(needed["name"])
        for package in (one for one in LOCK if one["name"] == needed["name"]):
            waiting += package.get("dependencies", [])
            waiting += [more for name in needed.get("extra", []) for more in package["optional-dependencies"][name]]
    return found


def wheel_tags(name: str) -> set[Tag]:
    urls = [wheel["url"] for package in LOCK if package["name"] == name for wheel in package.get("wheels", [])]
    return {tag for url in urls for tag in parse_wheel_filename(url.rpartition("/")[2].replace("%2B", "+"))[3]}


def accepted(minor: int, platforms: Iterable[str]) -> set[Tag]:
    platforms = list(platforms)
    return {*cpython_tags((3, minor), platforms=platforms), *compatible_tags((3, minor), f"cp3{minor}", platforms)}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("minor", [11, 12, 13, 14])
def test_platforms_have_wheels(platform, minor):
    tags = accepted(minor, PLATFORMS[platform])
    missing = {extra: {name for name in required(extra) if not wheel_tags(name) & tags} for extra in ("", *EXTRAS)}
    assert {(platform, extra): names for extra, names in missing.items() if names} == {
        key: names for key, names in WITHOUT_WHEEL.items() if key[0] == platform
    }


def test_docs_name_the_platforms():
    text = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    assert all(f"| {platform} |" in text for platform in PLATFORMS)
